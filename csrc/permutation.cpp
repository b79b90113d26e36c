// cfol_fast::permutation: checks and registration.
#include "permutation.h"

#include "feedback.h"

namespace cfol {
namespace {

template <class Device>
Tensor permutation(const Tensor& rng, int64_t n, const Tensor& start, int64_t count) {
  check_rng(rng);
  if (n < 1 || n > (int64_t{1} << kMaxShuffleBits)) value_error("n must be from 1 to 2^", kMaxShuffleBits, ", got ", n);
  check_vector(start, ScalarType::Long, 1, "start");
  check_same_device(start, rng, "start", "rng");
  if (count < 0) value_error("count must be at least 0, got ", count);
  if constexpr (!Device::kCuda)
    if (*start.const_data_ptr<int64_t>() < 0)
      value_error("start must be at least 0, got ", *start.const_data_ptr<int64_t>());
  Tensor out = new_vector(rng, ScalarType::Long, count);
  const Device device(rng);
  CFOL_RUN(Device, device, permutation, rng_data(rng), n, start.const_data_ptr<int64_t>(), count,
           out.mutable_data_ptr<int64_t>());
  return out;
}

}  // namespace

CFOL_REGISTER(permutation)

}  // namespace cfol
