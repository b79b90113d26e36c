// What differs between the compilers of the shared headers: nvcc, g++, clang++ and g++ with the CUDA stand-in.
#pragma once

#if defined(__CUDACC__)
#define CFOL_HD __host__ __device__ __forceinline__
#else
#define CFOL_HD inline
#endif

// A hot CPU loop is compiled for several instruction sets and the best is chosen when the library is loaded. The sanitizers
// start before that choice can be made, and clang has no such attribute for every target: there the baseline is enough. A
// function that such a loop calls must be "always inline", or it would be compiled for the baseline only and not vectorise.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(CFOL_STANDALONE) && !defined(__CUDACC__)
#define CFOL_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CFOL_SIMD
#endif
