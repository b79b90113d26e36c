#include "../../csrc/winograd.h"

#include "exercise.h"

EXERCISE(winograd) {
  // edges in both directions, one pixel, tiles for two threads and more than one block, no image
  const cfol::WinogradShape shapes[] = {{3, 16, 48, 3, 5}, {1, 16, 16, 1, 1}, {64, 16, 32, 6, 8}, {0, 16, 16, 2, 2}};
  for (const cfol::WinogradShape& shape : shapes) {
    const auto size = [](int64_t n) { return static_cast<size_t>(n); };
    const int64_t pixels = shape.batch * shape.height * shape.width;
    const std::vector<float> x(size(pixels * shape.channels), 0.5f), bias(size(shape.outputs), 1.0f);
    const std::vector<float> weight(size(shape.outputs * shape.channels * 9), 1.0f);
    std::vector<float> taps(size(shape.outputs * shape.channels * cfol::kTilePositions));
    std::vector<float> result(size(pixels * shape.outputs)), back(size(pixels * shape.channels));
    RUN(winograd_taps, weight.data(), shape.outputs, shape.channels, false, taps.data());
    RUN(winograd, x.data(), nullptr, taps.data(), bias.data(), shape, true, result.data());
    RUN(winograd_taps, weight.data(), shape.outputs, shape.channels, true, taps.data());
    const cfol::WinogradShape turned = {shape.batch, shape.outputs, shape.channels, shape.height, shape.width};
    RUN(winograd, result.data(), result.data(), taps.data(), nullptr, turned, false, back.data());
  }
}
