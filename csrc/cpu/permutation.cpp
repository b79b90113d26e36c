#include "../permutation.h"

#include "../parallel.h"

namespace cfol::cpu {
namespace {

constexpr int64_t kGrain = 512;  // elements a thread takes at least; each goes through a hundred rounds
constexpr int64_t kChunk = 64;   // elements that go through the rounds together, in registers

CFOL_SIMD(void, shuffle_chunk, (const ShuffleKey* keys, int rounds, int64_t n, int64_t* x)) {
  for (int round = 0; round < rounds; ++round)
    for (int64_t i = 0; i < kChunk; ++i) x[i] = swap_or_not(x[i], keys[round], n);
}

}  // namespace

void permutation(const RngState* rng, int64_t n, const int64_t* start, int64_t count, int64_t* out) {
  ShuffleKey keys[kMaxShuffleRounds];
  const int rounds = shuffle_rounds(n);
  for (int64_t shuffle = *start / n; shuffle * n < *start + count; ++shuffle) {
    const RngState state = shuffle_state(*rng, shuffle);
    for (int round = 0; round < rounds; ++round) keys[round] = shuffle_key(state, n, round);
    const ShufflePart part = shuffle_part(shuffle, n, *start, count);
    parallel_for(part.end - part.from, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t first = part.from + begin; first < part.from + end; first += kChunk) {
        int64_t x[kChunk];
        const int64_t left = part.from + end - first, filled = left < kChunk ? left : kChunk;
        for (int64_t i = 0; i < kChunk; ++i) x[i] = i < filled ? part.offset + first + i : 0;
        shuffle_chunk(keys, rounds, n, x);
        for (int64_t i = 0; i < filled; ++i) out[first + i] = x[i];
      }
    });
  }
}

}  // namespace cfol::cpu
