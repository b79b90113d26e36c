// Uniform numbers in [0, 1) of a stream of random numbers, for what is written in plain torch: number 4 s + j is word j of
// Philox slot s.
#pragma once

#include <cstdint>

#include "philox.h"

namespace cfol {

constexpr int64_t kMaxStream = 255;               // a stream's number has 8 bits of the counter
constexpr int64_t kMaxNumber = int64_t{1} << 62;  // so that the end of the last slot is no overflow

// Writes the numbers of one slot that lie among the n numbers from `first` on.
CFOL_HD void uniform_slot(RngState rng, Stream stream, int64_t slot, int64_t first, int64_t n, float* out) {
  const Random4 r = random4(rng, stream, static_cast<uint64_t>(slot));
  const uint32_t bits[4] = {r.x, r.y, r.z, r.w};
  for (int j = 0; j < 4; ++j) {
    const int64_t i = 4 * slot + j - first;
    if (i >= 0 && i < n) out[i] = uniform01(bits[j]);
  }
}

// The slots that n > 0 numbers from `first` on lie in.
CFOL_HD int64_t uniform_slots(int64_t first, int64_t n) { return (first + n - 1) / 4 - first / 4 + 1; }

namespace cpu {
void uniform(const RngState* rng, Stream stream, int64_t first, int64_t n, float* out);
}  // namespace cpu

namespace cuda {
const char* uniform(const RngState* rng, Stream stream, int64_t first, int64_t n, float* out, void* cuda_stream);
}  // namespace cuda

}  // namespace cfol
