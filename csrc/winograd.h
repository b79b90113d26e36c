// A convolution of 3x3 (stride 1, padding 1, so the map keeps its size) by Winograd's F(2x2, 3x3): four neighbouring outputs
// come from a tile of 4x4 inputs with 16 multiplications for each pair of channels, where sums over the taps need 36. (Where
// a side is odd, the last tile has outputs that are thrown away.)
//
// Inputs, taps and products are transformed by sums alone (taps: and halves), so it rounds about as the usual way does. Of
// each product the sum over the channels is one chain of fused multiply-adds from the first channel to the last, so that
// every device and instruction set gives the same bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "platform.h"

namespace cfol {

// A part of a vectorised loop: compiled with the instructions of its caller.
#if defined(__CUDACC__)
#define CFOL_TRANSFORM CFOL_HD
#else
#define CFOL_TRANSFORM CFOL_ALWAYS_INLINE
#endif

constexpr int64_t kTileSide = 4, kTilePositions = 16, kTileStep = 2;
// The taps of so many outputs lie side by side; channels and outputs are multiples of it.
constexpr int64_t kWinogradLanes = 16;

// Maps are (batch, height, width, channels) in memory: channels_last.
struct WinogradShape {
  int64_t batch, channels, outputs, height, width;

  CFOL_HD int64_t tiles_down() const { return (height + kTileStep - 1) / kTileStep; }
  CFOL_HD int64_t tiles_across() const { return (width + kTileStep - 1) / kTileStep; }
  CFOL_HD int64_t tiles() const { return batch * tiles_down() * tiles_across(); }
};

// Where a tile lies: its first input is the pixel above and left of its first output, and may be outside.
struct WinogradTile {
  int64_t image, y, x;  // of the first output

  CFOL_HD WinogradTile(const WinogradShape& shape, int64_t tile)
      : image(tile / (shape.tiles_down() * shape.tiles_across())),
        y(tile / shape.tiles_across() % shape.tiles_down() * kTileStep),
        x(tile % shape.tiles_across() * kTileStep) {}
};

// Where the transformed tap of (position, channel, output) stands: the op winograd_taps writes them so.
CFOL_HD int64_t tap_index(int64_t channels, int64_t outputs, int64_t position, int64_t channel, int64_t output) {
  const int64_t panel = position * (outputs / kWinogradLanes) + output / kWinogradLanes;
  return (panel * channels + channel) * kWinogradLanes + output % kWinogradLanes;
}

// The three transforms along one axis. T: a number, or as many of them as a register holds.
template <class T>
CFOL_TRANSFORM void transform_inputs(T& a, T& b, T& c, T& d) {
  const T first = a - c, second = b + c, third = c - b, fourth = b - d;
  a = first, b = second, c = third, d = fourth;
}

template <class T>
CFOL_TRANSFORM void transform_products(const T& a, const T& b, const T& c, const T& d, T& first, T& second) {
  first = (a + b) + c;
  second = (b - c) - d;
}

template <class T>
CFOL_TRANSFORM void transform_taps(const T& a, const T& b, const T& c, T& first, T& second, T& third, T& fourth) {
  const T ends = a + c;
  first = a;
  second = 0.5f * (ends + b);
  third = 0.5f * (ends - b);
  fourth = c;
}

// All 16 numbers of a tile, row by row: first down the columns, then along the rows.
template <class T>
CFOL_TRANSFORM void transform_input_tile(T* tile) {
  for (int j = 0; j < 4; ++j) transform_inputs(tile[j], tile[4 + j], tile[8 + j], tile[12 + j]);
  for (int i = 0; i < 4; ++i) transform_inputs(tile[4 * i], tile[4 * i + 1], tile[4 * i + 2], tile[4 * i + 3]);
}

// From 16 products to the outputs (0, 0), (0, 1), (1, 0) and (1, 1).
template <class T>
CFOL_TRANSFORM void transform_product_tile(const T* tile, T* outputs) {
  T upper[4], lower[4];
  for (int j = 0; j < 4; ++j) transform_products(tile[j], tile[4 + j], tile[8 + j], tile[12 + j], upper[j], lower[j]);
  transform_products(upper[0], upper[1], upper[2], upper[3], outputs[0], outputs[1]);
  transform_products(lower[0], lower[1], lower[2], lower[3], outputs[2], outputs[3]);
}

// The nine taps of a kernel of 3x3, row by row, to 16 numbers.
template <class T>
CFOL_TRANSFORM void transform_kernel(const T* taps, T* tile) {
  T rows[12];
  for (int j = 0; j < 3; ++j)
    transform_taps(taps[j], taps[3 + j], taps[6 + j], rows[j], rows[3 + j], rows[6 + j], rows[9 + j]);
  for (int i = 0; i < 4; ++i)
    transform_taps(rows[3 * i], rows[3 * i + 1], rows[3 * i + 2], tile[4 * i], tile[4 * i + 1], tile[4 * i + 2],
                   tile[4 * i + 3]);
}

// winograd: x: (batch, height, width, channels), masked where relu, which is like x or null, is not positive; taps: as
// tap_index says; bias: (outputs) or null; result: (batch, height, width, outputs), after a ReLU if `rectify`.
// winograd_taps: weight: (outputs, channels, 3, 3); `gradient`: taps of the convolution that is the gradient's, from
// outputs to channels with the kernel reversed.
namespace cpu {
void winograd(const float* x, const float* relu, const float* taps, const float* bias, WinogradShape shape, bool rectify,
              float* result);
void winograd_taps(const float* weight, int64_t outputs, int64_t channels, bool gradient, float* taps);
}  // namespace cpu

namespace cuda {
const char* winograd(const float* x, const float* relu, const float* taps, const float* bias, WinogradShape shape,
                     bool rectify, float* result, void* stream);
const char* winograd_taps(const float* weight, int64_t outputs, int64_t channels, bool gradient, float* taps, void* stream);
}  // namespace cuda

}  // namespace cfol
