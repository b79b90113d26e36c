// Which instruction set the CPU kernels use: the best of the processor, or less where CFOL_MAX_CPU_ISA says so (AVX512, AVX2
// or SSE2, read once). The results do not depend on it. It is there to measure and to test, on one machine, what another one
// does.
#pragma once

#include <cstdlib>
#include <cstring>

namespace cfol {

enum InstructionSet { kBaseline, kAVX2, kAVX512 };

inline InstructionSet best_of_processor() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2");
  if (!avx2) return kBaseline;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  return avx512 ? kAVX512 : kAVX2;
}

inline InstructionSet instruction_set() {
  static const InstructionSet chosen = [] {
    const InstructionSet best = best_of_processor();
    const char* most = std::getenv("CFOL_MAX_CPU_ISA");
    if (most == nullptr) return best;
    if (std::strcmp(most, "SSE2") == 0) return kBaseline;
    if (std::strcmp(most, "AVX2") == 0 && best > kAVX2) return kAVX2;
    return best;
  }();
  return chosen;
}

}  // namespace cfol
