// Atomics on int64_t, which is not one of the types that CUDA's functions are declared for; and the flag word of faults.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cfol::cuda {

__device__ __forceinline__ void add64(int64_t* address, int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}

__device__ __forceinline__ void raise_to64(int64_t* address, int64_t value) {
  atomicMax(reinterpret_cast<long long*>(address), static_cast<long long>(value));
}

__device__ __forceinline__ int64_t exchange64(int64_t* address, int64_t value) {
  return static_cast<int64_t>(
      atomicExch(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value)));
}

__device__ __forceinline__ void raise_faults(int32_t* fault, int32_t flags) {
  if (flags != 0 && fault != nullptr) atomicOr(fault, flags);
}

}  // namespace cfol::cuda
