// Sixteen floats in an AVX-512 register. Included by isa_avx512.cpp alone, after the target pragma.
#pragma once

#include <immintrin.h>

#include "types.h"

namespace {

constexpr int kWidth = 16;
constexpr int kRegisters = 32;

struct Vec {
  __m512 v;
};

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline Vec load(const bf16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline Vec load(const f16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
inline Vec load(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }

// The first eight numbers; zeros in the other lanes.
inline Vec load_half(const float* p) { return {_mm512_maskz_loadu_ps(0xff, p)}; }
inline Vec load_half(const bf16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_zextsi128_si256(_mm_loadu_si128((const __m128i*)p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline Vec load_half(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline Vec load_half(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_half(float* p, Vec a) { _mm512_mask_storeu_ps(p, 0xff, a.v); }

inline Vec splat(float x) { return {_mm512_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The larger one; b where either is NaN.
inline Vec maximum(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec minimum(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }

// 2^n where `shifted` is n + 1.5·2^23: n stands in its low bits. 0 where n is −127.
inline Vec power_of_two(Vec shifted) {
  const __m512i biased = _mm512_add_epi32(_mm512_castps_si512(shifted.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}

// Keeps the compiler from reading memory again for each use.
inline void keep_in_register(Vec& a) { __asm__("" : "+v"(a.v)); }

inline float sum(Vec a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(Vec a) { return _mm512_reduce_max_ps(a.v); }

inline __m256 folded(Vec a) {
  const __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), upper);
}

// The sums of four vectors, to out[0..4).
inline void store_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
  const __m256 ab = _mm256_hadd_ps(folded(a), folded(b)), cd = _mm256_hadd_ps(folded(c), folded(d));
  const __m256 all = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

}  // namespace
