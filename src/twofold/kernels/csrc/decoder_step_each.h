// Norms over float activations, and gates, over Vec. Included by each isa_*.cpp after its vec_*.h.
#pragma once

#include "decoder_step.h"
#include "per_token_each.h"
#include "softmax.h"

namespace {

// (x − mean) / √(variance + ε) · weight + bias, in two passes.
template <typename W>
void layer_norm_vector(const float* x, const W* weight, const W* bias, int64_t width, float epsilon, float* out) {
  const float count = static_cast<float>(width);
  Vec totals = splat(0.0f), squares = splat(0.0f);
  for (int64_t k = 0; k < width; k += kWidth) totals = totals + load_some(x + k, width - k);
  const Vec mean = splat(sum(totals) / count);
  for (int64_t k = 0; k < width; k += kWidth) {
    const Vec off = load_some(x + k, width - k) - mean;
    if (width - k >= kWidth) {
      squares = fma(off, off, squares);
    } else {  // beyond the end stand zeros, which the mean does not fit
      float part[kWidth];
      store(part, off);
      for (int64_t i = width - k; i < kWidth; i++) part[i] = 0.0f;
      squares = fma(load(part), load(part), squares);
    }
  }
  const Vec factor = splat(1.0f / __builtin_sqrtf(sum(squares) / count + epsilon));
  for (int64_t k = 0; k < width; k += kWidth) {
    const int64_t left = width - k;
    const Vec normed = (load_some(x + k, left) - mean) * factor;
    store_some(out + k, fma(normed, load_some(weight + k, left), load_some(bias + k, left)), left);
  }
}

template <typename W>
void step_norm_of(const StepNorm& a, const float* x, int64_t width, float* out) {
  const W *weight = static_cast<const W*>(a.weight), *bias = static_cast<const W*>(a.bias);
  const float epsilon = static_cast<float>(a.epsilon);
  if (bias) return layer_norm_vector(x, weight, bias, width, epsilon, out);
  norm_vector(x, weight, width, epsilon, out);
}

void step_norm(const StepNorm& a, const float* x, int64_t width, float* out) {
  if (a.type == kBFloat16) return step_norm_of<bf16>(a, x, width, out);
  step_norm_of<float>(a, x, width, out);
}

// up · SiLU(gate), in the place of `up`; SiLU(g) = g / (1 + e^−g). Where e^−g would overflow, it is nearly zero.
void gate(const float* gates, float* up, int64_t count) {
  const Vec to_power = splat(static_cast<float>(-M_LOG2E)), one = splat(1.0f), limit = splat(126.0f);
  for (int64_t k = 0; k < count; k += kWidth) {
    const Vec g = load_some(gates + k, count - k);
    const Vec shrunk = g / (one + exp2(minimum(limit, g * to_power)));
    store_some(up + k, load_some(up + k, count - k) * shrunk, count - k);
  }
}

}  // namespace
