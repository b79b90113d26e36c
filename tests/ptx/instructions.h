// What each instruction of PTX computes, named like it: translate.py writes one call for one instruction.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace ptx {

using pred = bool;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using b8 = uint8_t;
using b16 = uint16_t;
using b32 = uint32_t;
using b64 = uint64_t;
using f32 = float;
using f64 = double;

[[noreturn]] inline void fail(const std::string& what, int line) {
  throw std::runtime_error("ptx: " + what + ", line " + std::to_string(line) + " of the PTX");
}

template <int Bytes>
using Unsigned =
    std::conditional_t<Bytes == 1, u8, std::conditional_t<Bytes == 2, u16, std::conditional_t<Bytes == 4, u32, u64>>>;
template <class T>
using BitsOf = Unsigned<sizeof(T)>;
template <class T>
constexpr bool kFloat = std::is_floating_point_v<T>;
template <class T>
constexpr int kBits = 8 * sizeof(T);

// A register's bits as another type. A wider register gives its lower part; a wider target is filled as the source's type
// says (a load into a wider register).
template <class T, class S>
inline T as(S value) {
  if constexpr (std::is_same_v<T, S>)
    return value;
  else if constexpr (std::is_same_v<T, bool> || std::is_same_v<S, bool>)
    static_assert(sizeof(T) == 0, "a predicate is no number");
  else if constexpr (sizeof(T) == sizeof(S))
    return std::bit_cast<T>(value);
  else if constexpr (kFloat<T>)
    return std::bit_cast<T>(static_cast<BitsOf<T>>(std::bit_cast<BitsOf<S>>(value)));
  else if constexpr (kFloat<S>)
    return static_cast<T>(std::bit_cast<BitsOf<S>>(value));
  else
    return static_cast<T>(value);
}

// ---- arithmetic: integers wrap around, floats are rounded once
// ------------------------------------------------------------
#define PTX_WRAPPING(name, sign)                                           \
  template <class T>                                                       \
  inline T name(T a, T b) {                                                \
    if constexpr (kFloat<T>)                                               \
      return a sign b;                                                     \
    else                                                                   \
      return static_cast<T>(static_cast<u64>(a) sign static_cast<u64>(b)); \
  }
PTX_WRAPPING(add, +)
PTX_WRAPPING(sub, -)
PTX_WRAPPING(mul_lo, *)
#undef PTX_WRAPPING
template <class T>
inline T add_rn(T a, T b) {
  return a + b;
}
template <class T>
inline T sub_rn(T a, T b) {
  return a - b;
}
template <class T>
inline T mul(T a, T b) {
  return a * b;
}
template <class T>
inline T mul_rn(T a, T b) {
  return a * b;
}
template <class T>
inline T div_rn(T a, T b) {
  return a / b;
}
template <class T>
inline T fma_rn(T a, T b, T c) {
  return std::fma(a, b, c);
}
template <class T>
inline T sqrt_rn(T a) {
  return std::sqrt(a);
}
template <class T>
inline T rcp_rn(T a) {
  return T{1} / a;
}
// The hardware's is within one unit in the last place of this.
template <class T>
inline T rcp_approx_ftz(T a) {
  return T{1} / a;
}

template <class T>
using Wide = std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, s32, s64>,
                                std::conditional_t<sizeof(T) == 2, u32, u64>>;
template <class T>
inline Wide<T> mul_wide(T a, T b) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4);
  return static_cast<Wide<T>>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
}
template <class T>
inline T mul_hi(T a, T b) {
  using Twice = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<T>(static_cast<Twice>(a) * static_cast<Twice>(b) >> kBits<T>);
}
template <class T>
inline T mad_lo(T a, T b, T c) {
  return add(mul_lo(a, b), c);
}
template <class T>
inline Wide<T> mad_wide(T a, T b, Wide<T> c) {
  return add(mul_wide(a, b), c);
}

template <class T>
inline T div(T a, T b, int line) {
  static_assert(!kFloat<T>);
  if (b == 0) fail("a division by zero", line);
  return std::is_signed_v<T> && b == static_cast<T>(-1) ? sub(T{0}, a) : a / b;
}
template <class T>
inline T rem(T a, T b, int line) {
  static_assert(!kFloat<T>);
  if (b == 0) fail("the remainder of a division by zero", line);
  return std::is_signed_v<T> && b == static_cast<T>(-1) ? T{0} : a % b;
}

template <class T>
inline T neg(T a) {
  if constexpr (kFloat<T>)
    return std::bit_cast<T>(static_cast<BitsOf<T>>(std::bit_cast<BitsOf<T>>(a) ^ BitsOf<T>{1} << (kBits<T> - 1)));
  else
    return sub(T{0}, a);
}
template <class T>
inline T abs(T a) {
  if constexpr (kFloat<T>)
    return std::fabs(a);
  else
    return a < 0 ? neg(a) : a;
}
// Of a NaN and a number the number; of two zeros the one that the sign orders so.
template <class T>
inline T min(T a, T b) {
  if constexpr (kFloat<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
  } else {
    return b < a ? b : a;
  }
}
template <class T>
inline T max(T a, T b) {
  if constexpr (kFloat<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
    return a > b || (a == b && std::signbit(b)) ? a : b;
  } else {
    return a < b ? b : a;
  }
}

