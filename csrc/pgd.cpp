// cfol_fast::pgd_start and cfol_fast::pgd_step: checks and registration.
#include "pgd.h"

#include <cfloat>

#include "tensor.h"

namespace cfol {
namespace {

ImageLayout layout_of(const Tensor& x) {
  check_dtype(x, ScalarType::Float, "x");
  if (x.dim() < 1) value_error("x must have a batch dimension, got a tensor without dimensions");
  const int64_t batch = x.size(0), per_example = batch > 0 ? x.numel() / batch : 0;
  const int64_t channels = x.dim() == 4 ? x.size(1) : 1;
  const bool contiguous = x.is_contiguous();
  if (!contiguous && !is_channels_last(x)) value_error("x must be contiguous or channels_last");
  return {batch, channels, channels > 0 ? per_example / channels : 0, !contiguous};
}

BatchPart part_of(const ImageLayout& layout, int64_t first, std::optional<int64_t> whole) {
  const int64_t size = whole.value_or(layout.batch);
  if (first < 0 || size < layout.batch || first > size - layout.batch)
    value_error("slots must lie in the global batch of ", size, " examples, got ", layout.batch, " examples from ", first,
                " on");
  return {first, size};
}

template <class Device>
PerExample per_example(double value, const std::optional<Tensor>& each, const Tensor& x, const char* name) {
  if (!each.has_value()) {
    if (!(value >= 0 && value <= FLT_MAX)) value_error(name, " must be at least 0 and finite, got ", value);
    return {static_cast<float>(value), nullptr};
  }
  check_vector(*each, ScalarType::Float, x.size(0), name);
  check_same_device(*each, x, name, "x");
  const float* data = each->const_data_ptr<float>();
  if constexpr (!Device::kCuda)
    for (int64_t i = 0; i < x.size(0); ++i)
      if (!(data[i] >= 0 && data[i] <= FLT_MAX))
        value_error(name, " must be at least 0 and finite, got ", data[i], " for example ", i);
  return {0.0f, data};
}

template <class Device>
Tensor pgd_start(const Tensor& x, double eps, std::optional<Tensor> eps_each, Tensor rng, bool l2,
                 std::optional<Tensor> fault, int64_t first, std::optional<int64_t> whole) {
  const ImageLayout layout = layout_of(x);
  const BatchPart part = part_of(layout, first, whole);
  check_rng(rng);
  check_same_device(rng, x, "rng", "x");
  const PerExample radius = per_example<Device>(eps, eps_each, x, "eps");
  check_apart({{"rng", rng}, {"fault", fault}}, {{"x", x}, {"eps", eps_each}});
  Tensor adv = torch::stable::empty_like(x);
  const Device device(x);
  CFOL_RUN(Device, device, pgd_start, x.const_data_ptr<float>(), adv.mutable_data_ptr<float>(), layout, part, radius,
           rng_data_mutable(rng), l2, fault_data(fault, x, "x"));
  return adv;
}

template <class Device>
void pgd_step(Tensor adv, const Tensor& x, const Tensor& grad, double step, double eps, std::optional<Tensor> step_each,
              std::optional<Tensor> eps_each, bool l2, std::optional<Tensor> fault) {
  const ImageLayout layout = layout_of(x);
  check_like(adv, x, "adv", "x");
  check_like(grad, x, "grad", "x");
  const PerExample size = per_example<Device>(step, step_each, x, "step");
  const PerExample radius = per_example<Device>(eps, eps_each, x, "eps");
  check_apart({{"adv", adv}, {"fault", fault}}, {{"x", x}, {"grad", grad}, {"step", step_each}, {"eps", eps_each}});
  const Device device(x);
  CFOL_RUN(Device, device, pgd_step, adv.mutable_data_ptr<float>(), x.const_data_ptr<float>(), grad.const_data_ptr<float>(),
           layout, size, radius, l2, fault_data(fault, x, "x"));
}

}  // namespace

CFOL_REGISTER(pgd_start)
CFOL_REGISTER(pgd_step)

}  // namespace cfol
