// Launching and block-wide primitives for the kernels. No torch header, and cudaLaunchKernelEx instead of <<<>>>, so that
// g++ parses a .cu file too (tests/emu runs them on the CPU).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../philox.h"

namespace cfol::cuda {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Null when the launch was accepted, else CUDA's error message.
template <class... Parameters, class... Arguments>
const char* launch(void (*kernel)(Parameters...), int64_t blocks, int threads, void* stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// Blocks for a grid-stride loop over n elements: enough to fill a large GPU, never more than there is work.
inline int64_t blocks_for(int64_t n, int64_t cap = 2048) {
  const int64_t blocks = (n + kThreads - 1) / kThreads;
  return blocks < 1 ? 1 : blocks > cap ? cap : blocks;
}

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

// Advances a random state by one step. A kernel of its own: no block may advance the counter before every other block has
// read it.
inline const char* advance_rng(RngState* rng, void* stream);

namespace {
__global__ void advance_rng_kernel(RngState* rng) { rng->step += 1; }
}  // namespace

inline const char* advance_rng(RngState* rng, void* stream) { return launch(advance_rng_kernel, 1, 1, stream, rng); }

}  // namespace cfol::cuda
