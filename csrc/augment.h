// Gather and augment: indices in, a batch of images in [0, 1] out. An image goes through crop, flip, colour jitter and
// rotation, in that order and each as torchvision's float functions define it, without an intermediate batch in memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "faults.h"
#include "philox.h"

namespace cfol {

// ---- what goes in and out -----------------------------------------------------------------------------------------------

// All images, uint8, rows of interleaved channels: of one size, or of different sizes with a table of (offset, height,
// width).
struct ImageStore {
  const uint8_t* bytes;
  int64_t size;          // bytes
  const int64_t* table;  // null: count images of height x width, one after another
  int64_t count, channels, height, width;
};

constexpr int64_t kMaxSide = 1 << 24;   // of a stored image: positions stay exact in float
constexpr int64_t kMaxFrame = 1 << 12;  // of the output: sums of a channel's bytes stay below 2^32

// The output batch: (batch, channels, height, width), float32 or bfloat16, contiguous or channels_last.
struct Frame {
  int64_t batch, channels, height, width;
  bool bfloat16, channels_last;

  CFOL_HD int64_t plane() const { return height * width; }
};

// What happens to one image: a row of a float32 tensor (batch, 8).
struct AugmentParameters {
  float top, left;  // the window's corner in the image; what is outside the image is black
  float flip;       // not 0: mirrored
  float brightness, contrast, saturation;
  float angle;  // degrees, counter-clockwise
  float unused;
};

// The ranges that parameters are drawn from.
struct AugmentRanges {
  int64_t pad;
  bool crop, flip;
  float brightness, contrast, saturation, degrees;
};

// Where the parameters come from: `given`, or drawn with `rng`, or (both null) the centre crop.
struct AugmentPlan {
  AugmentRanges ranges;
  const AugmentParameters* given;
  RngState* rng;
  int64_t first;  // the batch's first position in the global batch
};

// One stored image. An image that does not lie in the store has no pixels and is black.
struct SourceImage {
  const uint8_t* pixels;  // height x width x channels
  int64_t height, width;
};

// Bad values, which the CPU side has refused before, are replaced by safe ones, and *bad gets a bit of faults.h.
CFOL_HD SourceImage locate(const ImageStore& images, int64_t index, int32_t* bad) {
  if (index < 0 || index >= images.count) {
    *bad |= kFaultIndex;
    index = index < 0 ? 0 : images.count - 1;
  }
  if (images.table == nullptr)
    return {images.bytes + index * images.height * images.width * images.channels, images.height, images.width};
  const int64_t offset = images.table[3 * index], height = images.table[3 * index + 1], width = images.table[3 * index + 2];
  const bool sides = height >= 1 && width >= 1 && height <= kMaxSide && width <= kMaxSide;
  if (sides && offset >= 0 && offset <= images.size - height * width * images.channels)
    return {images.bytes + offset, height, width};
  *bad |= kFaultIndex;
  return {images.bytes, 0, 0};
}

// ---- the parameters -----------------------------------------------------------------------------------------------------

// torchvision's centre: half of an odd rest is rounded to even.
CFOL_HD int64_t centre(int64_t extent, int64_t size) {
  const int64_t rest = extent - size;
  return rest >= 0 ? rest / 2 + ((rest & 3) == 3) : -(-rest / 2);
}

// Uniform over the places where the window fits into the padded image; the centre where it does not fit.
CFOL_HD float window(uint32_t bits, int64_t extent, int64_t size, const AugmentRanges& ranges) {
  const int64_t room = extent + 2 * ranges.pad - size;
  if (!ranges.crop || room < 0) return static_cast<float>(centre(extent, size));
  return static_cast<float>(static_cast<int64_t>((uint64_t{bits} * static_cast<uint64_t>(room + 1)) >> 32) - ranges.pad);
}

CFOL_HD float factor(uint32_t bits, float range) {
  const float low = range < 1.0f ? 1.0f - range : 0.0f;
  return low + uniform01(bits) * (1.0f + range - low);
}

// Each parameter has its own place in the two Philox slots of a position, so switching one on does not change the others.
CFOL_HD AugmentParameters draw_parameters(const AugmentRanges& ranges, RngState rng, int64_t position, SourceImage image,
                                          const Frame& frame) {
  const Random4 a = random4(rng, Stream::kAugment, 2 * static_cast<uint64_t>(position));
  const Random4 b = random4(rng, Stream::kAugment, 2 * static_cast<uint64_t>(position) + 1);
  return {window(a.x, image.height, frame.height, ranges),
          window(a.y, image.width, frame.width, ranges),
          ranges.flip ? static_cast<float>(a.z >> 31) : 0.0f,
          factor(a.w, ranges.brightness),
          factor(b.x, ranges.contrast),
          factor(b.y, ranges.saturation),
          (2.0f * uniform01(b.z) - 1.0f) * ranges.degrees,
          0.0f};
}

// False for NaN, too.
CFOL_HD bool is_sound(const AugmentParameters& p) {
  const bool place = fabsf(p.top) <= float{kMaxSide} && fabsf(p.left) <= float{kMaxSide};
  const bool jitter = p.brightness >= 0 && p.contrast >= 0 && p.saturation >= 0 && p.brightness < 1e6f &&
                      p.contrast < 1e6f && p.saturation < 1e6f;
  return place && jitter && fabsf(p.angle) <= 360.0f;
}

CFOL_HD AugmentParameters parameters_for(const AugmentPlan& plan, int64_t example, SourceImage image, const Frame& frame,
                                         int32_t* bad) {
  AugmentParameters p = {0, 0, 0, 1, 1, 1, 0, 0};
  p.top = static_cast<float>(centre(image.height, frame.height));
  p.left = static_cast<float>(centre(image.width, frame.width));
  if (plan.given != nullptr) {
    if (is_sound(plan.given[example])) return plan.given[example];
    *bad |= kFaultParameter;
  } else if (plan.rng != nullptr) {
    return draw_parameters(plan.ranges, *plan.rng, plan.first + example, image, frame);
  }
  return p;
}

// ---- one example, ready to be read ---------------------------------------------------------------------------------------

// Output to input coordinates, both centred, the result from -1 to 1: torchvision's affine grid.
struct Rotation {
  float x_of_x, x_of_y, y_of_x, y_of_y;
};

struct Jitter {
  float brightness, contrast, saturation;
  float mean;  // the mean grey value of the brightened image, which contrast blends with
};

struct View {
  SourceImage image;
  int64_t top, left;
  bool flip, rotates, jitters;
  Rotation rotation;
  Jitter jitter;
};

// Cosine and sine without a library, for the same bits everywhere: whole quarter turns first, then the series of the rest.
CFOL_HD Rotation rotation_by(float degrees, const Frame& frame) {
  const double quarters = rint(degrees / 90.0);
  const double r = (degrees - 90.0 * quarters) * (3.14159265358979323846 / 180.0), s = r * r;
  double c = 1.0, q = 1.0;
  for (int n = 16; n > 0; n -= 2) {
    c = 1.0 - c * s / (n * (n - 1));
    q = 1.0 - q * s / (n * (n + 1));
  }
  q *= r;
  const int turn = static_cast<int>(quarters) & 3;
  const float cosine = static_cast<float>(turn == 0 ? c : turn == 1 ? -q : turn == 2 ? -c : q);
  const float sine = static_cast<float>(turn == 0 ? q : turn == 1 ? c : turn == 2 ? -q : -c);
  const float half_width = 0.5f * static_cast<float>(frame.width), half_height = 0.5f * static_cast<float>(frame.height);
  return {cosine / half_width, -sine / half_width, sine / half_height, cosine / half_height};
}

CFOL_HD View view_of(SourceImage image, const AugmentParameters& p, const Frame& frame) {
  View view = {};
  view.image = image;
  view.top = static_cast<int64_t>(p.top);
  view.left = static_cast<int64_t>(p.left);
  view.flip = p.flip != 0.0f;
  view.rotates = p.angle != 0.0f;
  if (view.rotates) view.rotation = rotation_by(p.angle, frame);
  view.jitters = p.brightness != 1.0f || p.contrast != 1.0f || p.saturation != 1.0f;
  view.jitter = {p.brightness, p.contrast, p.saturation, 0.0f};
  return view;
}

// ---- pixels -------------------------------------------------------------------------------------------------------------

// Up to three bytes of colour and, in the highest byte, whether the image has a pixel here: a rotation leaves black corners,
// which the colour jitter must not change.
using Pixel = uint32_t;
constexpr Pixel kOpaque = 0xff000000u;

CFOL_HD uint32_t byte_of(Pixel pixel, int channel) { return (pixel >> (8 * channel)) & 255u; }

struct Colour {
  float red, green, blue;
};

// byte / 255, correctly rounded, without a division: 1/255 is 257/65536, whose product with a byte is exact, and a small
// rest.
CFOL_HD float scaled(uint32_t byte) {
  const float value = static_cast<float>(static_cast<int32_t>(byte));
  return value * (257.0f / 65536.0f) + value * static_cast<float>(1.0 / 255.0 / 65536.0);
}

// Clamps to [0, 1] as integers: floats from 0 up are ordered like their bits, and compilers vectorise no float comparison
// that might trap.
CFOL_HD float to_unit(float v) {
  int32_t bits;
  memcpy(&bits, &v, sizeof bits);
  bits = bits < 0 ? 0 : bits;
  bits = bits > 0x3F800000 ? 0x3F800000 : bits;  // 1.0f
  memcpy(&v, &bits, sizeof bits);
  return v;
}
CFOL_HD float blend(float a, float b, float ratio) { return to_unit(a * ratio + b * (1.0f - ratio)); }

template <int Channels>
CFOL_HD Colour colour_of(Pixel pixel) {
  if constexpr (Channels == 1) return {scaled(byte_of(pixel, 0)), 0.0f, 0.0f};
  return {scaled(byte_of(pixel, 0)), scaled(byte_of(pixel, 1)), scaled(byte_of(pixel, 2))};
}

// Brightness, contrast, saturation; a factor of 1 changes no bit. An image of one channel has no saturation.
template <int Channels>
CFOL_HD Colour jittered(Colour c, const Jitter& jitter) {
  const float mean = jitter.mean;
  c.red = blend(to_unit(c.red * jitter.brightness), mean, jitter.contrast);
  if constexpr (Channels == 3) {
    c.green = blend(to_unit(c.green * jitter.brightness), mean, jitter.contrast);
    c.blue = blend(to_unit(c.blue * jitter.brightness), mean, jitter.contrast);
    const float grey = 0.2989f * c.red + 0.587f * c.green + 0.114f * c.blue;
    c = {blend(c.red, grey, jitter.saturation), blend(c.green, grey, jitter.saturation),
         blend(c.blue, grey, jitter.saturation)};
  }
  return c;
}

// The mean grey value is summed in integers, so that the order cannot matter: bytes above the limit become 1 when brightened
// and are counted, the others are summed; the grey weights are multiples of 1/10000.
struct GreySum {
  int64_t bytes, clipped;
};
constexpr int kGreyUnits = 10000;

CFOL_HD int grey_weight(int channels, int channel) {
  return channels == 1 ? kGreyUnits : channel == 0 ? 2989 : channel == 1 ? 5870 : 1140;
}

CFOL_HD uint32_t clip_limit(float brightness) {
  return brightness > 1.0f ? static_cast<uint32_t>(255.0f / brightness) : 255u;
}

CFOL_HD float grey_mean(GreySum sum, float brightness, const Frame& frame) {
  const double total = static_cast<double>(sum.bytes) * (double{brightness} / 255.0) + static_cast<double>(sum.clipped);
  return static_cast<float>(total / (static_cast<double>(frame.plane()) * kGreyUnits));
}

// To the nearest integer, half to even: a float of the size of 1.5 * 2^23 has no bits for a fraction.
CFOL_HD int32_t nearest(float v) {
  const float sum = v + 12582912.0f;
  int32_t bits;
  memcpy(&bits, &sum, sizeof bits);
  return bits - 0x4B400000;
}

// The place in the window that output pixel (x, y) shows, -1 for none. Fused where torch's kernels fuse, so that a place
// half-way between two pixels is rounded to the same side as there.
CFOL_HD int32_t rotated(const Rotation& r, int32_t x, int32_t y, int32_t height, int32_t width) {
  const float half_width = 0.5f * static_cast<float>(width), half_height = 0.5f * static_cast<float>(height);
  const float dx = static_cast<float>(x) + (0.5f - half_width), dy = static_cast<float>(y) + (0.5f - half_height);
  const int32_t from_x = nearest(fmaf(fmaf(dy, r.x_of_y, dx * r.x_of_x) + 1.0f, half_width, -0.5f));
  const int32_t from_y = nearest(fmaf(fmaf(dy, r.y_of_y, dx * r.y_of_x) + 1.0f, half_height, -0.5f));
  const bool inside = static_cast<uint32_t>(from_x) < static_cast<uint32_t>(width) &&
                      static_cast<uint32_t>(from_y) < static_cast<uint32_t>(height);
  return inside ? from_y * width + from_x : -1;
}

// Rounds to nearest, half to even; v is never NaN.
CFOL_HD void store(float v, float* out) { *out = v; }
CFOL_HD void store(float v, uint16_t* out) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  *out = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Writes one pixel of an example: `plane` is the distance between channels, 0 in channels_last.
template <int Channels, class Out>
CFOL_HD void store_colour(Colour c, Out* out, int64_t pixel, int64_t plane) {
  Out* const first = plane == 0 ? out + pixel * Channels : out + pixel;
  const int64_t next = plane == 0 ? 1 : plane;
  store(c.red, first);
  if constexpr (Channels == 3) {
    store(c.green, first + next);
    store(c.blue, first + 2 * next);
  }
}

namespace cpu {
void gather_augment(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, void* out, int32_t* fault);
void augment_parameters(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, AugmentParameters* out,
                        int32_t* fault);
}  // namespace cpu

namespace cuda {
const char* gather_augment(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, void* out, int32_t* fault,
                           void* stream);
const char* augment_parameters(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, AugmentParameters* out,
                               int32_t* fault, void* stream);
}  // namespace cuda

}  // namespace cfol
