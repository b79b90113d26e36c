#include "../pgd.h"

#include "../parallel.h"

namespace cfol::cpu {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements a thread takes at least
// What pixels lie between, read at run time: of constants GCC makes compares and blends instead of a minimum and a maximum.
const volatile float kPixels[2] = {0.0f, 1.0f};

CFOL_SIMD(void, step_span, (float* adv, const float* x, const float* grad, int64_t n, float step, float eps)) {
  const float low = kPixels[0], high = kPixels[1];
  for (int64_t i = 0; i < n; ++i) adv[i] = step_linf(adv[i], x[i], grad[i], step, eps, low, high);
}

// Calls body(example, begin, end) for the pieces of [begin, end) that belong to one example.
template <class Body>
void for_each_example(int64_t begin, int64_t end, int64_t per_example, const Body& body) {
  while (begin < end) {
    const int64_t example = begin / per_example;
    const int64_t stop = (example + 1) * per_example < end ? (example + 1) * per_example : end;
    body(example, begin, stop);
    begin = stop;
  }
}

// Four pixels of each channel share a Philox slot; a whole quad of pixels is handled at once in either layout.
void start_linf_planes(const float* x, float* adv, ImageLayout layout, BatchPart part, PerExample eps, RngState rng,
                       int64_t begin, int64_t end) {
  bool bad = false;
  const int64_t quads = layout.quads(), first = part.first * layout.channels;
  for (int64_t plane = begin; plane < end; ++plane) {  // one plane = one channel of one example
    const int64_t example = plane / layout.channels, channel = plane % layout.channels;
    const float radius = value_for(eps, example, &bad);
    for (int64_t quad = 0; quad < quads; ++quad) {
      const Random4 r = random4(rng, Stream::kAttackStart, static_cast<uint64_t>((first + plane) * quads + quad));
      const uint32_t bits[4] = {r.x, r.y, r.z, r.w};
      for (int64_t j = 0; j < 4 && 4 * quad + j < layout.plane; ++j) {
        const int64_t i = layout.offset(example, channel, 4 * quad + j);
        adv[i] = start_linf(x[i], uniform01(bits[j]), radius);
      }
    }
  }
}

// Calls body(offset, normal number) for every element of an example.
template <class Body>
void for_each_normal(ImageLayout layout, BatchPart part, RngState rng, int64_t example, const Body& body) {
  for (int64_t channel = 0; channel < layout.channels; ++channel) {
    const int64_t first_slot = ((part.first + example) * layout.channels + channel) * layout.quads();
    for (int64_t quad = 0; quad < layout.quads(); ++quad) {
      float normal[4];
      normal4(random4(rng, Stream::kAttackStart, static_cast<uint64_t>(first_slot + quad)), normal);
      for (int64_t j = 0; j < 4 && 4 * quad + j < layout.plane; ++j)
        body(layout.offset(example, channel, 4 * quad + j), normal[j]);
    }
  }
}

void start_l2_example(const float* x, float* adv, ImageLayout layout, BatchPart part, float eps, RngState rng,
                      int64_t example) {
  double squares = 0;
  for_each_normal(layout, part, rng, example, [&](int64_t, float v) { squares += double{v} * v; });
  const float scale = radius_l2(rng, example, layout, part, eps) * safe_inverse(static_cast<float>(std::sqrt(squares)));
  for_each_normal(layout, part, rng, example, [&](int64_t i, float v) { adv[i] = clamp_to(x[i] + scale * v, 0.0f, 1.0f); });
}

void step_l2_example(float* adv, const float* x, const float* grad, int64_t n, float step, float eps) {
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += double{grad[i]} * grad[i];
  const float along = step * safe_inverse(static_cast<float>(std::sqrt(squares)));
  squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float delta = stepped(adv[i], along, grad[i]) - x[i];
    squares += double{delta} * delta;
  }
  const float keep = shrink_to(static_cast<float>(std::sqrt(squares)), eps);
  for (int64_t i = 0; i < n; ++i) adv[i] = clamp_to(x[i] + keep * (stepped(adv[i], along, grad[i]) - x[i]), 0.0f, 1.0f);
}

}  // namespace

void pgd_start(const float* x, float* adv, ImageLayout layout, BatchPart part, PerExample eps, RngState* rng, bool l2,
               int32_t*) {
  const RngState state = *rng;
  if (l2) {
    parallel_for(layout.batch, 1 + kGrain / (1 + layout.per_example()), [&](int64_t begin, int64_t end) {
      bool bad = false;
      for (int64_t example = begin; example < end; ++example)
        start_l2_example(x, adv, layout, part, value_for(eps, example, &bad), state, example);
    });
  } else {
    parallel_for(layout.batch * layout.channels, 1 + kGrain / (1 + layout.plane),
                 [&](int64_t begin, int64_t end) { start_linf_planes(x, adv, layout, part, eps, state, begin, end); });
  }
  rng->step += 1;
}

void pgd_step(float* adv, const float* x, const float* grad, ImageLayout layout, PerExample step, PerExample eps, bool l2,
              int32_t*) {
  const int64_t per_example = layout.per_example();
  const auto piece = [&](int64_t example, int64_t begin, int64_t end) {
    bool bad = false;  // stays false: bad values were refused before
    const float a = value_for(step, example, &bad), r = value_for(eps, example, &bad);
    if (l2)
      step_l2_example(adv + begin, x + begin, grad + begin, end - begin, a, r);
    else
      step_span(adv + begin, x + begin, grad + begin, end - begin, a, r);
  };
  if (l2) {
    parallel_for(layout.batch, 1 + kGrain / (1 + per_example), [&](int64_t begin, int64_t end) {
      for (int64_t example = begin; example < end; ++example)
        piece(example, example * per_example, (example + 1) * per_example);
    });
  } else {
    // With the same step and radius for all examples the batch is one long span.
    const bool uniform = step.each == nullptr && eps.each == nullptr;
    parallel_for(layout.batch * per_example, kGrain, [&](int64_t begin, int64_t end) {
      if (uniform)
        piece(0, begin, end);
      else
        for_each_example(begin, end, per_example, piece);
    });
  }
}

}  // namespace cfol::cpu
