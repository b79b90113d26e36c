#include "../exp3.h"

#include "atomic64.h"
#include "launch.h"

namespace cfol::cuda {
namespace {

// The largest value over the block, in every thread. `shared` holds kWarps values.
__device__ double block_largest(double value, double* shared) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  for (int offset = 16; offset > 0; offset >>= 1) {
    const double other = __shfl_xor_sync(kAllLanes, value, offset);
    value = other > value ? other : value;
  }
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  value = shared[0];
  for (int i = 1; i < kWarps; ++i) value = shared[i] > value ? shared[i] : value;
  return value;
}

__device__ double largest_weight(const double* w, int64_t k, double* shared) {
  double largest = -HUGE_VAL;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) largest = w[i] > largest ? w[i] : largest;
  return block_largest(largest, shared);
}

// The sum of value over the threads up to and including this one. `shared` holds kWarps values.
__device__ int64_t block_prefix_sum(int64_t value, int64_t* shared) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int64_t below = __shfl_up_sync(kAllLanes, value, offset);
    if (lane >= offset) value += below;
  }
  __syncthreads();  // the previous call's values may still be read
  if (lane == 31) shared[warp] = value;
  __syncthreads();
  for (int i = 0; i < warp; ++i) value += shared[i];
  return value;
}

// One block: a scan over at most 65,536 classes, and waiting for other blocks would cost more than it gains. A thread
// handles the same classes in every pass, so it may keep the softmax's weights in cdf.
__global__ void __launch_bounds__(kThreads)
    distribution_kernel(const double* __restrict__ w, const double* __restrict__ base, int64_t k, double gamma,
                        double* __restrict__ p, double* __restrict__ q, int64_t* __restrict__ cdf) {
  __shared__ double shared_double[kWarps];
  __shared__ int64_t shared_int[kWarps];
  __shared__ int64_t tile_end;
  const double largest = largest_weight(w, k, shared_double);
  int64_t units = 0;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) units += cdf[i] = softmax_units(w[i], largest);
  const double sum = static_cast<double>(block_sum(units, shared_int));
  int64_t before = 0;  // the cdf's value in front of this tile
  for (int64_t first = 0; first < k; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    int64_t mine = 0;
    if (i < k) {
      const double softmax = static_cast<double>(cdf[i]) / sum;
      p[i] = mixed(base[i], softmax, gamma);
      if (q != nullptr) q[i] = softmax;
      mine = cdf_units(p[i]);
    }
    const int64_t upto = before + block_prefix_sum(mine, shared_int);
    if (i < k) cdf[i] = upto;
    if (threadIdx.x == kThreads - 1) tile_end = upto;
    __syncthreads();
    before = tile_end;
  }
}

__global__ void __launch_bounds__(kThreads)
    draw_kernel(const int64_t* __restrict__ cdf, int64_t k, ClassMembers classes, const RngState* __restrict__ rng,
                int64_t n, int64_t* __restrict__ idx, int64_t* __restrict__ y) {
  for (int64_t i = first_element(); i < n; i += grid_stride()) {
    const ClassDraw draw = draw_example(cdf, k, classes, random2(*rng, Stream::kClassDraw, static_cast<uint64_t>(i)));
    idx[i] = draw.index;
    y[i] = draw.label;
  }
}

__global__ void __launch_bounds__(kThreads) clear_kernel(int64_t* __restrict__ sums, int64_t k) {
  for (int64_t i = first_element(); i < k; i += grid_stride()) sums[i] = 0;
}

__global__ void __launch_bounds__(kThreads)
    collect_kernel(const double* __restrict__ p, int64_t k, const int64_t* __restrict__ y, const float* __restrict__ loss,
                   int64_t n, int64_t* __restrict__ sums, int32_t* fault) {
  int32_t flags = 0;
  for (int64_t i = first_element(); i < n; i += grid_stride()) {
    if (!loss_is_valid(loss[i])) flags |= kFaultLoss;
    if (y[i] < 0 || y[i] >= k)
      flags |= kFaultLabel;
    else if (!chance_is_valid(p[y[i]]))
      flags |= kFaultChance;
    else
      add64(sums + y[i], loss_units(clamped_loss(loss[i])));
  }
  raise_faults(fault, flags);
}

