#include "../pgd.h"

#include "atomic64.h"
#include "launch.h"

namespace cfol::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    start_linf_kernel(const float* __restrict__ x, float* __restrict__ adv, ImageLayout layout, BatchPart part,
                      PerExample eps, const RngState* __restrict__ rng, int32_t* fault) {
  const int64_t quads = layout.quads(), slots = layout.batch * layout.channels * quads;
  const int64_t first_slot = part.first * layout.channels * quads;
  bool bad = false;
  for (int64_t slot = first_element(); slot < slots; slot += grid_stride()) {
    const int64_t plane = slot / quads, first_pixel = 4 * (slot % quads);
    const int64_t example = plane / layout.channels, channel = plane % layout.channels;
    const float radius = value_for(eps, example, &bad);
    const Random4 r = random4(*rng, Stream::kAttackStart, static_cast<uint64_t>(first_slot + slot));
    const uint32_t bits[4] = {r.x, r.y, r.z, r.w};
    for (int j = 0; j < 4; ++j) {
      if (first_pixel + j >= layout.plane) break;
      const int64_t i = layout.offset(example, channel, first_pixel + j);
      adv[i] = start_linf(x[i], uniform01(bits[j]), radius);
    }
  }
  raise_faults(fault, bad ? int32_t{kFaultRadius} : 0);
}

// Calls body(offset, normal number) for this thread's share of an example.
template <class Body>
__device__ void for_each_normal(ImageLayout layout, BatchPart part, const RngState* rng, int64_t example, const Body& body) {
  const int64_t slots = layout.channels * layout.quads();
  for (int64_t slot = threadIdx.x; slot < slots; slot += blockDim.x) {
    const int64_t channel = slot / layout.quads(), first_pixel = 4 * (slot % layout.quads());
    float normal[4];
    const int64_t drawn = (part.first + example) * slots + slot;
    normal4(random4(*rng, Stream::kAttackStart, static_cast<uint64_t>(drawn)), normal);
    for (int j = 0; j < 4; ++j)
      if (first_pixel + j < layout.plane) body(layout.offset(example, channel, first_pixel + j), normal[j]);
  }
}

// One block per example: the norm first, then the same random numbers again. Drawing twice is cheaper than storing them.
__global__ void __launch_bounds__(kThreads)
    start_l2_kernel(const float* __restrict__ x, float* __restrict__ adv, ImageLayout layout, BatchPart part, PerExample eps,
                    const RngState* __restrict__ rng, int32_t* fault) {
  __shared__ float shared[kWarps], scale;
  bool bad = false;
  for (int64_t example = blockIdx.x; example < layout.batch; example += gridDim.x) {
    float squares = 0.0f;
    for_each_normal(layout, part, rng, example, [&](int64_t, float v) { squares += v * v; });
    const float norm = sqrtf(block_sum(squares, shared));
    if (threadIdx.x == 0) scale = radius_l2(*rng, example, layout, part, value_for(eps, example, &bad)) * safe_inverse(norm);
    __syncthreads();
    for_each_normal(layout, part, rng, example,
                    [&](int64_t i, float v) { adv[i] = clamp_to(x[i] + scale * v, 0.0f, 1.0f); });
  }
  raise_faults(fault, bad ? int32_t{kFaultRadius} : 0);
}

