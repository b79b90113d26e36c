// Counter-based randomness: Philox4x32-10 (Salmon et al., 2011). A number depends on (seed, stream, step, slot) alone, never
// on how many threads, blocks or ranks draw, so that the CPU and a GPU see the same numbers and a run can be resumed
// exactly.
#pragma once

#include <cstdint>

#include "platform.h"

namespace cfol {

// Every use of randomness has its own stream; two uses that start from the same seed never share a number.
enum class Stream : uint64_t { kClassDraw = 1, kExampleDraw = 2, kPermutation = 3, kAttackStart = 4, kAugment = 5 };

// A random state, as it is stored in an int64 tensor on the device.
struct RngState {
  uint64_t seed;
  uint64_t step;
};

struct Random4 {
  uint32_t x, y, z, w;
};

CFOL_HD Random4 philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// Four numbers for one slot. The counter's low word holds step and stream (2^56 steps), its high word the slot.
CFOL_HD Random4 random4(RngState rng, Stream stream, uint64_t slot) {
  return philox4x32(rng.seed, (rng.step << 8) | static_cast<uint64_t>(stream), slot);
}

CFOL_HD uint64_t join64(uint32_t high, uint32_t low) { return (uint64_t{high} << 32) | low; }

// The same bits as two numbers of 64 bits, as a draw needs them.
struct Random2 {
  uint64_t first, second;
};

CFOL_HD Random2 random2(RngState rng, Stream stream, uint64_t slot) {
  const Random4 r = random4(rng, stream, slot);
  return {join64(r.x, r.y), join64(r.z, r.w)};
}

CFOL_HD float uniform01(uint32_t bits) { return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f); }  // [0, 1), exact

// An integer in [0, n) from 64 random bits; the bias is below n / 2^64.
CFOL_HD uint64_t uniform_below(uint64_t bits, uint64_t n) {
  return static_cast<uint64_t>((static_cast<unsigned __int128>(bits) * n) >> 64);
}

}  // namespace cfol
