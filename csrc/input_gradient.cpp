// cfol_fast::input_gradient: checks and registration.
#include "input_gradient.h"

#include "tensor.h"

namespace cfol {
namespace {

ConvolutionShape shape_of(const Tensor& grad, const Tensor& weight, int64_t pad_h, int64_t pad_w) {
  check_dtype(grad, ScalarType::Float, "grad");
  check_dtype(weight, ScalarType::Float, "weight");
  check_same_device(weight, grad, "weight", "grad");
  if (grad.dim() != 4 || !is_channels_last(grad))
    value_error("grad must be (B, O, h, w), channels_last, got ", shape_text(grad));
  if (weight.dim() != 4 || !weight.is_contiguous())
    value_error("weight must be (O, C, h, w), contiguous, got ", shape_text(weight));
  if (weight.size(0) != grad.size(1))
    value_error("weight must have the ", grad.size(1), " outputs of grad, got ", weight.size(0));
  const ConvolutionShape shape = {grad.size(0), weight.size(1), weight.size(0), weight.size(2), weight.size(3),
                                  pad_h,        pad_w,          grad.size(2),   grad.size(3)};
  if (pad_h < 0 || pad_w < 0 || shape.reach_h() < 0 || shape.reach_w() < 0)
    value_error("padding must be at least 0 and less than the kernel, got ", pad_h, " and ", pad_w);
  if (shape.outputs < 1 || shape.channels < 1 || shape.out_h < 1 || shape.out_w < 1 || shape.height() < 1 ||
      shape.width() < 1)
    value_error("no input is left of grad ", shape_text(grad), " and weight ", shape_text(weight), " with padding ", pad_h,
                " and ", pad_w);
  return shape;
}

template <class Device>
Tensor input_gradient(const Tensor& grad, const Tensor& weight, std::optional<Tensor> relu, int64_t pad_h, int64_t pad_w) {
  const ConvolutionShape shape = shape_of(grad, weight, pad_h, pad_w);
  if (relu.has_value()) check_like(*relu, grad, "relu", "grad");
  const int64_t height = shape.height(), width = shape.width();
  Tensor result = new_strided(grad, ScalarType::Float, {shape.batch, shape.channels, height, width},
                              {height * width * shape.channels, 1, width * shape.channels, shape.channels});
  const Device device(grad);
  CFOL_RUN(Device, device, input_gradient, grad.const_data_ptr<float>(), data_or_null<float>(relu),
           weight.const_data_ptr<float>(), shape, result.mutable_data_ptr<float>());
  return result;
}

}  // namespace

CFOL_REGISTER(input_gradient)

}  // namespace cfol
