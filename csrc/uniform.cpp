// cfol_fast::uniform: checks and registration.
#include "uniform.h"

#include "tensor.h"

namespace cfol {
namespace {

template <class Device>
Tensor uniform(const Tensor& rng, int64_t stream, int64_t first, int64_t n) {
  check_rng(rng);
  if (stream < 1 || stream > kMaxStream) value_error("stream must be from 1 to ", kMaxStream, ", got ", stream);
  if (first < 0 || first > kMaxNumber) value_error("first must be from 0 to 2^62, got ", first);
  if (n < 0 || n > kMaxNumber - first) value_error("n must be at least 0 and first + n at most 2^62, got ", n);
  Tensor out = new_vector(rng, ScalarType::Float, n);
  const Device device(rng);
  CFOL_RUN(Device, device, uniform, rng_data(rng), static_cast<Stream>(stream), first, n, out.mutable_data_ptr<float>());
  return out;
}

}  // namespace

CFOL_REGISTER(uniform)

}  // namespace cfol
