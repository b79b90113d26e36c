#include "../winograd.h"

#include "launch.h"

namespace cfol::cuda {
namespace {

// One thread per tile and output channel. It transforms the tile's inputs anew for every channel: right, not fast.
__global__ void __launch_bounds__(kThreads)
    winograd_kernel(const float* __restrict__ x, const float* __restrict__ relu, const float* __restrict__ taps,
                    const float* __restrict__ bias, WinogradShape shape, bool rectify, int64_t n,
                    float* __restrict__ result) {
  for (int64_t element = first_element(); element < n; element += grid_stride()) {
    const int64_t output = element % shape.outputs;
    const WinogradTile at(shape, element / shape.outputs);
    float products[kTilePositions] = {};
    for (int64_t c = 0; c < shape.channels; ++c) {
      float tile[kTilePositions];
      for (int i = 0; i < kTilePositions; ++i) {
        const int64_t row = at.y - 1 + i / kTileSide, column = at.x - 1 + i % kTileSide;
        tile[i] = 0.0f;
        if (row < 0 || row >= shape.height || column < 0 || column >= shape.width) continue;
        const int64_t from = ((at.image * shape.height + row) * shape.width + column) * shape.channels + c;
        if (relu == nullptr || !(relu[from] <= 0.0f)) tile[i] = x[from];
      }
      transform_input_tile(tile);
      for (int i = 0; i < kTilePositions; ++i)
        products[i] = fmaf(tile[i], taps[tap_index(shape.channels, shape.outputs, i, c, output)], products[i]);
    }
    float four[kTileStep * kTileStep];
    transform_product_tile(products, four);
    for (int i = 0; i < kTileStep * kTileStep; ++i) {
      const int64_t row = at.y + i / kTileStep, column = at.x + i % kTileStep;
      if (row >= shape.height || column >= shape.width) continue;
      const float value = four[i] + (bias == nullptr ? 0.0f : bias[output]);
      result[((at.image * shape.height + row) * shape.width + column) * shape.outputs + output] =
          rectify && value <= 0.0f ? 0.0f : value;
    }
  }
}

// One thread per kernel of 3x3.
__global__ void __launch_bounds__(kThreads) winograd_taps_kernel(const float* __restrict__ weight, int64_t outputs,
                                                                 int64_t channels, bool gradient, float* __restrict__ taps) {
  const int64_t from = gradient ? outputs : channels, to = gradient ? channels : outputs;
  for (int64_t element = first_element(); element < outputs * channels; element += grid_stride()) {
    const int64_t o = element / channels, c = element % channels;
    float kernel[9], tile[kTilePositions];
    for (int i = 0; i < 9; ++i) kernel[i] = weight[element * 9 + (gradient ? 8 - i : i)];
    transform_kernel(kernel, tile);
    for (int i = 0; i < kTilePositions; ++i) taps[tap_index(from, to, i, gradient ? o : c, gradient ? c : o)] = tile[i];
  }
}

}  // namespace

const char* winograd(const float* x, const float* relu, const float* taps, const float* bias, WinogradShape shape,
                     bool rectify, float* result, void* stream) {
  const int64_t n = shape.tiles() * shape.outputs;
  if (n == 0) return nullptr;
  return launch(winograd_kernel, blocks_for(n), stream, x, relu, taps, bias, shape, rectify, n, result);
}

const char* winograd_taps(const float* weight, int64_t outputs, int64_t channels, bool gradient, float* taps, void* stream) {
  return launch(winograd_taps_kernel, blocks_for(outputs * channels), stream, weight, outputs, channels, gradient, taps);
}

}  // namespace cfol::cuda
