// cfol_fast::permutation: checks and registration.
#include "permutation.h"

#include "feedback.h"

namespace cfol {
namespace {

template <class Device>
Tensor permutation(const Tensor& rng, int64_t n, int64_t start, int64_t count) {
  check_rng(rng);
  if (n < 1 || n > (int64_t{1} << kMaxShuffleBits)) value_error("n must be from 1 to 2^", kMaxShuffleBits, ", got ", n);
  if (start < 0 || start > n) value_error("start must be in [0, ", n, "], got ", start);
  if (count < 0 || count > n - start) value_error("count must be in [0, ", n - start, "] (n - start), got ", count);
  Tensor out = new_vector(rng, ScalarType::Long, count);
  const Device device(rng);
  CFOL_RUN(Device, device, permutation, rng_data(rng), n, start, count, out.mutable_data_ptr<int64_t>());
  return out;
}

}  // namespace

CFOL_REGISTER(permutation)

}  // namespace cfol
