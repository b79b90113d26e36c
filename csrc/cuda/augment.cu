#include "../augment.h"

#include "atomic64.h"
#include "launch.h"

namespace cfol::cuda {
namespace {

// The pixel at (x, y) of the cropped and flipped image.
template <int Channels>
__device__ Pixel pixel_at(const View& view, int32_t x, int32_t y, int32_t width) {
  const int64_t from_y = view.top + y, from_x = view.left + (view.flip ? width - 1 - x : x);
  if (from_y < 0 || from_y >= view.image.height || from_x < 0 || from_x >= view.image.width) return kOpaque;
  const uint8_t* p = view.image.pixels + (from_y * view.image.width + from_x) * Channels;
  if constexpr (Channels == 1) return p[0] | kOpaque;
  return p[0] | (uint32_t{p[1]} << 8) | (uint32_t{p[2]} << 16) | kOpaque;
}

// This thread's share of the grey values.
template <int Channels>
__device__ GreySum grey_sum(const View& view, int32_t width, int32_t pixels) {
  const uint32_t limit = clip_limit(view.jitter.brightness);
  GreySum sum = {0, 0};
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < pixels; i += kThreads) {
    const Pixel pixel = pixel_at<Channels>(view, i % width, i / width, width);
    for (int channel = 0; channel < Channels; ++channel) {
      const uint32_t byte = byte_of(pixel, channel);
      const int weight = grey_weight(Channels, channel);
      if (byte > limit)
        sum.clipped += weight;
      else
        sum.bytes += weight * static_cast<int64_t>(byte);
    }
  }
  return sum;
}

// One block per image, two passes over it: the mean grey value where contrast needs it, then every output pixel from the
// source pixel it shows. One thread prepares the view for all: it needs double precision, which is slow on most GPUs.
template <int Channels, class Out>
__global__ void __launch_bounds__(kThreads)
    gather_augment_kernel(ImageStore images, const int64_t* __restrict__ idx, AugmentPlan plan, Frame frame,
                          Out* __restrict__ out, int32_t* fault) {
  __shared__ View view;
  __shared__ int64_t shared[kWarps];
  const int64_t example = blockIdx.x;
  const int32_t height = static_cast<int32_t>(frame.height), width = static_cast<int32_t>(frame.width);
  const int32_t pixels = height * width;
  if (threadIdx.x == 0) {
    int32_t bad = 0;
    const SourceImage image = locate(images, idx[example], &bad);
    view = view_of(image, parameters_for(plan, example, image, frame, &bad), frame);
    raise_faults(fault, bad);
  }
  __syncthreads();
  if (view.jitter.contrast != 1.0f) {
    GreySum sum = grey_sum<Channels>(view, width, pixels);
    sum.bytes = block_sum(sum.bytes, shared);
    sum.clipped = block_sum(sum.clipped, shared);
    if (threadIdx.x == 0) view.jitter.mean = grey_mean(sum, view.jitter.brightness, frame);
    __syncthreads();
  }
  Out* const first = out + example * Channels * pixels;
  const int64_t plane = frame.channels_last ? 0 : pixels;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < pixels; i += kThreads) {
    const int32_t from = view.rotates ? rotated(view.rotation, i % width, i / width, height, width) : i;
    Colour c = {0.0f, 0.0f, 0.0f};
    if (from >= 0) {
      c = colour_of<Channels>(pixel_at<Channels>(view, from % width, from / width, width));
      if (view.jitters) c = jittered<Channels>(c, view.jitter);
    }
    store_colour<Channels>(c, first, i, plane);
  }
}

__global__ void __launch_bounds__(kThreads)
    augment_parameters_kernel(ImageStore images, const int64_t* __restrict__ idx, AugmentPlan plan, Frame frame,
                              AugmentParameters* __restrict__ out, int32_t* fault) {
  int32_t bad = 0;
  for (int64_t i = first_element(); i < frame.batch; i += grid_stride())
    out[i] = parameters_for(plan, i, locate(images, idx[i], &bad), frame, &bad);
  raise_faults(fault, bad);
}

template <int Channels>
const char* launch_for(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, void* out, int32_t* fault,
                       void* stream) {
  if (frame.bfloat16)
    return launch(gather_augment_kernel<Channels, uint16_t>, frame.batch, stream, images, idx, plan, frame,
                  static_cast<uint16_t*>(out), fault);
  return launch(gather_augment_kernel<Channels, float>, frame.batch, stream, images, idx, plan, frame,
                static_cast<float*>(out), fault);
}

}  // namespace

const char* gather_augment(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, void* out, int32_t* fault,
                           void* stream) {
  if (frame.batch > 0) {
    const auto run = frame.channels == 1 ? launch_for<1> : launch_for<3>;
    const char* error = run(images, idx, plan, frame, out, fault, stream);
    if (error != nullptr) return error;
  }
  return plan.rng != nullptr ? advance_rng(plan.rng, stream) : nullptr;
}

const char* augment_parameters(ImageStore images, const int64_t* idx, AugmentPlan plan, Frame frame, AugmentParameters* out,
                               int32_t* fault, void* stream) {
  if (frame.batch == 0) return nullptr;
  return launch(augment_parameters_kernel, blocks_for(frame.batch), stream, images, idx, plan, frame, out, fault);
}

}  // namespace cfol::cuda
