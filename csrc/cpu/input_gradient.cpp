#include "../input_gradient.h"

#include <algorithm>
#include <memory>
#include <new>

#include "../parallel.h"

namespace cfol::cpu {
namespace {

constexpr int64_t kBufferFloats = 1 << 17;  // half a megabyte: a thread's window of the gradient stays in its cache
constexpr int64_t kGrainFloats = 1 << 15;   // of the gradient that a thread takes at least
constexpr std::align_val_t kAlignment{64};

// GCC's and clang's vectors. The sixteen partial sums are one register of AVX-512, two of AVX and four of SSE: a vector type
// that is wider than the processor's registers would be kept in memory.
typedef float Quarter __attribute__((vector_size(16)));
template <int Level>
struct Register {
  typedef float Type __attribute__((vector_size(16), aligned(4), may_alias));
};
template <>
struct Register<kAVX2> {
  typedef float Type __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct Register<kAVX512> {
  typedef float Type __attribute__((vector_size(64), aligned(4), may_alias));
};
template <int Level>
struct Lanes {
  using Part = typename Register<Level>::Type;
  static constexpr int kParts = kSumLanes * sizeof(float) / sizeof(Part);
  Part part[kParts];
};

struct Floats {
  explicit Floats(int64_t n) : data(new(kAlignment) float[static_cast<size_t>(n)]()) {}
  ~Floats() { operator delete[](data, kAlignment); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* data;
};

int64_t padded(int64_t outputs) { return (outputs + kSumLanes - 1) / kSumLanes * kSumLanes; }

template <class Sixteen>
CFOL_ALWAYS_INLINE Quarter quarter(const Sixteen& v) {
  Quarter parts[4];
  __builtin_memcpy(parts, &v, sizeof v);
  return (parts[0] + parts[2]) + (parts[1] + parts[3]);
}

// sum_of_lanes for four at once, with a third of the shuffles.
template <class Sixteen>
CFOL_ALWAYS_INLINE Quarter sums_of_lanes(const Sixteen* v) {
  const Quarter a = quarter(v[0]), b = quarter(v[1]), c = quarter(v[2]), d = quarter(v[3]);
  const Quarter ab = Quarter{a[0], b[0], a[1], b[1]} + Quarter{a[2], b[2], a[3], b[3]};
  const Quarter cd = Quarter{c[0], d[0], c[1], d[1]} + Quarter{c[2], d[2], c[3], d[3]};
  return Quarter{ab[0], ab[1], cd[0], cd[1]} + Quarter{ab[2], ab[3], cd[2], cd[3]};
}

// The buffer and the taps, both with their outputs padded to whole lanes.
struct Window {
  int64_t row, lanes, kernel_h, kernel_w;  // row: floats in a row of the buffer
};

// One channel of `Pixels` neighbouring pixels; `first`: where the window of the first one begins in the buffer.
template <int Level, int Pixels>
CFOL_ALWAYS_INLINE void gradient_of(const float* first, const float* taps, const Window& window, float* result,
                                    int64_t channels) {
  using Sixteen = Lanes<Level>;
  constexpr int kParts = Sixteen::kParts;
  Sixteen sums[Pixels] = {};
  for (int64_t i = 0; i < window.kernel_h; ++i)
    for (int64_t j = 0; j < window.kernel_w; ++j)
      for (int64_t o = 0; o < window.lanes; o += kSumLanes, taps += kSumLanes) {
        const Sixteen tap = *reinterpret_cast<const Sixteen*>(taps);
        const float* grad = first + i * window.row + j * window.lanes + o;
        for (int p = 0; p < Pixels; ++p)
          for (int q = 0; q < kParts; ++q)
            sums[p].part[q] += tap.part[q] * reinterpret_cast<const Sixteen*>(grad + p * window.lanes)->part[q];
      }
  if constexpr (Pixels % 4 == 0) {
    for (int p = 0; p < Pixels; p += 4) {
      const Quarter four = sums_of_lanes(sums + p);
      for (int j = 0; j < 4; ++j) result[(p + j) * channels] = four[j];
    }
  } else {
    for (int p = 0; p < Pixels; ++p) {
      float lanes[kSumLanes];
      __builtin_memcpy(lanes, &sums[p], sizeof lanes);
      result[p * channels] = sum_of_lanes(lanes);
    }
  }
}

CFOL_SIMD(void, gradient_of_row,
          (const float* first, const float* taps, const Window window, int64_t width, int64_t channels, float* result)) {
  // As many pixels as there are registers for their sums, with some left for the taps.
  constexpr int kPixels = Level == kAVX512 ? 8 : 4;
  const int64_t taps_of_channel = window.kernel_h * window.kernel_w * window.lanes;
  for (int64_t c = 0; c < channels; ++c, taps += taps_of_channel, ++result) {
    int64_t x = 0;
    for (; x + kPixels <= width; x += kPixels)
      gradient_of<Level, kPixels>(first + x * window.lanes, taps, window, result + x * channels, channels);
    for (; kPixels > 4 && x + 4 <= width; x += 4)
      gradient_of<Level, 4>(first + x * window.lanes, taps, window, result + x * channels, channels);
    for (; x < width; ++x) gradient_of<Level, 1>(first + x * window.lanes, taps, window, result + x * channels, channels);
  }
}

CFOL_SIMD(void, fill, (const float* grad, const float* relu, int64_t n, float* buffer)) {
  if (relu == nullptr)
    for (int64_t i = 0; i < n; ++i) buffer[i] = grad[i];
  else
    for (int64_t i = 0; i < n; ++i) buffer[i] = before_relu(grad[i], relu[i]);
}

// Copies a row of the output's gradient into the buffer; the borders and the lanes beyond the outputs stay 0.
void fill_row(const float* grad, const float* relu, int64_t pixels, int64_t outputs, int64_t lanes, float* buffer) {
  if (outputs == lanes) return fill(grad, relu, pixels * outputs, buffer);
  for (int64_t x = 0; x < pixels; ++x)
    fill(grad + x * outputs, relu == nullptr ? nullptr : relu + x * outputs, outputs, buffer + x * lanes);
}

// (outputs, channels, h, w) -> (channels, h, w, lanes), with both axes of the kernel reversed.
void pack_taps(const float* weight, const ConvolutionShape& shape, int64_t lanes, float* taps) {
  const int64_t kernel = shape.kernel_h * shape.kernel_w;
  for (int64_t o = 0; o < shape.outputs; ++o)
    for (int64_t c = 0; c < shape.channels; ++c)
      for (int64_t i = 0; i < kernel; ++i)
        taps[(c * kernel + kernel - 1 - i) * lanes + o] = weight[(o * shape.channels + c) * kernel + i];
}

}  // namespace

void input_gradient(const float* grad, const float* relu, const float* weight, ConvolutionShape shape, float* result) {
  const int64_t lanes = padded(shape.outputs), height = shape.height(), width = shape.width();
  const Window window = {(width + shape.kernel_w - 1) * lanes, lanes, shape.kernel_h, shape.kernel_w};
  const Floats taps(shape.channels * shape.kernel_h * shape.kernel_w * lanes);
  pack_taps(weight, shape, lanes, taps.data);

  // An image is handled in bands of rows that fit into the buffer.
  const int64_t band = std::clamp<int64_t>(kBufferFloats / window.row - (shape.kernel_h - 1), 1, height);
  const int64_t bands = (height + band - 1) / band;
  const int64_t grain = 1 + kGrainFloats / (band * window.row);
  parallel_for(shape.batch * bands, grain, [&](int64_t begin, int64_t end) {
    const Floats buffer((band + shape.kernel_h - 1) * window.row);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t image = task / bands, first = task % bands * band, last = std::min(first + band, height);
      for (int64_t i = 0; i < last - first + shape.kernel_h - 1; ++i) {
        float* row = buffer.data + i * window.row + shape.reach_w() * lanes;
        const int64_t y = first + i - shape.reach_h(), from = ((image * shape.out_h + y) * shape.out_w) * shape.outputs;
        if (y < 0 || y >= shape.out_h)
          std::fill_n(row, shape.out_w * lanes, 0.0f);
        else
          fill_row(grad + from, relu == nullptr ? nullptr : relu + from, shape.out_w, shape.outputs, lanes, row);
      }
      for (int64_t y = first; y < last; ++y)
        gradient_of_row(buffer.data + (y - first) * window.row, taps.data, window, width, shape.channels,
                        result + (image * height + y) * width * shape.channels);
    }
  });
}

}  // namespace cfol::cpu
