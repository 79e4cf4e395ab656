// Floats in the vector extension of GCC and clang: for processors without a header of their own.
#pragma once

#include <string.h>

#include "types.h"

#ifndef TWOFOLD_PORTABLE_WIDTH
#define TWOFOLD_PORTABLE_WIDTH 4
#endif

namespace {

constexpr int kWidth = TWOFOLD_PORTABLE_WIDTH;
constexpr int kRegisters = 16;

typedef float Lanes __attribute__((vector_size(4 * TWOFOLD_PORTABLE_WIDTH)));
typedef int32_t IntLanes __attribute__((vector_size(4 * TWOFOLD_PORTABLE_WIDTH)));

struct Vec {
  Lanes v;
};

inline float as_float(float x) { return x; }
inline float as_float(int8_t x) { return static_cast<float>(x); }
inline float as_float(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}
// Moves exponent and mantissa into place, then multiplies by the difference of the two biases, which also makes
// subnormal numbers right. Infinities and NaN have an exponent of their own.
inline float as_float(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  float result;
  memcpy(&result, &magnitude, sizeof result);
  result *= 0x1p112f;
  uint32_t bits;
  memcpy(&bits, &result, sizeof bits);
  if ((x.bits & 0x7c00) == 0x7c00) bits = magnitude | 0x7f800000;
  bits |= sign;
  memcpy(&result, &bits, sizeof result);
  return result;
}

template <typename T>
inline Vec load(const T* p) {
  Vec result;
  for (int i = 0; i < kWidth; i++) result.v[i] = as_float(p[i]);
  return result;
}
inline Vec load(const float* p) {
  Vec result;
  memcpy(&result.v, p, sizeof result.v);
  return result;
}
inline void store(float* p, Vec a) { memcpy(p, &a.v, sizeof a.v); }

// The first eight numbers; zeros in the other lanes. For widths above eight.
template <typename T>
inline Vec load_half(const T* p) {
  Vec result{};
  for (int i = 0; i < 8 && i < kWidth; i++) result.v[i] = as_float(p[i]);
  return result;
}
inline void store_half(float* p, Vec a) { memcpy(p, &a.v, 8 * sizeof(float)); }

inline Vec splat(float x) { return {Lanes{} + x}; }
inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
// The larger one; b where either is NaN.
inline Vec maximum(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
inline Vec minimum(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }

// 2^n where `shifted` is n + 1.5·2^23: n stands in its low bits. 0 where n is −127.
inline Vec power_of_two(Vec shifted) {
  IntLanes bits;
  memcpy(&bits, &shifted.v, sizeof bits);
  bits = (bits + 127) << 23;
  Vec result;
  memcpy(&result.v, &bits, sizeof bits);
  return result;
}

inline void keep_in_register(Vec&) {}

inline float sum(Vec a) {
  float total = 0;
  for (int i = 0; i < kWidth; i++) total += a.v[i];
  return total;
}
inline float largest(Vec a) {
  float found = a.v[0];
  for (int i = 1; i < kWidth; i++) found = a.v[i] > found ? a.v[i] : found;
  return found;
}

// The sums of four vectors, to out[0..4).
inline void store_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
  out[0] = sum(a);
  out[1] = sum(b);
  out[2] = sum(c);
  out[3] = sum(d);
}

}  // namespace