// ---- bits ---------------------------------------------------------------------------------------------------------------
#define PTX_BITS(name, sign)         \
  template <class T>                 \
  inline T name(T a, T b) {          \
    return static_cast<T>(a sign b); \
  }
PTX_BITS(and_, &)
PTX_BITS(or_, |)
PTX_BITS(xor_, ^)
#undef PTX_BITS
template <class T>
inline T not_(T a) {
  if constexpr (std::is_same_v<T, bool>)
    return !a;
  else
    return static_cast<T>(~a);
}
template <class T>
inline T shl(T a, u32 n) {
  return n >= kBits<T> ? T{0} : static_cast<T>(static_cast<u64>(a) << n);
}
template <class T>
inline T shr(T a, u32 n) {
  if (n >= kBits<T>) return std::is_signed_v<T> && a < 0 ? static_cast<T>(-1) : T{0};
  return static_cast<T>(a >> n);
}
inline u32 shf_l_wrap(u32 low, u32 high, u32 n) { return static_cast<u32>((u64{high} << 32 | low) << (n & 31) >> 32); }
inline u32 shf_r_wrap(u32 low, u32 high, u32 n) { return static_cast<u32>((u64{high} << 32 | low) >> (n & 31)); }
template <class T>
inline T shf_l_wrap(T low, T high, u32 n) {
  return shf_l_wrap(u32{low}, u32{high}, n);
}
template <class T>
inline T shf_r_wrap(T low, T high, u32 n) {
  return shf_r_wrap(u32{low}, u32{high}, n);
}
// Four bytes out of eight; bit 3 of a selector spreads the byte's sign.
template <class T>
inline T prmt(T a, T b, T selectors) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 selector = selectors >> 4 * i & 15;
    const u32 byte = static_cast<u32>(bytes >> 8 * (selector & 7) & 255);
    result |= (selector & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
  }
  return result;
}
template <class T>
inline T bfi(T from, T into, u32 position, u32 length) {
  position &= 255, length &= 255;
  for (u32 i = 0; i < length && position + i < kBits<T>; ++i)
    into = static_cast<T>((into & ~(T{1} << (position + i))) | (from >> i & 1) << (position + i));
  return into;
}
template <class T>
inline T bfe(T from, u32 position, u32 length) {
  static_assert(std::is_unsigned_v<T>, "a signed field spreads its sign");
  position &= 255, length &= 255;
  T result = 0;
  for (u32 i = 0; i < length && position + i < kBits<T>; ++i) result |= static_cast<T>(from >> (position + i) & 1) << i;
  return result;
}

// ---- comparisons: one with a NaN is false, but for those whose name ends in u
// -------------------------------------------------
template <class T>
inline bool unordered(T a, T b) {
  if constexpr (kFloat<T>)
    return std::isnan(a) || std::isnan(b);
  else
    return false;
}
template <class T>
inline bool eq(T a, T b) {
  return a == b;
}
template <class T>
inline bool ne(T a, T b) {
  return !unordered(a, b) && a != b;
}
template <class T>
inline bool lt(T a, T b) {
  return a < b;
}
template <class T>
inline bool le(T a, T b) {
  return a <= b;
}
template <class T>
inline bool gt(T a, T b) {
  return a > b;
}
template <class T>
inline bool ge(T a, T b) {
  return a >= b;
}
template <class T>
inline bool equ(T a, T b) {
  return unordered(a, b) || a == b;
}
template <class T>
inline bool neu(T a, T b) {
  return a != b;
}
template <class T>
inline bool ltu(T a, T b) {
  return unordered(a, b) || a < b;
}
template <class T>
inline bool leu(T a, T b) {
  return unordered(a, b) || a <= b;
}
template <class T>
inline bool gtu(T a, T b) {
  return unordered(a, b) || a > b;
}
template <class T>
inline bool geu(T a, T b) {
  return unordered(a, b) || a >= b;
}
template <class T>
inline bool num(T a, T b) {
  return !unordered(a, b);
}
template <class T>
inline bool nan(T a, T b) {
  return unordered(a, b);
}
template <class T>
inline T selp(T a, T b, bool first) {
  return first ? a : b;
}

// ---- conversions
// ----------------------------------------------------------------------------------------------------------
template <class T, class S>
inline T cvt(S a) {
  return static_cast<T>(a);
}
template <class T, class S>
inline T cvt_rn(S a) {
  return static_cast<T>(a);
}
// A float that is whole already: saturates; NaN becomes 0, in 64 bits the smallest number.
template <class T, class S>
inline T whole(S a) {
  if constexpr (kFloat<T>) {
    return static_cast<T>(a);
  } else {
    if (std::isnan(a)) return sizeof(T) == 8 || sizeof(S) == 8 ? static_cast<T>(u64{1} << (kBits<T> - 1)) : T{0};
    if (a < static_cast<S>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
    return a >= std::ldexp(S{1}, std::numeric_limits<T>::digits) ? std::numeric_limits<T>::max() : static_cast<T>(a);
  }
}
template <class T, class S>
inline T cvt_rni(S a) {
  return whole<T>(std::nearbyint(a));
}
template <class T, class S>
inline T cvt_rzi(S a) {
  return whole<T>(std::trunc(a));
}
template <class T, class S>
inline T cvt_rmi(S a) {
  return whole<T>(std::floor(a));
}
template <class T, class S>
inline T cvt_rpi(S a) {
  return whole<T>(std::ceil(a));
}

}  // namespace ptx
