// The gradient of a convolution with respect to an input of few channels, as in the first layer of a network: libraries fill
// their vector registers with input channels, so most of a register is empty here. Stride and dilation are 1.
//
// The sum over taps and outputs has one order on every device: kSumLanes partial sums, each over every kSumLanes-th output,
// then pairs of them.
#pragma once

#include <cstdint>

#include "platform.h"

namespace cfol {

constexpr int kSumLanes = 16;

// Images and gradients are (batch, height, width, channels) in memory: channels_last.
struct ConvolutionShape {
  int64_t batch, channels, outputs, kernel_h, kernel_w, pad_h, pad_w;
  int64_t out_h, out_w;  // of the convolution's output, whose gradient is given

  CFOL_HD int64_t height() const { return out_h + kernel_h - 1 - 2 * pad_h; }
  CFOL_HD int64_t width() const { return out_w + kernel_w - 1 - 2 * pad_w; }
  // Row y of the input belongs to rows y - reach_h() to y - reach_h() + kernel_h - 1 of the output, the last tap first.
  CFOL_HD int64_t reach_h() const { return kernel_h - 1 - pad_h; }
  CFOL_HD int64_t reach_w() const { return kernel_w - 1 - pad_w; }
};

// The gradient in front of the ReLU that follows the convolution: 0 where the ReLU's output was 0.
CFOL_HD float before_relu(float grad, float output) { return output <= 0.0f ? 0.0f : grad; }

CFOL_HD float sum_of_lanes(const float* lanes) {
  float eight[8], four[4];
  for (int j = 0; j < 8; ++j) eight[j] = lanes[j] + lanes[j + 8];
  for (int j = 0; j < 4; ++j) four[j] = eight[j] + eight[j + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// grad: (batch, out_h, out_w, outputs); relu: the same or null; weight: (outputs, channels, kernel_h, kernel_w);
// result: (batch, height, width, channels).
namespace cpu {
void input_gradient(const float* grad, const float* relu, const float* weight, ConvolutionShape shape, float* result);
}  // namespace cpu

namespace cuda {
const char* input_gradient(const float* grad, const float* relu, const float* weight, ConvolutionShape shape, float* result,
                           void* stream);
}  // namespace cuda

}  // namespace cfol
