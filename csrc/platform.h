// What differs between the compilers of the shared headers: nvcc, g++, clang++ and g++ with the CUDA stand-in.
#pragma once

#if defined(__CUDACC__)
#define CFOL_HD __host__ __device__ __forceinline__
#else
#define CFOL_HD inline
#endif

// A hot CPU loop is compiled for several instruction sets: CFOL_SIMD(result, name, (parameters)) { body }. The best that the
// processor has is taken, or the best up to CFOL_MAX_CPU_ISA (instruction_set.h). The sanitizers' small programs and clang
// take the baseline. A function that such a loop calls must be "always inline", or it would be compiled for the baseline
// only and not vectorise. `Level` is the instruction set that a version is for: kBaseline, kAVX2 or kAVX512.
#define CFOL_ALWAYS_INLINE [[gnu::always_inline]] inline
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(CFOL_STANDALONE) && !defined(__CUDACC__)
#define CFOL_CHOOSES_INSTRUCTIONS
#include "instruction_set.h"
#define CFOL_SIMD(result, name, parameters)                                        \
  template <int Level>                                                             \
  CFOL_ALWAYS_INLINE result name##_at parameters;                                  \
  template <class... Given>                                                        \
  __attribute__((target("arch=x86-64-v4"))) result name##_avx512(Given... given) { \
    return name##_at<cfol::kAVX512>(given...);                                     \
  }                                                                                \
  template <class... Given>                                                        \
  __attribute__((target("arch=x86-64-v3"))) result name##_avx2(Given... given) {   \
    return name##_at<cfol::kAVX2>(given...);                                       \
  }                                                                                \
  template <class... Given>                                                        \
  result name(Given... given) {                                                    \
    const int level = cfol::instruction_set();                                     \
    if (level == cfol::kAVX512) return name##_avx512<Given...>(given...);          \
    if (level == cfol::kAVX2) return name##_avx2<Given...>(given...);              \
    return name##_at<cfol::kBaseline>(given...);                                   \
  }                                                                                \
  template <int Level>                                                             \
  CFOL_ALWAYS_INLINE result name##_at parameters
#else
namespace cfol {
enum InstructionSet { kBaseline, kAVX2, kAVX512 };
}
#define CFOL_SIMD(result, name, parameters)      \
  template <int Level>                           \
  inline result name##_at parameters;            \
  template <class... Given>                      \
  inline result name(Given... given) {           \
    return name##_at<cfol::kBaseline>(given...); \
  }                                              \
  template <int Level>                           \
  inline result name##_at parameters
#endif
