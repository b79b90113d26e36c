// Launching and block-wide primitives for the kernels. No torch header, and cudaLaunchKernelEx instead of <<<>>>, so that
// g++ parses a .cu file too (tests/emu runs them on the CPU).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../philox.h"

namespace cfol::cuda {

// The tests set fewer blocks, so that small arrays take every kernel more than once around its loop.
#if !defined(CFOL_MOST_BLOCKS)
#define CFOL_MOST_BLOCKS 2048
#endif

// Every kernel is bounded by this: __launch_bounds__(kThreads).
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kMostBlocks = CFOL_MOST_BLOCKS;
constexpr unsigned kAllLanes = 0xffffffffu;

// Null when the launch was accepted, else CUDA's error message.
template <int Threads = kThreads, class... Parameters, class... Arguments>
const char* launch(void (*kernel)(Parameters...), int64_t blocks, void* stream, Arguments... arguments) {
  static_assert(Threads == 1 || Threads == kThreads, "more than the launch bounds, or block_sum would miss warps");
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(Threads);
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Blocks for a loop in which a block takes one of n items: enough to fill a large GPU, never more than there is work.
inline int64_t blocks_of(int64_t n) { return n < 1 ? 1 : n > kMostBlocks ? kMostBlocks : n; }

// The same where a thread takes one of n items.
inline int64_t blocks_for(int64_t n) { return blocks_of((n + kThreads - 1) / kThreads); }

__device__ __forceinline__ int64_t first_element() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t grid_stride() { return int64_t{gridDim.x} * blockDim.x; }

// The sum over the block, in every thread, always in the same order. `shared` holds kWarps values.
template <class T>
__device__ T block_sum(T value, T* shared) {
  const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
  for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(kAllLanes, value, offset);
  __syncthreads();  // the previous call's values may still be read
  if (lane == 0) shared[warp] = value;
  __syncthreads();
  T total = shared[0];
  for (int i = 1; i < kWarps; ++i) total += shared[i];
  return total;
}

namespace {
__global__ void __launch_bounds__(kThreads) advance_rng_kernel(RngState* rng) { rng->step += 1; }
}  // namespace

// Advances a random state by one step. A kernel of its own: no block may advance the counter before every other block has
// read it.
inline const char* advance_rng(RngState* rng, void* stream) { return launch<1>(advance_rng_kernel, 1, stream, rng); }

}  // namespace cfol::cuda
