#include "../permutation.h"

#include "launch.h"

namespace cfol::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) permutation_kernel(const RngState* __restrict__ rng, int64_t n, int64_t start,
                                                               int64_t count, int64_t* __restrict__ out) {
  __shared__ ShuffleKey keys[kMaxShuffleRounds];
  const int rounds = shuffle_rounds(n);
  for (int round = static_cast<int>(threadIdx.x); round < rounds; round += kThreads)
    keys[round] = shuffle_key(*rng, n, round);
  __syncthreads();
  for (int64_t i = first_element(); i < count; i += grid_stride()) {
    int64_t x = start + i;
    for (int round = 0; round < rounds; ++round) x = swap_or_not(x, keys[round], n);
    out[i] = x;
  }
}

}  // namespace

const char* permutation(const RngState* rng, int64_t n, int64_t start, int64_t count, int64_t* out, void* stream) {
  if (count == 0) return nullptr;
  return launch(permutation_kernel, blocks_for(count), stream, rng, n, start, count, out);
}

}  // namespace cfol::cuda
