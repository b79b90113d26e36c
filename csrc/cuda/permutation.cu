#include "../permutation.h"

#include "launch.h"

namespace cfol::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    permutation_kernel(const RngState* __restrict__ rng, int64_t n, const int64_t* __restrict__ place, int64_t count,
                       int64_t* __restrict__ out) {
  __shared__ ShuffleKey keys[kMaxShuffleRounds];
  const int rounds = shuffle_rounds(n);
  const int64_t start = *place < 0 ? 0 : *place;
  for (int64_t shuffle = start / n; shuffle * n < start + count; ++shuffle) {
    const RngState state = shuffle_state(*rng, shuffle);
    // Other threads may still be reading the keys of the shuffle before.
    __syncthreads();
    for (int round = static_cast<int>(threadIdx.x); round < rounds; round += kThreads)
      keys[round] = shuffle_key(state, n, round);
    __syncthreads();
    const ShufflePart part = shuffle_part(shuffle, n, start, count);
    for (int64_t i = part.from + first_element(); i < part.end; i += grid_stride()) {
      int64_t x = part.offset + i;
      for (int round = 0; round < rounds; ++round) x = swap_or_not(x, keys[round], n);
      out[i] = x;
    }
  }
}

}  // namespace

const char* permutation(const RngState* rng, int64_t n, const int64_t* start, int64_t count, int64_t* out, void* stream) {
  if (count == 0) return nullptr;
  return launch(permutation_kernel, blocks_for(count), stream, rng, n, start, count, out);
}

}  // namespace cfol::cuda
