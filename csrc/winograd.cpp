// cfol_fast::winograd and winograd_taps: checks and registration.
#include "winograd.h"

#include "tensor.h"

namespace cfol {
namespace {

void check_lanes(int64_t n, const char* name) {
  if (n < 1 || n % kWinogradLanes != 0) value_error(name, " must be a multiple of ", kWinogradLanes, ", got ", n);
}

WinogradShape shape_of(const Tensor& x, const Tensor& taps) {
  check_dtype(x, ScalarType::Float, "x");
  check_dtype(taps, ScalarType::Float, "taps");
  check_same_device(taps, x, "taps", "x");
  if (x.dim() != 4 || !is_channels_last(x)) value_error("x must be (B, C, H, W), channels_last, got ", shape_text(x));
  if (taps.dim() != 4 || !taps.is_contiguous() || taps.size(0) != kTilePositions || taps.size(1) < 1 ||
      taps.size(2) != x.size(1) || taps.size(3) != kWinogradLanes)
    value_error("taps must be what winograd_taps makes for the ", x.size(1), " channels of x, got ", shape_text(taps));
  check_lanes(x.size(1), "the channels of x");
  return {x.size(0), x.size(1), taps.size(1) * kWinogradLanes, x.size(2), x.size(3)};
}

template <class Device>
Tensor winograd(const Tensor& x, const Tensor& taps, std::optional<Tensor> bias, std::optional<Tensor> relu, bool rectify) {
  const WinogradShape shape = shape_of(x, taps);
  if (relu.has_value()) check_like(*relu, x, "relu", "x");
  if (bias.has_value()) {
    check_vector(*bias, ScalarType::Float, shape.outputs, "bias");
    check_same_device(*bias, x, "bias", "x");
  }
  const int64_t row = shape.width * shape.outputs;
  Tensor result = new_strided(x, ScalarType::Float, {shape.batch, shape.outputs, shape.height, shape.width},
                              {shape.height * row, 1, row, shape.outputs});
  const Device device(x);
  CFOL_RUN(Device, device, winograd, x.const_data_ptr<float>(), data_or_null<float>(relu), taps.const_data_ptr<float>(),
           data_or_null<float>(bias), shape, rectify, result.mutable_data_ptr<float>());
  return result;
}

template <class Device>
Tensor winograd_taps(const Tensor& weight, bool gradient) {
  check_dtype(weight, ScalarType::Float, "weight");
  if (weight.dim() != 4 || weight.size(2) != 3 || weight.size(3) != 3 || !weight.is_contiguous())
    value_error("weight must be (O, C, 3, 3), contiguous, got ", shape_text(weight));
  const int64_t outputs = weight.size(0), channels = weight.size(1);
  check_lanes(outputs, "the outputs of weight");
  check_lanes(channels, "the channels of weight");
  const int64_t from = gradient ? outputs : channels, panels = (gradient ? channels : outputs) / kWinogradLanes;
  const int64_t panel = from * kWinogradLanes;
  Tensor taps = new_strided(weight, ScalarType::Float, {kTilePositions, panels, from, kWinogradLanes},
                            {panels * panel, panel, kWinogradLanes, 1});
  const Device device(weight);
  CFOL_RUN(Device, device, winograd_taps, weight.const_data_ptr<float>(), outputs, channels, gradient,
           taps.mutable_data_ptr<float>());
  return taps;
}

}  // namespace

CFOL_REGISTER(winograd)
CFOL_REGISTER(winograd_taps)

}  // namespace cfol
