// Random numbers for consecutive slots: a loop of its own, so that the compiler makes several at once in vector registers.
#pragma once

#include "../philox.h"

namespace cfol::cpu {
// A copy in every file: each is compiled for the instruction sets that its own loops are.
namespace {

CFOL_SIMD(void, random_span, (RngState rng, Stream stream, int64_t first, int64_t n, Random2* out)) {
  for (int64_t i = 0; i < n; ++i) out[i] = random2(rng, stream, static_cast<uint64_t>(first + i));
}

}  // namespace
}  // namespace cfol::cpu
