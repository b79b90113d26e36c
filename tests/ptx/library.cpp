// The kernels of one architecture, as the stand-in takes them.
#include "kernel.h"

#define PTX_API extern "C" __attribute__((visibility("default")))
PTX_API void ptx_run_on(const emu::Machine* machine) { ptx::machine = machine; }
PTX_API int ptx_kernels() { return static_cast<int>(ptx::kernels().size()); }
PTX_API const emu::Kernel* ptx_kernel(int i) { return &ptx::kernels()[i]; }
PTX_API const char* ptx_name(int i) { return ptx::kernels()[i].name; }
PTX_API int ptx_blocks(int i) { return ptx::kernels()[i].blocks; }
PTX_API uint64_t ptx_visits(int i, int block) { return ptx::kernels()[i].visits[block]; }
PTX_API void ptx_forget_visits() {
  for (const emu::Kernel& kernel : ptx::kernels()) std::memset(kernel.visits, 0, kernel.blocks * sizeof(uint64_t));
}
