// Four floats in a NEON register, which every aarch64 processor has.
#pragma once

#include <arm_neon.h>
#include <string.h>

#include "types.h"

namespace {

constexpr int kWidth = 4;
constexpr int kRegisters = 32;

struct Vec {
  float32x4_t v;
};

inline Vec load(const float* p) { return {vld1q_f32(p)}; }
inline Vec load(const bf16* p) {
  const uint16x4_t bits = vld1_u16(reinterpret_cast<const uint16_t*>(p));
  return {vreinterpretq_f32_u32(vshll_n_u16(bits, 16))};
}
inline Vec load(const f16* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))))};
}
inline Vec load(const int8_t* p) {
  int32_t four;
  memcpy(&four, p, sizeof four);
  const int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)))};
}
inline void store(float* p, Vec a) { vst1q_f32(p, a.v); }
inline Vec splat(float x) { return {vdupq_n_f32(x)}; }
inline Vec operator+(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// The larger one; NaN where either is.
inline Vec maximum(Vec a, Vec b) { return {vmaxq_f32(a.v, b.v)}; }
inline Vec minimum(Vec a, Vec b) { return {vminq_f32(a.v, b.v)}; }

// 2^n where `shifted` is n + 1.5·2^23: n stands in its low bits. 0 where n is −127.
inline Vec power_of_two(Vec shifted) {
  const int32x4_t biased = vaddq_s32(vreinterpretq_s32_f32(shifted.v), vdupq_n_s32(127));
  return {vreinterpretq_f32_s32(vshlq_n_s32(biased, 23))};
}

// Keeps the compiler from reading memory again for each use.
inline void keep_in_register(Vec& a) { __asm__("" : "+w"(a.v)); }

inline float sum(Vec a) { return vaddvq_f32(a.v); }
inline float largest(Vec a) { return vmaxvq_f32(a.v); }

// The sums of four vectors, to out[0..4).
inline void store_sums(float* out, Vec a, Vec b, Vec c, Vec d) {
  vst1q_f32(out, vpaddq_f32(vpaddq_f32(a.v, b.v), vpaddq_f32(c.v, d.v)));
}

}  // namespace
