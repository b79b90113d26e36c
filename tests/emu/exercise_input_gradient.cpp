#include "../../csrc/input_gradient.h"

#include "exercise.h"

EXERCISE(input_gradient) {
  // whole lanes and not, a kernel without padding, several bands, images for two threads
  const cfol::ConvolutionShape shapes[] = {{3, 1, 16, 3, 3, 1, 1, 9, 13},
                                           {2, 3, 5, 5, 2, 0, 1, 4, 3},
                                           {1, 2, 700, 3, 3, 2, 0, 16, 9},
                                           {0, 1, 4, 1, 1, 0, 0, 2, 2}};
  for (const cfol::ConvolutionShape& shape : shapes) {
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    const std::vector<float> grad(size(shape.batch * shape.out_h * shape.out_w * shape.outputs), 0.5f);
    const std::vector<float> weight(size(shape.outputs * shape.channels * shape.kernel_h * shape.kernel_w), 1.0f);
    std::vector<float> result(size(shape.batch * shape.height() * shape.width() * shape.channels));
    RUN(input_gradient, grad.data(), nullptr, weight.data(), shape, result.data());
    RUN(input_gradient, grad.data(), grad.data(), weight.data(), shape, result.data());
  }
}
