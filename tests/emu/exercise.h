// Small programs for the sanitizers: each op has an exercise_<op>.cpp that calls its kernels with awkward sizes. The same
// source is compiled for the CPU kernels and for the emulated CUDA kernels.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if defined(CFOL_SIDE_CUDA)
#include <cuda_runtime.h>
#endif

namespace exercise {

inline void check(const char* error) {
  if (error == nullptr) return;
  std::printf("launch failed: %s\n", error);
  std::exit(4);
}

#if defined(CFOL_SIDE_CUDA)
inline void* stream() { return reinterpret_cast<void*>(emu::current_stream); }
#endif

using Function = void (*)();
struct Entry {
  const char* name;
  Function function;
};
inline std::vector<Entry>& all() {
  static std::vector<Entry> entries;
  return entries;
}
struct Register {
  Register(const char* name, Function function) { all().push_back({name, function}); }
};

}  // namespace exercise

#define EXERCISE(name)                                                     \
  static void exercise_##name();                                           \
  static const exercise::Register register_##name(#name, exercise_##name); \
  static void exercise_##name()

// RUN(kernel, arguments...): the CPU kernel, or the CUDA launcher with its stream and its error checked.
#if defined(CFOL_SIDE_CUDA)
#define RUN(kernel, ...) exercise::check(cfol::cuda::kernel(__VA_ARGS__, exercise::stream()))
#else
#define RUN(kernel, ...) cfol::cpu::kernel(__VA_ARGS__)
#endif
