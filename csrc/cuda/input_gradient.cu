#include "../input_gradient.h"

#include "launch.h"

namespace cfol::cuda {
namespace {

// One thread per element of the result.
__global__ void __launch_bounds__(kThreads)
    input_gradient_kernel(const float* __restrict__ grad, const float* __restrict__ relu, const float* __restrict__ weight,
                          ConvolutionShape shape, int64_t n, float* __restrict__ result) {
  const int64_t height = shape.height(), width = shape.width(), kernel = shape.kernel_h * shape.kernel_w;
  for (int64_t element = first_element(); element < n; element += grid_stride()) {
    const int64_t channel = element % shape.channels, pixel = element / shape.channels;
    const int64_t x = pixel % width, y = pixel / width % height, image = pixel / width / height;
    float lanes[kSumLanes] = {};
    for (int64_t i = 0; i < shape.kernel_h; ++i)
      for (int64_t j = 0; j < shape.kernel_w; ++j) {
        const int64_t row = y + i - shape.reach_h(), column = x + j - shape.reach_w();
        if (row < 0 || row >= shape.out_h || column < 0 || column >= shape.out_w) continue;
        const int64_t from = ((image * shape.out_h + row) * shape.out_w + column) * shape.outputs;
        const float* tap = weight + channel * kernel + kernel - 1 - (i * shape.kernel_w + j);
        for (int64_t o = 0; o < shape.outputs; ++o) {
          const float given = relu == nullptr ? grad[from + o] : before_relu(grad[from + o], relu[from + o]);
          lanes[o % kSumLanes] += tap[o * shape.channels * kernel] * given;
        }
      }
    result[element] = sum_of_lanes(lanes);
  }
}

}  // namespace

const char* input_gradient(const float* grad, const float* relu, const float* weight, ConvolutionShape shape, float* result,
                           void* stream) {
  const int64_t n = shape.batch * shape.height() * shape.width() * shape.channels;
  if (n == 0) return nullptr;
  return launch(input_gradient_kernel, blocks_for(n), stream, grad, relu, weight, shape, n, result);
}

}  // namespace cfol::cuda
