// What the tests steer from Python: the schedule of the emulated threads, a launch that is refused, the current stream,
// a look at the launches since the last one, and whose code runs.
#include <cuda_runtime.h>

#define EMU_API extern "C" __attribute__((visibility("default")))

// Each op of a test runs on a stream of its own, so that one kept from an earlier op is seen.
EMU_API void emulator_schedule(int order, uint64_t seed) {
  emu::order = static_cast<emu::Order>(order);
  emu::seed = seed;
  emu::current_stream += 1;
}

EMU_API void* emulator_stream() { return reinterpret_cast<void*>(emu::current_stream); }

// The launch of this number since the last look, and all after it, are refused; -1: none.
EMU_API void emulator_refuse(int64_t launch) { emu::refused = launch; }

EMU_API int emulator_launches(int64_t* out, int capacity) {
  const int n = static_cast<int>(emu::launches.size());
  for (int i = 0; i < n && i < capacity; ++i) {
    out[2 * i] = emu::launches[i].blocks;
    out[2 * i + 1] = emu::launches[i].threads;
  }
  emu::launches.clear();
  return n;
}

// ---- code of other compilers
// ----------------------------------------------------------------------------------------------
EMU_API const emu::Machine* emulator_machine() {
  static const emu::Machine machine = {
      &threadIdx.x,
      &blockIdx.x,
      &blockDim.x,
      &gridDim.x,
      &emu::current,
      [](int line) { emu::wait_for_block(line); },
      [](unsigned mask, uint64_t value, int from, int line) { return emu::exchange(mask, value, from, line); },
      [] { emu::leave(emu::kReady, 0); },
  };
  return &machine;
}

// Launches of `source`, the address of a kernel here, run `kernel` while this code is chosen; code 0 is the source itself.
EMU_API void emulator_add_kernel(int code, const void* source, const emu::Kernel* kernel) {
  emu::kernels[{code, source}] = kernel;
}
EMU_API void emulator_choose_code(int code) { emu::code = code; }

// A launch past the launcher and its checks, with the bytes of each parameter, of which only some blocks are run; null, or
// what went wrong.
EMU_API const char* emulator_launch(const void* source, unsigned grid, unsigned first, unsigned blocks, unsigned threads,
                                    const void* const* parameters) {
  static std::string wrong;
  const auto found = emu::kernels.find({emu::code, source});
  if (found == emu::kernels.end()) return "no such kernel";
  emu::first_block = first, emu::most_blocks = blocks;
  const char* result = nullptr;
  try {
    emu::run_replaced(*found->second, dim3(grid), dim3(threads), parameters);
  } catch (const std::exception& error) {
    result = (wrong = error.what()).c_str();
  }
  emu::first_block = 0, emu::most_blocks = UINT32_MAX;
  return result;
}