// Weights that grew too large are shifted, which does not change the softmax. For the threads of one block.
__device__ void keep_small(double* w, int64_t k, double* shared) {
  const double largest = largest_weight(w, k, shared);
  if (largest > kLargestWeight)
    for (int64_t i = threadIdx.x; i < k; i += kThreads) w[i] -= largest;
}

// One block, because all classes must have gained before the largest is known.
__global__ void __launch_bounds__(kThreads) gain_kernel(double* __restrict__ w, const double* __restrict__ p,
                                                        const int64_t* __restrict__ sums, int64_t k, double eta) {
  __shared__ double shared[kWarps];
  for (int64_t i = threadIdx.x; i < k; i += kThreads)
    if (sums[i] != 0) w[i] += gain(sums[i], eta, p[i]);
  keep_small(w, k, shared);
}

// One block, because every class's baseline takes the mean of all.
__global__ void __launch_bounds__(kThreads)
    learn_kernel(double* __restrict__ w, const double* __restrict__ p, int64_t k, const int64_t* __restrict__ tally,
                 int64_t* __restrict__ seen, int64_t rows, double eta, int32_t* fault) {
  __shared__ double shared_double[kWarps];
  __shared__ int64_t shared_int[kWarps];
  const bool one = rows == 1;
  int64_t sums[4] = {0, 0, 0, 0};
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    sums[0] += tally[2 * i];
    sums[1] += tally[2 * i + 1];
  }
  for (int64_t i = threadIdx.x; i < rows; i += kThreads) {
    sums[2] += seen[2 * i];
    sums[3] += seen[2 * i + 1];
  }
  for (int64_t& sum : sums) sum = block_sum(sum, shared_int);
  const int64_t mean = mean_units(sums[2], sums[3]);
  int32_t flags = 0;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    const int64_t* drawn = tally + 2 * i;
    int64_t* row = seen + 2 * i;
    const int64_t baseline = one ? mean : baseline_units(row, mean);
    if (!one) w[i] += common_gain(static_cast<double>(sums[0]), baseline, eta);
    if (drawn[0] == 0) continue;
    if (!chance_is_valid(p[i])) {
      flags |= kFaultChance;
      continue;
    }
    w[i] += own_gain(drawn, baseline, eta, p[i]);
    if (!one) remember(row, drawn[0], drawn[1]);
  }
  if (one && threadIdx.x == 0) remember(seen, sums[0], sums[1]);
  raise_faults(fault, flags);
  keep_small(w, k, shared_double);
}

}  // namespace

const char* exp3_distribution(const double* w, const double* base, int64_t k, double gamma, double* p, double* q,
                              int64_t* cdf, void* stream) {
  return launch(distribution_kernel, 1, stream, w, base, k, gamma, p, q, cdf);
}

const char* exp3_draw(const int64_t* cdf, int64_t k, ClassMembers classes, RngState* rng, int64_t n, int64_t* idx,
                      int64_t* y, void* stream) {
  if (n > 0) {
    const char* error = launch(draw_kernel, blocks_for(n), stream, cdf, k, classes, rng, n, idx, y);
    if (error != nullptr) return error;
  }
  return advance_rng(rng, stream);
}

const char* exp3_update(double* w, const double* p, int64_t k, const int64_t* y, const float* loss, int64_t n, double eta,
                        int64_t* sums, int32_t* fault, void* stream) {
  const char* error = launch(clear_kernel, blocks_for(k), stream, sums, k);
  if (error == nullptr && n > 0) error = launch(collect_kernel, blocks_for(n), stream, p, k, y, loss, n, sums, fault);
  if (error == nullptr) error = launch(gain_kernel, 1, stream, w, p, sums, k, eta);
  return error;
}

const char* exp3_learn(double* w, const double* p, int64_t k, const int64_t* tally, int64_t* seen, int64_t rows, double eta,
                       int32_t* fault, void* stream) {
  return launch(learn_kernel, 1, stream, w, p, k, tally, seen, rows, eta, fault);
}

}  // namespace cfol::cuda
