#include "../augment.h"

#include <algorithm>
#include <vector>

#include "../parallel.h"

// One image at a time: its window is packed into a small buffer (four bytes per pixel), rotated there, and written in one
// vectorised loop over all pixels.

namespace cfol::cpu {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements a thread takes at least

template <int Channels>
CFOL_ALWAYS_INLINE void pack_row(const uint8_t* source, Pixel* row, int64_t n) {
  if constexpr (Channels == 1) {
    for (int64_t i = 0; i < n; ++i) row[i] = source[i] | kOpaque;
  } else if (n > 0) {
    for (int64_t i = 0; i + 1 < n; ++i) {  // reads four bytes at once; the fourth belongs to the next pixel
      memcpy(row + i, source + 3 * i, 4);
      row[i] |= kOpaque;
    }
    const uint8_t* last = source + 3 * (n - 1);
    row[n - 1] = last[0] | (uint32_t{last[1]} << 8) | (uint32_t{last[2]} << 16) | kOpaque;
  }
}

// The cropped and flipped image.
template <int Channels>
CFOL_ALWAYS_INLINE void pack_rows(const View& view, const Frame& frame, Pixel* out) {
  const int64_t begin = std::clamp<int64_t>(-view.left, 0, frame.width);
  const int64_t end = std::clamp<int64_t>(view.image.width - view.left, begin, frame.width);
  for (int64_t y = 0; y < frame.height; ++y) {
    Pixel* row = out + y * frame.width;
    const int64_t from = view.top + y;
    if (from < 0 || from >= view.image.height || begin == end) {
      std::fill_n(row, frame.width, kOpaque);
      continue;
    }
    std::fill_n(row, begin, kOpaque);
    const int64_t first = from * view.image.width + view.left + begin;
    pack_row<Channels>(view.image.pixels + first * Channels, row + begin, end - begin);
    std::fill(row + end, row + frame.width, kOpaque);
    if (view.flip) std::reverse(row, row + frame.width);
  }
}

CFOL_SIMD(void, pack, (const View& view, const Frame& frame, Pixel* out)) {
  if (frame.channels == 1)
    pack_rows<1>(view, frame, out);
  else
    pack_rows<3>(view, frame, out);
}

CFOL_SIMD(GreySum, grey_sum, (const Pixel* pixels, int64_t n, int64_t channels, uint32_t limit)) {
  GreySum total = {0, 0};
  for (int channel = 0; channel < channels; ++channel) {
    uint32_t bytes = 0, clipped = 0;
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t byte = byte_of(pixels[i], channel);
      bytes += byte > limit ? 0 : byte;
      clipped += byte > limit;
    }
    const int64_t weight = grey_weight(static_cast<int>(channels), channel);
    total.bytes += weight * bytes;
    total.clipped += weight * clipped;
  }
  return total;
}

// pixels[n], one past the end of the window, is the black pixel of places that the rotation leaves empty. `out` first holds
// the places, so that computing them is a loop of its own, which vectorises.
CFOL_SIMD(void, rotate,
          (const Pixel* __restrict__ pixels, const Rotation rotation, int32_t height, int32_t width,
           Pixel* __restrict__ out)) {
  const int32_t n = height * width;
  for (int32_t y = 0; y < height; ++y)
    for (int32_t x = 0; x < width; ++x) {
      const int32_t place = rotated(rotation, x, y, height, width);
      out[y * width + x] = static_cast<Pixel>(place < 0 ? n : place);
    }
  for (int32_t i = 0; i < n; ++i) out[i] = pixels[out[i]];
}

template <int Channels, bool ChannelsLast, class Out>
CFOL_ALWAYS_INLINE void write(const Pixel* __restrict__ pixels, int64_t n, bool jitters, const Jitter jitter,
                              Out* __restrict__ out) {
  const int64_t plane = ChannelsLast ? 0 : n;
  if (!jitters) {
    for (int64_t i = 0; i < n; ++i) store_colour<Channels>(colour_of<Channels>(pixels[i]), out, i, plane);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const Colour c = jittered<Channels>(colour_of<Channels>(pixels[i]), jitter);
    // 1 for a pixel of the image, 0 for an empty corner: a branch would not vectorise.
    const float opaque = static_cast<float>(static_cast<int32_t>(pixels[i] >> 31));
    store_colour<Channels>({c.red * opaque, c.green * opaque, c.blue * opaque}, out, i, plane);
  }
}

template <class Out>
CFOL_ALWAYS_INLINE void write_as(const Pixel* pixels, const Frame& frame, bool jitters, const Jitter& jitter, Out* out) {
  const int64_t n = frame.plane();
  if (frame.channels == 1)
    write<1, false>(pixels, n, jitters, jitter, out);
  else if (frame.channels_last)
    write<3, true>(pixels, n, jitters, jitter, out);
  else
    write<3, false>(pixels, n, jitters, jitter, out);
}

CFOL_SIMD(void, write_example,
          (const Pixel* pixels, const Frame& frame, bool jitters, const Jitter& jitter, void* out, int64_t example)) {
  const int64_t offset = example * frame.channels * frame.plane();
  if (frame.bfloat16)
    write_as(pixels, frame, jitters, jitter, static_cast<uint16_t*>(out) + offset);
  else
    write_as(pixels, frame, jitters, jitter, static_cast<float*>(out) + offset);
}

}  // namespace

void gather_augment(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, void* out, int32_t*) {
  const int64_t n = frame.plane();
  parallel_for(frame.batch, 1 + kGrain / (1 + n * frame.channels), [&](int64_t begin, int64_t end) {
    std::vector<Pixel> scratch(2 * n + 1);
    Pixel *window = scratch.data(), *turned = window + n + 1;
    for (int64_t example = begin; example < end; ++example) {
      int32_t bad = 0;  // stays 0: bad values were refused before
      const SourceImage image = locate(images, idx[example], &bad);
      View view = view_of(image, parameters_for(plan, example, image, frame, &bad), frame);
      pack(view, frame, window);
      if (view.jitter.contrast != 1.0f) {
        const GreySum sum = grey_sum(window, n, frame.channels, clip_limit(view.jitter.brightness));
        view.jitter.mean = grey_mean(sum, view.jitter.brightness, frame);
      }
      window[n] = 0;
      if (view.rotates)
        rotate(window, view.rotation, static_cast<int32_t>(frame.height), static_cast<int32_t>(frame.width), turned);
      write_example(view.rotates ? turned : window, frame, view.jitters, view.jitter, out, example);
    }
  });
  if (plan.rng != nullptr) plan.rng->step += 1;
}

void augment_parameters(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, AugmentParameters* out,
                        int32_t*) {
  int32_t bad = 0;
  for (int64_t i = 0; i < frame.batch; ++i) out[i] = parameters_for(plan, i, locate(images, idx[i], &bad), frame, &bad);
}

}  // namespace cfol::cpu
