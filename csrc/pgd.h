// One PGD attack: the random start and the ascent step, in the linf and the l2 ball, on images in [0, 1].
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "faults.h"
#include "philox.h"

namespace cfol {

// How a batch is laid out in memory. Random numbers belong to logical positions (example, channel, pixel), one Philox slot
// to four pixels of a plane, so that the noise is the same in both layouts.
struct ImageLayout {
  int64_t batch, channels, plane;  // plane: pixels of a channel
  bool channels_last;

  CFOL_HD int64_t per_example() const { return channels * plane; }
  CFOL_HD int64_t quads() const { return (plane + 3) / 4; }  // Philox slots of one plane
  CFOL_HD int64_t offset(int64_t example, int64_t channel, int64_t pixel) const {
    return channels_last ? (example * plane + pixel) * channels + channel : (example * channels + channel) * plane + pixel;
  }
};

// Where a batch lies in a global batch, of which it is a part: the noise belongs to the place in the global batch.
struct BatchPart {
  int64_t first, whole;  // the place of the batch's first example; examples of the global batch
};

// A radius or step size: one number for the batch, or one for each example.
struct PerExample {
  float value;
  const float* each;
};

// Two choices after each other, not one in the other: compilers make a minimum and a maximum of them.
CFOL_HD float clamp_to(float v, float low, float high) {
  v = v < low ? low : v;
  return v > high ? high : v;
}

// The value for one example; on the device a bad one counts as 0 and is flagged (on the CPU it was refused before).
CFOL_HD float value_for(PerExample p, int64_t example, bool* bad) {
  const float v = p.each != nullptr ? p.each[example] : p.value;
  if (v >= 0.0f && v <= FLT_MAX) return v;
  *bad = true;
  return 0.0f;
}

CFOL_HD float start_linf(float x, float u, float eps) { return clamp_to(x + (2.0f * u - 1.0f) * eps, 0.0f, 1.0f); }

CFOL_HD float step_linf(float adv, float x, float grad, float step, float eps, float low = 0.0f, float high = 1.0f) {
  const float move = grad > 0.0f ? step : (grad < 0.0f ? -step : 0.0f);
  return clamp_to(clamp_to(adv + move, x - eps, x + eps), low, high);
}

// Two standard normal numbers (Box-Muller); the uniform number is kept away from 0, where the logarithm is infinite.
struct Normal2 {
  float first, second;
};
CFOL_HD Normal2 normal2(uint32_t a, uint32_t b) {
  const float radius = sqrtf(-2.0f * logf(uniform01(a) + 0.5f / 16777216.0f));
  const float angle = 6.2831853f * uniform01(b);
  return {radius * cosf(angle), radius * sinf(angle)};
}

// The four normal numbers of one Philox slot.
CFOL_HD void normal4(Random4 r, float* out) {
  const Normal2 a = normal2(r.x, r.y), b = normal2(r.z, r.w);
  out[0] = a.first;
  out[1] = a.second;
  out[2] = b.first;
  out[3] = b.second;
}

// Slots 0 .. slots-1 belong to the pixels of the global batch; the example's radius comes after them.
CFOL_HD float radius_l2(RngState rng, int64_t example, ImageLayout layout, BatchPart part, float eps) {
  const int64_t slots = part.whole * layout.channels * layout.quads();
  const Random4 r = random4(rng, Stream::kAttackStart, static_cast<uint64_t>(slots + part.first + example));
  // Uniform in the ball of dimension d: the radius is the d-th root of a uniform number.
  return eps * powf(uniform01(r.x) + 0.5f / 16777216.0f, 1.0f / static_cast<float>(layout.per_example()));
}

// A step of 0 does not change adv, even where the gradient is not finite: such a gradient has no direction, and its step is
// 0.
CFOL_HD float stepped(float adv, float along, float grad) { return along != 0.0f ? adv + along * grad : adv; }

CFOL_HD float safe_inverse(float norm) { return norm > 1e-12f ? 1.0f / norm : 0.0f; }

// The factor that brings a perturbation into the ball: 1 inside of it, otherwise eps / norm.
CFOL_HD float shrink_to(float norm, float eps) { return norm > eps ? eps / norm : 1.0f; }

namespace cpu {
void pgd_start(const float* x, float* adv, ImageLayout layout, BatchPart part, PerExample eps, RngState* rng, bool l2,
               int32_t* fault);
void pgd_step(float* adv, const float* x, const float* grad, ImageLayout layout, PerExample step, PerExample eps, bool l2,
              int32_t* fault);
}  // namespace cpu

namespace cuda {
const char* pgd_start(const float* x, float* adv, ImageLayout layout, BatchPart part, PerExample eps, RngState* rng, bool l2,
                      int32_t* fault, void* stream);
const char* pgd_step(float* adv, const float* x, const float* grad, ImageLayout layout, PerExample step, PerExample eps,
                     bool l2, int32_t* fault, void* stream);
}  // namespace cuda

}  // namespace cfol
