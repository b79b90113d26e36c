// Per-class counts and error sums, accumulated on the batch's device: tally[y] = (examples seen, sum of losses in units of
// 2^-30).
#pragma once

#include <cstdint>

#include "faults.h"
#include "fixed_point.h"

namespace cfol {

namespace cpu {
void class_tally(int64_t* tally, int64_t k, const int64_t* y, const float* loss, int64_t n, int32_t* fault);
}  // namespace cpu

namespace cuda {
const char* class_tally(int64_t* tally, int64_t k, const int64_t* y, const float* loss, int64_t n, int32_t* fault,
                        void* stream);
}  // namespace cuda

}  // namespace cfol