// Width 4: one 16-byte load per array. Needs 16-byte alignment and, with a radius for each example, examples of 4*m
// elements.
template <int Width>
__global__ void __launch_bounds__(kThreads)
    step_linf_kernel(float* adv, const float* __restrict__ x, const float* __restrict__ grad, ImageLayout layout,
                     PerExample step, PerExample eps, int32_t* fault) {
  const int64_t per_example = layout.per_example(), n = layout.batch * per_example;
  bool bad = false;
  // Unrolled four times, as the compiler would, registers are spilled.
#pragma unroll 2
  for (int64_t i = first_element() * Width; i < n; i += grid_stride() * Width) {
    const int64_t example = step.each != nullptr || eps.each != nullptr ? i / per_example : 0;
    const float a = value_for(step, example, &bad), radius = value_for(eps, example, &bad);
    if (Width == 4 && i + 4 <= n) {
      float4 v = *reinterpret_cast<const float4*>(adv + i);
      const float4 xs = *reinterpret_cast<const float4*>(x + i), g = *reinterpret_cast<const float4*>(grad + i);
      v.x = step_linf(v.x, xs.x, g.x, a, radius);
      v.y = step_linf(v.y, xs.y, g.y, a, radius);
      v.z = step_linf(v.z, xs.z, g.z, a, radius);
      v.w = step_linf(v.w, xs.w, g.w, a, radius);
      *reinterpret_cast<float4*>(adv + i) = v;
    } else {
      for (int64_t j = i; j < n && j < i + Width; ++j) adv[j] = step_linf(adv[j], x[j], grad[j], a, radius);
    }
  }
  raise_faults(fault, bad ? int32_t{kFaultRadius} : 0);
}

// One block per example: the gradient's norm, the perturbation's norm, the write.
__global__ void __launch_bounds__(kThreads)
    step_l2_kernel(float* adv, const float* __restrict__ x, const float* __restrict__ grad, ImageLayout layout,
                   PerExample step, PerExample eps, int32_t* fault) {
  __shared__ float shared[kWarps];
  const int64_t n = layout.per_example();
  bool bad = false;
  for (int64_t example = blockIdx.x; example < layout.batch; example += gridDim.x) {
    float* a = adv + example * n;
    const float *xs = x + example * n, *g = grad + example * n;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) squares += g[i] * g[i];
    const float along = value_for(step, example, &bad) * safe_inverse(sqrtf(block_sum(squares, shared)));
    squares = 0.0f;
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const float delta = stepped(a[i], along, g[i]) - xs[i];
      squares += delta * delta;
    }
    const float keep = shrink_to(sqrtf(block_sum(squares, shared)), value_for(eps, example, &bad));
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      a[i] = clamp_to(xs[i] + keep * (stepped(a[i], along, g[i]) - xs[i]), 0.0f, 1.0f);
  }
  raise_faults(fault, bad ? int32_t{kFaultRadius} : 0);
}

}  // namespace

const char* pgd_start(const float* x, float* adv, ImageLayout layout, BatchPart part, PerExample eps, RngState* rng, bool l2,
                      int32_t* fault, void* stream) {
  if (layout.batch * layout.per_example() > 0) {
    const int64_t slots = layout.batch * layout.channels * layout.quads();
    const char* error = l2 ? launch(start_l2_kernel, blocks_of(layout.batch), stream, x, adv, layout, part, eps, rng, fault)
                           : launch(start_linf_kernel, blocks_for(slots), stream, x, adv, layout, part, eps, rng, fault);
    if (error != nullptr) return error;
  }
  return advance_rng(rng, stream);
}

const char* pgd_step(float* adv, const float* x, const float* grad, ImageLayout layout, PerExample step, PerExample eps,
                     bool l2, int32_t* fault, void* stream) {
  const int64_t per_example = layout.per_example(), n = layout.batch * per_example;
  if (n == 0) return nullptr;
  if (l2) return launch(step_l2_kernel, blocks_of(layout.batch), stream, adv, x, grad, layout, step, eps, fault);
  const auto address = [](const float* p) { return reinterpret_cast<uintptr_t>(p); };
  const bool aligned = ((address(adv) | address(x) | address(grad)) & 15) == 0;
  const bool uniform = step.each == nullptr && eps.each == nullptr;
  if (aligned && (uniform || per_example % 4 == 0))
    return launch(step_linf_kernel<4>, blocks_for((n + 3) / 4), stream, adv, x, grad, layout, step, eps, fault);
  return launch(step_linf_kernel<1>, blocks_for(n), stream, adv, x, grad, layout, step, eps, fault);
}

}  // namespace cfol::cuda
