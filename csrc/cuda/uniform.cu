#include "../uniform.h"

#include "launch.h"

namespace cfol::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    uniform_kernel(const RngState* __restrict__ rng, Stream stream, int64_t first, int64_t n, float* __restrict__ out) {
  const int64_t first_slot = first / 4, slots = uniform_slots(first, n);
  for (int64_t i = first_element(); i < slots; i += grid_stride()) uniform_slot(*rng, stream, first_slot + i, first, n, out);
}

}  // namespace

const char* uniform(const RngState* rng, Stream stream, int64_t first, int64_t n, float* out, void* cuda_stream) {
  if (n == 0) return nullptr;
  return launch(uniform_kernel, blocks_for(uniform_slots(first, n)), cuda_stream, rng, stream, first, n, out);
}

}  // namespace cfol::cuda
