#include "../winograd.h"

#include <algorithm>
#include <memory>
#include <new>

#include "../parallel.h"
#if defined(CFOL_CHOOSES_INSTRUCTIONS)
#include <immintrin.h>  // declares the builtins below; they are always part of a function that has the instructions
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace cfol::cpu {
namespace {

constexpr int64_t kBlockFloats = 1 << 18;  // of transformed inputs and products: a thread's megabyte stays in its cache
constexpr int64_t kLeastTiles = 60;        // of a block with many channels: all taps are read for each block
constexpr int64_t kRowsOfBlock = 12;       // a multiple of all kRows below
constexpr int64_t kGrainTiles = 12;        // that a thread takes at least
constexpr std::align_val_t kAlignment{64};

// A register of the instruction set, and how many rows and panels of a product's sums the registers hold.
typedef float Four __attribute__((vector_size(16)));
typedef float Eight __attribute__((vector_size(32)));
typedef float Sixteen __attribute__((vector_size(64)));
template <int Level>
struct Registers {
  using Part = Four;
  static constexpr int kRows = 2, kPanels = 1;
};
#if defined(CFOL_CHOOSES_INSTRUCTIONS)
template <>
struct Registers<kAVX2> {
  using Part = Eight;
  static constexpr int kRows = 6, kPanels = 1;
};
template <>
struct Registers<kAVX512> {
  using Part = Sixteen;
  static constexpr int kRows = 12, kPanels = 2;
};
#endif

// a * b + c, rounded once.
template <int Level, class Part>
CFOL_ALWAYS_INLINE void multiply_add(const Part& a, const Part& b, Part& c) {
#if defined(CFOL_CHOOSES_INSTRUCTIONS)
  if constexpr (Level == kAVX512) {
    c = __builtin_ia32_vfmaddps512_mask(a, b, c, -1, 4);
    return;
  } else if constexpr (Level == kAVX2) {
    c = __builtin_ia32_vfmaddps256(a, b, c);
    return;
  }
#endif
  for (size_t i = 0; i < sizeof(Part) / sizeof(float); ++i) c[i] = std::fma(a[i], b[i], c[i]);
}

// From and to memory of any alignment.
template <class Part>
CFOL_ALWAYS_INLINE void load(const float* from, Part& part) {
  __builtin_memcpy(&part, from, sizeof part);
}
template <class Part>
CFOL_ALWAYS_INLINE void store(const Part& part, float* to) {
  __builtin_memcpy(to, &part, sizeof part);
}

struct Floats {
  explicit Floats(int64_t n) : data(new(kAlignment) float[static_cast<size_t>(n)]) {}
  ~Floats() { operator delete[](data, kAlignment); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  float* data;
};

// One position of a block of tiles: inputs (tiles, channels) times taps (panels, channels, lanes) -> (tiles, outputs).
struct Product {
  const float *inputs, *taps;
  float* products;
  int64_t tiles, channels, outputs;
};

template <int Level, int Rows, int Panels>
CFOL_ALWAYS_INLINE void multiply_rows(const Product& of, int64_t row, int64_t panel) {
  using Part = typename Registers<Level>::Part;
  constexpr int kFloats = sizeof(Part) / sizeof(float), kParts = kWinogradLanes / kFloats * Panels;
  const float* inputs = of.inputs + row * of.channels;
  const float* taps = of.taps + panel * of.channels * kWinogradLanes;
  const int64_t next_panel = of.channels * kWinogradLanes;
  Part sums[Rows][kParts] = {};
  for (int64_t c = 0; c < of.channels; ++c) {
    Part tap[kParts];
    for (int p = 0; p < kParts; ++p)
      load(taps + c * kWinogradLanes + p * kFloats / kWinogradLanes * next_panel + p * kFloats % kWinogradLanes, tap[p]);
    for (int r = 0; r < Rows; ++r) {
      const Part input = inputs[r * of.channels + c] - Part{};  // the number in every lane
      for (int p = 0; p < kParts; ++p) multiply_add<Level>(input, tap[p], sums[r][p]);
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int p = 0; p < kParts; ++p)
      store(sums[r][p], of.products + (row + r) * of.outputs + panel * kWinogradLanes + p * kFloats);
}

template <int Level, int Panels>
CFOL_ALWAYS_INLINE void multiply_panels(const Product& of, int64_t panel) {
  constexpr int kRows = Registers<Level>::kRows;
  int64_t row = 0;
  for (; row + kRows <= of.tiles; row += kRows) multiply_rows<Level, kRows, Panels>(of, row, panel);
  for (; kRows > 4 && row + 4 <= of.tiles; row += 4) multiply_rows<Level, 4, Panels>(of, row, panel);
  for (; row < of.tiles; ++row) multiply_rows<Level, 1, Panels>(of, row, panel);
}

CFOL_SIMD(void, multiply, (const Product of)) {
  constexpr int kPanels = Registers<Level>::kPanels;
  const int64_t panels = of.outputs / kWinogradLanes;
  int64_t panel = 0;
  for (; panel + kPanels <= panels; panel += kPanels) multiply_panels<Level, kPanels>(of, panel);
  for (; kPanels > 1 && panel < panels; ++panel) multiply_panels<Level, 1>(of, panel);
}

// Tiles first to first + tiles to (positions, tiles, channels).
CFOL_SIMD(void, transform_in,
          (const float* x, const float* relu, const WinogradShape shape, int64_t first, int64_t tiles, float* transformed)) {
  using Part = typename Registers<Level>::Part;
  constexpr int kFloats = sizeof(Part) / sizeof(float);
  for (int64_t t = 0; t < tiles; ++t) {
    const WinogradTile at(shape, first + t);
    int64_t offset[kTilePositions];
    for (int i = 0; i < kTilePositions; ++i) {
      const int64_t y = at.y - 1 + i / kTileSide, across = at.x - 1 + i % kTileSide;
      const bool inside = y >= 0 && y < shape.height && across >= 0 && across < shape.width;
      offset[i] = inside ? ((at.image * shape.height + y) * shape.width + across) * shape.channels : -1;
    }
    for (int64_t c = 0; c < shape.channels; c += kFloats) {
      Part tile[kTilePositions];
      for (int i = 0; i < kTilePositions; ++i) {
        tile[i] = Part{};
        if (offset[i] < 0) continue;
        load(x + offset[i] + c, tile[i]);
        if (relu == nullptr) continue;
        Part mask;
        load(relu + offset[i] + c, mask);
        tile[i] = mask <= 0.0f ? Part{} : tile[i];
      }
      transform_input_tile(tile);
      for (int i = 0; i < kTilePositions; ++i) store(tile[i], transformed + (i * tiles + t) * shape.channels + c);
    }
  }
}

// (positions, tiles, outputs) to the results of these tiles.
CFOL_SIMD(void, transform_out,
          (const float* products, const float* bias, const WinogradShape shape, int64_t first, int64_t tiles, bool rectify,
           float* result)) {
  using Part = typename Registers<Level>::Part;
  constexpr int kFloats = sizeof(Part) / sizeof(float);
  for (int64_t t = 0; t < tiles; ++t) {
    const WinogradTile at(shape, first + t);
    for (int64_t k = 0; k < shape.outputs; k += kFloats) {
      Part tile[kTilePositions], outputs[kTileStep * kTileStep], added = {};
      if (bias != nullptr) load(bias + k, added);
      for (int i = 0; i < kTilePositions; ++i) load(products + (i * tiles + t) * shape.outputs + k, tile[i]);
      transform_product_tile(tile, outputs);
      for (int i = 0; i < kTileStep * kTileStep; ++i) {
        const int64_t y = at.y + i / kTileStep, across = at.x + i % kTileStep;
        if (y >= shape.height || across >= shape.width) continue;
        Part value = outputs[i] + added;
        if (rectify) value = value <= 0.0f ? Part{} : value;
        store(value, result + ((at.image * shape.height + y) * shape.width + across) * shape.outputs + k);
      }
    }
  }
}

// The taps of sixteen outputs.
CFOL_SIMD(void, transform_panel,
          (const float* weight, int64_t channels, int64_t from, int64_t to, int64_t panel, bool gradient, float* taps)) {
  using Part = typename Registers<Level>::Part;
  constexpr int kFloats = sizeof(Part) / sizeof(float);
  // How far the kernels of two lanes, and those of two inputs, lie apart.
  const int64_t lane_step = gradient ? 9 : channels * 9, from_step = gradient ? channels * 9 : 9;
  for (int64_t f = 0; f < from; ++f)
    for (int64_t first = panel * kWinogradLanes; first < (panel + 1) * kWinogradLanes; first += kFloats) {
      Part kernel[9], tile[kTilePositions];
      for (int i = 0; i < 9; ++i) {
        const float* of = weight + f * from_step + first * lane_step + (gradient ? 8 - i : i);
        float lanes[kFloats];
        for (int lane = 0; lane < kFloats; ++lane) lanes[lane] = of[lane * lane_step];
        load(lanes, kernel[i]);
      }
      transform_kernel(kernel, tile);
      for (int i = 0; i < kTilePositions; ++i) store(tile[i], taps + tap_index(from, to, i, f, first));
    }
}

}  // namespace

void winograd(const float* x, const float* relu, const float* taps, const float* bias, WinogradShape shape, bool rectify,
              float* result) {
  const int64_t a_tile = kTilePositions * (shape.channels + shape.outputs);
  const int64_t most = std::max(kBlockFloats / a_tile, kLeastTiles) / kRowsOfBlock * kRowsOfBlock;
  const int64_t of_a_position = shape.channels * shape.outputs;
  parallel_for(shape.tiles(), kGrainTiles, [&](int64_t begin, int64_t end) {
    // Blocks of one size, so that none is left with a few tiles.
    const int64_t blocks = (end - begin + most - 1) / most, even = (end - begin + blocks - 1) / blocks;
    const int64_t size = (even + kRowsOfBlock - 1) / kRowsOfBlock * kRowsOfBlock;
    const Floats buffer(size * a_tile);
    float* products = buffer.data + size * kTilePositions * shape.channels;
    for (int64_t first = begin; first < end; first += size) {
      const int64_t tiles = std::min(size, end - first);
      transform_in(x, relu, shape, first, tiles, buffer.data);
      for (int64_t i = 0; i < kTilePositions; ++i)
        multiply(Product{buffer.data + i * tiles * shape.channels, taps + i * of_a_position,
                         products + i * tiles * shape.outputs, tiles, shape.channels, shape.outputs});
      transform_out(products, bias, shape, first, tiles, rectify, result);
    }
  });
}

void winograd_taps(const float* weight, int64_t outputs, int64_t channels, bool gradient, float* taps) {
  const int64_t from = gradient ? outputs : channels, to = gradient ? channels : outputs;
  parallel_for(to / kWinogradLanes, 1, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) transform_panel(weight, channels, from, to, panel, gradient, taps);
  });
}

}  // namespace cfol::cpu
