// Eight floats in an AVX2 register. Included by isa_avx2.cpp alone, after the target pragma.
#pragma once

#include <immintrin.h>

#include "types.h"

namespace {

constexpr int kWidth = 8;
constexpr int kRegisters = 16;

struct Vec {
  __m256 v;
};

inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline Vec load(const bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
inline Vec load(const f16* p) { return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))}; }
inline Vec load(const int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline Vec splat(float x) { return {_mm256_set1_ps(x)}; }
inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The larger one; b where either is NaN.
inline Vec maximum(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec minimum(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }

// 2^n where `shifted` is n + 1.5·2^23: n stands in its low bits. 0 where n is −127.
inline Vec power_of_two(Vec shifted) {
  const __m256i biased = _mm256_add_epi32(_mm256_castps_si256(shifted.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}

// Keeps the compiler from reading memory again for each use.
inline void keep_in_register(Vec& a) { __asm__("" : "+x"(a.v)); }

inline float sum(Vec a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

inline float largest(Vec a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

// The sums of four vectors, to out[0..4).
inline void store_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
  const __m256 ab = _mm256_hadd_ps(a.v, b.v), cd = _mm256_hadd_ps(c.v, d.v);
  const __m256 all = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

}  // namespace
