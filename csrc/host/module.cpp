// What is not a tensor op, bound with pybind11: what the build contains, and the index ring between sampler and loader.
#include <pybind11/pybind11.h>

#include "../platform.h"

#ifndef CFOL_CUDA_ARCHITECTURES
#define CFOL_CUDA_ARCHITECTURES ""
#endif
#ifndef CFOL_CUDA_COMPILER
#define CFOL_CUDA_COMPILER ""
#endif

#if __has_include("index_ring.h")
void bind_index_ring(pybind11::module_& m);
#endif

PYBIND11_MODULE(_host, m) {
  m.doc() = "cfol_fast: host objects";
#if defined(CFOL_WITH_CUDA)
  m.attr("with_cuda") = true;
#else
  m.attr("with_cuda") = false;
#endif
  m.attr("cuda_architectures") = CFOL_CUDA_ARCHITECTURES;
  m.attr("cuda_compiler") = CFOL_CUDA_COMPILER;
#if defined(__clang__)
  m.attr("compiler") = "clang " __clang_version__;
#else
  m.attr("compiler") = "gcc " __VERSION__;
#endif
#if defined(CFOL_CHOOSES_INSTRUCTIONS)
  constexpr const char* kNames[] = {"SSE2", "AVX2", "AVX512"};
  m.attr("instruction_set") = kNames[cfol::instruction_set()];
#else
  m.attr("instruction_set") = "SSE2";
#endif
#if __has_include("index_ring.h")
  bind_index_ring(m);
#endif
}
