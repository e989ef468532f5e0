// What differs between instruction sets, and only that: sixteen floats, and sums of products of bf16 pairs.
//
// The compiler's flags choose: AVX512-BF16, AVX512F or AVX2. Every sum of products is one chain in a fixed order, so a
// result depends on the build, and on nothing else. The build must not contract a * b + c by itself
// (-ffp-contract=off): what is fused says so.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define INLINE static inline __attribute__((always_inline))

using bf16 = uint16_t;

constexpr int LANES = 16;

#if defined(__AVX512F__)

using Wide = __m512;

INLINE Wide all(float value) { return _mm512_set1_ps(value); }
INLINE Wide load(const float* from) { return _mm512_loadu_ps(from); }
INLINE void store(float* to, Wide x) { _mm512_storeu_ps(to, x); }
INLINE Wide add(Wide a, Wide b) { return _mm512_add_ps(a, b); }
INLINE Wide subtract(Wide a, Wide b) { return _mm512_sub_ps(a, b); }
INLINE Wide multiply(Wide a, Wide b) { return _mm512_mul_ps(a, b); }
INLINE Wide divide(Wide a, Wide b) { return _mm512_div_ps(a, b); }
INLINE Wide larger(Wide a, Wide b) { return _mm512_max_ps(a, b); }
INLINE Wide smaller(Wide a, Wide b) { return _mm512_min_ps(a, b); }
INLINE Wide fused(Wide a, Wide b, Wide c) { return _mm512_fmadd_ps(a, b, c); }           // a * b + c
INLINE Wide fused_negative(Wide a, Wide b, Wide c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
INLINE Wide nearest(Wide x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE Wide times_power_of_two(Wide x, Wide n) { return _mm512_scalef_ps(x, n); }
INLINE float sum(Wide x) { return _mm512_reduce_add_ps(x); }
INLINE float largest(Wide x) { return _mm512_reduce_max_ps(x); }

// x in the lanes [from, to), other in the rest.
INLINE Wide inside(Wide x, int from, int to, Wide other) {
  const uint32_t below_to = to >= LANES ? 0xffffu : (1u << to) - 1;
  return _mm512_mask_mov_ps(other, static_cast<__mmask16>(below_to & ~((1u << from) - 1)), x);
}

INLINE Wide load_bf16(const bf16* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

#else

struct Wide {
  __m256 low, high;
};

INLINE Wide all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
INLINE Wide load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
INLINE void store(float* to, Wide x) {
  _mm256_storeu_ps(to, x.low);
  _mm256_storeu_ps(to + 8, x.high);
}
INLINE Wide add(Wide a, Wide b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
INLINE Wide subtract(Wide a, Wide b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
INLINE Wide multiply(Wide a, Wide b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
INLINE Wide divide(Wide a, Wide b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
INLINE Wide larger(Wide a, Wide b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
INLINE Wide smaller(Wide a, Wide b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
INLINE Wide fused(Wide a, Wide b, Wide c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
INLINE Wide fused_negative(Wide a, Wide b, Wide c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
INLINE Wide nearest(Wide x) {
  constexpr int how = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.low, how), _mm256_round_ps(x.high, how)};
}
INLINE __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
INLINE Wide times_power_of_two(Wide x, Wide n) {
  return {_mm256_mul_ps(x.low, power_of_two(n.low)), _mm256_mul_ps(x.high, power_of_two(n.high))};
}
INLINE float sum(Wide x) {
  const __m256 eight = _mm256_add_ps(x.low, x.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
INLINE float largest(Wide x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
INLINE __m256 inside(__m256 x, __m256i lanes, int from, int to, __m256 other) {
  const __m256i in = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(from), lanes),
                                         _mm256_cmpgt_epi32(_mm256_set1_epi32(to), lanes));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(in));
}
INLINE Wide inside(Wide x, int from, int to, Wide other) {
  return {inside(x.low, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), from, to, other.low),
          inside(x.high, _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15), from, to, other.high)};
}
INLINE __m256 eight_bf16(const bf16* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
INLINE Wide load_bf16(const bf16* from) { return {eight_bf16(from), eight_bf16(from + 8)}; }

#endif

// A step of a product: sixteen outputs take in two inputs each. `Pairs` are the weights, 16 x 2 bf16, `Two` is a pair of
// inputs for all of them. `Input` is how inputs are kept: rounded to bf16 where the machine multiplies bf16, else in full.

#if defined(__AVX512BF16__)

using Input = bf16;
using Pairs = __m512bh;
using Two = __m512bh;

INLINE Pairs load_pairs(const bf16* from) { return (__m512bh)_mm512_loadu_si512(from); }
INLINE Two both(const Input* from) {
  int32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return (__m512bh)_mm512_set1_epi32(bits);
}
INLINE Wide take_in(Wide sums, Pairs weights, Two inputs) { return _mm512_dpbf16_ps(sums, weights, inputs); }
INLINE void store_bf16(bf16* to, Wide x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), (__m256i)_mm512_cvtneps_pbh(x));
}
INLINE void store_input(Input* to, Wide x) { store_bf16(to, x); }

#else

using Input = float;
struct Pairs {
  Wide even, odd;
};
struct Two {
  Wide even, odd;
};

INLINE Two both(const Input* from) { return {all(from[0]), all(from[1])}; }
INLINE Wide take_in(Wide sums, Pairs weights, Two inputs) {
  return fused(weights.odd, inputs.odd, fused(weights.even, inputs.even, sums));
}
INLINE void store_input(Input* to, Wide x) { store(to, x); }

#if defined(__AVX512F__)

INLINE Pairs load_pairs(const bf16* from) {
  const __m512i two = _mm512_loadu_si512(from);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(two, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(two, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
INLINE void store_bf16(bf16* to, Wide x) {  // to the nearest, of equals to the even
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

#else

INLINE __m256i eight_pairs(const bf16* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
INLINE Pairs load_pairs(const bf16* from) {
  const __m256i low = eight_pairs(from), high = eight_pairs(from + 16);
  const __m256i odd = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(low, odd)), _mm256_castsi256_ps(_mm256_and_si256(high, odd))}};
}
INLINE __m256i rounded_bf16(__m256 x) {  // to the nearest, of equals to the even
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
INLINE void store_bf16(bf16* to, Wide x) {
  const __m256i mixed = _mm256_packus_epi32(rounded_bf16(x.low), rounded_bf16(x.high));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(mixed, 0xd8));
}

#endif
#endif

// e to the power of x, |x| cut to 87: Cody and Waite's reduction and Cephes' polynomial.
INLINE Wide exponential(Wide x) {
  x = smaller(larger(x, all(-87.f)), all(87.f));
  const Wide n = nearest(multiply(x, all(1.44269504f)));
  Wide rest = fused_negative(n, all(0.693359375f), x);
  rest = fused_negative(n, all(-2.12194440e-4f), rest);
  constexpr float factors[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  Wide y = all(1.9875691500e-4f);
  for (float factor : factors) y = fused(y, rest, all(factor));
  y = fused(y, multiply(rest, rest), add(rest, all(1.f)));
  return times_power_of_two(y, n);
}
