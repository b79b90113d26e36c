// A pseudo-random permutation of 0 .. n-1 of which any piece can be computed alone: the swap-or-not shuffle (Hoang, Morris
// and Rogaway, 2012). Each round pairs x with (key - x) mod n and swaps the pair or not by a keyed bit that is the
// same for both; it works for every n, with no table and no retries. The permutation of the state's step is followed by
// those of the next steps: an endless sequence, of which `start` is a place.
#pragma once

#include <cstdint>

#include "philox.h"

namespace cfol {

constexpr int kMaxShuffleBits = 40;  // n up to 2^40
constexpr int kMaxShuffleRounds = 6 * kMaxShuffleBits + 32;

// Six rounds per bit come from the paper's bound; the constant makes small n uniform as well: at n = 2, the slowest, a round
// swaps with probability 1/4 and the distance to uniform halves each time.
CFOL_HD int shuffle_rounds(int64_t n) {
  int bits = 0;
  while ((int64_t{1} << bits) < n) ++bits;
  return 6 * bits + 32;
}

// The part of one permutation that lies in a piece of the sequence.
struct ShufflePart {
  int64_t from, end;  // of the piece's elements
  int64_t offset;     // element i of the piece is element offset + i of the permutation
};

CFOL_HD ShufflePart shuffle_part(int64_t shuffle, int64_t n, int64_t start, int64_t count) {
  const int64_t offset = start - shuffle * n, from = offset < 0 ? -offset : 0, end = n - offset;
  return {from, end < count ? end : count, offset};
}

CFOL_HD RngState shuffle_state(RngState rng, int64_t shuffle) {
  return {rng.seed, rng.step + static_cast<uint64_t>(shuffle)};
}

struct ShuffleKey {
  int64_t pairing;  // in [0, n)
  uint64_t hash;
};

CFOL_HD ShuffleKey shuffle_key(RngState rng, int64_t n, int round) {
  const Random4 r = random4(rng, Stream::kPermutation, static_cast<uint64_t>(round));
  return {static_cast<int64_t>(uniform_below(join64(r.x, r.y), static_cast<uint64_t>(n))), join64(r.z, r.w)};
}

CFOL_HD int64_t swap_or_not(int64_t x, ShuffleKey key, int64_t n) {
  const int64_t difference = key.pairing - x, partner = difference >= 0 ? difference : difference + n;
  uint64_t bits = static_cast<uint64_t>(x > partner ? x : partner) ^ key.hash;  // the finaliser of MurmurHash3
  bits = (bits ^ (bits >> 33)) * 0xff51afd7ed558ccdull;
  bits = (bits ^ (bits >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return static_cast<int64_t>(bits) < 0 ? partner : x;
}

namespace cpu {
void permutation(const RngState* rng, int64_t n, const int64_t* start, int64_t count, int64_t* out);
}  // namespace cpu

namespace cuda {
const char* permutation(const RngState* rng, int64_t n, const int64_t* start, int64_t count, int64_t* out, void* stream);
}  // namespace cuda

}  // namespace cfol
