// The exponential function that decides draws. Every compiler and device must return the same bits, which the library
// functions do not promise: so it is written here with explicit fused multiply-adds, and compilers contract nothing.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "platform.h"

namespace cfol {

CFOL_HD uint64_t bits_of(double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  return bits;
}

CFOL_HD double from_bits(uint64_t bits) {
  double v;
  memcpy(&v, &bits, sizeof v);
  return v;
}

// e^x for |x| <= 700, to one unit in the last place. x = n ln 2 + r with |r| <= ln 2 / 2; the Taylor series of e^r ends at
// r^13, where the rest is below 2^-57; 2^n is added to the exponent's bits.
CFOL_HD double exp_portable(double x) {
  const double shifter = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double shifted = fma(x, 0x1.71547652b82fep+0, shifter), n = shifted - shifter;
  double r = fma(n, -0x1.62e42fefa39efp-1, x);
  r = fma(n, -0x1.abc9e3b39803fp-56, r);
  double sum = 1.0 / 6227020800.0;
  sum = fma(sum, r, 1.0 / 479001600.0);
  sum = fma(sum, r, 1.0 / 39916800.0);
  sum = fma(sum, r, 1.0 / 3628800.0);
  sum = fma(sum, r, 1.0 / 362880.0);
  sum = fma(sum, r, 1.0 / 40320.0);
  sum = fma(sum, r, 1.0 / 5040.0);
  sum = fma(sum, r, 1.0 / 720.0);
  sum = fma(sum, r, 1.0 / 120.0);
  sum = fma(sum, r, 1.0 / 24.0);
  sum = fma(sum, r, 1.0 / 6.0);
  sum = fma(sum, r, 0.5);
  sum = fma(sum, r, 1.0);
  sum = fma(sum, r, 1.0);
  return from_bits(bits_of(sum) + (bits_of(shifted) << 52));
}

// The integer part of 0 <= v <= 2^52. A sum with 2^52 has bits that are as far from those of 2^52 as the nearest integer is
// from 0; where that is above v, 1 is subtracted. floor and a conversion are not used: not every instruction set has them
// for vectors.
CFOL_HD int64_t integer_part(double v) {
  const double rounded = v + 0x1p52;
  const uint64_t nearest = bits_of(rounded) - bits_of(0x1p52);
  return static_cast<int64_t>(nearest - (rounded - 0x1p52 > v ? 1 : 0));
}

// An integer from 0 to 2^52, as a double, which it fits; for vectors too.
CFOL_HD double exact_double(int64_t n) { return from_bits(static_cast<uint64_t>(n) + bits_of(0x1p52)) - 0x1p52; }

}  // namespace cfol
