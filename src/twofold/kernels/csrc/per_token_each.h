// The tasks of per_token.h over Vec. Included by each isa_*.cpp after its vec_*.h.
#pragma once

#include "narrow.h"
#include "per_token.h"

namespace {

// The first `count` numbers, and zeros where there are fewer than a vector has.
template <typename T>
inline Vec load_some(const T* p, int64_t count) {
  if (count >= kWidth) return load(p);
  T part[kWidth] = {};
  for (int64_t i = 0; i < count; i++) part[i] = p[i];
  return load(part);
}

inline void narrow(float x, float* to) { *to = x; }

// The first `count` of a vector's numbers, at most all of them.
template <typename T>
inline void store_some(T* p, Vec a, int64_t count) {
  float part[kWidth];
  store(part, a);
  if (count > kWidth) count = kWidth;
  for (int64_t i = 0; i < count; i++) narrow(part[i], p + i);
}
inline void store_some(float* p, Vec a, int64_t count) {
  if (count >= kWidth) return store(p, a);
  float part[kWidth];
  store(part, a);
  for (int64_t i = 0; i < count; i++) p[i] = part[i];
}

template <typename T, typename W>
void norm_vector(const T* x, const W* weight, int64_t width, float epsilon, T* out) {
  constexpr int chains = 4;
  Vec squares[chains];
  for (Vec& chain : squares) chain = splat(0.0f);
  for (int64_t k = 0; k < width; k += chains * kWidth) {
#pragma GCC unroll 4
    for (int c = 0; c < chains; c++) {
      const int64_t at = k + c * kWidth;
      if (at >= width) break;
      const Vec part = load_some(x + at, width - at);
      squares[c] = fma(part, part, squares[c]);
    }
  }
  const float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  const Vec factor = splat(1.0f / __builtin_sqrtf(total / static_cast<float>(width) + epsilon));
  for (int64_t k = 0; k < width; k += kWidth)
    store_some(out + k, load_some(x + k, width - k) * factor * load_some(weight + k, width - k), width - k);
}

template <typename T>
void norm_of(const NormTask& a) {
  for (int64_t n = 0; n < a.vectors; n++)
    norm_vector(static_cast<const T*>(a.x) + n * a.width, static_cast<const T*>(a.weight), a.width,
                static_cast<float>(a.epsilon), static_cast<T*>(a.out) + n * a.width);
}

// out = x cos + sign · partner sin, for half of the turned dims.
template <typename T>
inline void turn_half(const T* x, const T* partner, const T* cos, const T* sin, Vec sign, int64_t count, T* out) {
  for (int64_t k = 0; k < count; k += kWidth) {
    const int64_t left = count - k;
    const Vec other = load_some(partner + k, left) * load_some(sin + k, left);
    store_some(out + k, fma(other, sign, load_some(x + k, left) * load_some(cos + k, left)), left);
  }
}

template <typename T>
void turn_of(const TurnTask& a) {
  const int64_t half = a.turned / 2;
  const Vec sign = splat(static_cast<float>(a.sign));
  T* out = static_cast<T*>(a.out);
  for (int64_t b = 0; b < a.sequences; b++)
    for (int64_t t = 0; t < a.positions; t++) {
      const int64_t angle = b * a.angle_stride + t * a.turned;
      const T* cos = static_cast<const T*>(a.cos) + angle;
      const T* sin = static_cast<const T*>(a.sin) + angle;
      for (int64_t h = 0; h < a.heads; h++, out += a.dims) {
        const T* x = static_cast<const T*>(a.x) + b * a.x_strides[0] + t * a.x_strides[1] + h * a.x_strides[2];
        turn_half(x, x + half, cos, sin, sign, half, out);
        turn_half(x + half, x, cos + half, sin + half, sign, half, out + half);
        for (int64_t i = a.turned; i < a.dims; i++) out[i] = x[i];
      }
    }
}

constexpr float kLeastScale = 0x1p-126f;  // the least normal number
constexpr float kToWhole = 0x1.8p23f;     // added to a small number, leaves a whole one in the low bits

// Returns the scale. Not finite where x is not: magnitudes are compared as bits, where NaN is the largest.
template <typename T>
float quantise_vector(const T* x, int64_t width, int8_t* out) {
  uint32_t largest[kWidth] = {};
  for (int64_t k = 0; k < width; k += kWidth) {
    float part[kWidth];
    store(part, load_some(x + k, width - k));
    for (int i = 0; i < kWidth; i++) {
      const uint32_t magnitude = bits_of(part[i]) & 0x7fffffff;
      largest[i] = magnitude > largest[i] ? magnitude : largest[i];
    }
  }
  uint32_t most = 0;
  for (uint32_t magnitude : largest) most = magnitude > most ? magnitude : most;
  float scale = from_bits(most) / 127.0f;
  if (scale <= kLeastScale) scale = 0.0f;
  const float divisor = scale < kLeastScale ? kLeastScale : scale;
  for (int64_t k = 0; k < width; k += kWidth) {
    float part[kWidth];
    int8_t whole[kWidth];
    store(part, load_some(x + k, width - k));
    for (int i = 0; i < kWidth; i++) {
      const float quotient = part[i] / divisor;
      const uint32_t bits = bits_of(quotient + kToWhole);
      whole[i] = static_cast<int8_t>(quotient == quotient ? bits & 0xff : 0);
    }
    const int64_t left = width - k < kWidth ? width - k : kWidth;
    for (int64_t i = 0; i < left; i++) out[k + i] = whole[i];
  }
  return scale;
}

template <typename T>
void quantise_of(const QuantiseTask& a) {
  for (int64_t b = 0; b < a.sequences; b++)
    for (int64_t g = 0; g < a.groups; g++)
      for (int64_t t = 0; t < a.tokens; t++) {
        const T* x = static_cast<const T*>(a.x) + b * a.x_strides[0] + g * a.x_strides[1] + t * a.x_strides[2];
        int8_t* out = a.out + b * a.out_strides[0] + g * a.out_strides[1] + t * a.out_strides[2];
        a.scales[b * a.scales_strides[0] + g * a.scales_strides[1] + t * a.scales_strides[2]] =
            quantise_vector(x, a.width, out);
      }
}

void rms_norm(const NormTask& a) {
  if (a.dtype == kFloat32) return norm_of<float>(a);
  if (a.dtype == kBFloat16) return norm_of<bf16>(a);
  norm_of<f16>(a);
}

void turn(const TurnTask& a) {
  if (a.dtype == kFloat32) return turn_of<float>(a);
  if (a.dtype == kBFloat16) return turn_of<bf16>(a);
  turn_of<f16>(a);
}

void quantise(const QuantiseTask& a) {
  if (a.dtype == kFloat32) return quantise_of<float>(a);
  if (a.dtype == kBFloat16) return quantise_of<bf16>(a);
  quantise_of<f16>(a);
}

}  // namespace
