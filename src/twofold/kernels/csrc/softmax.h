// The online softmax over tiles (Milakov and Gimelshein, arXiv 1805.02867), in powers of two.
#pragma once

#include <math.h>

#include "decode.h"

namespace {

// 2^x = power · (1 + fraction), power = 2^n. A polynomial of degree six over [−1/2, 1/2], relative error 2e-9 before
// rounding; power is 0 where x ≤ −126.5, and x must be below 128.
struct Exponential {
  Vec power, fraction;
};
inline Exponential exponential(Vec x) {
  x = maximum(splat(-127.0f), x);  // in this order NaN comes through
  const Vec magic = splat(12582912.0f);
  const Vec shifted = x + magic;
  const Vec f = x - (shifted - magic);
  Vec y = splat(1.5353358344e-04f);
  y = fma(y, f, splat(1.3398875433e-03f));
  y = fma(y, f, splat(9.6184373801e-03f));
  y = fma(y, f, splat(5.5503324679e-02f));
  y = fma(y, f, splat(2.4022647913e-01f));
  y = fma(y, f, splat(6.9314720286e-01f));
  return {power_of_two(shifted), y * f};
}

inline Vec exp2(Vec x) {
  const Exponential e = exponential(x);
  return fma(e.power, e.fraction, e.power);
}

// c · tanh(x) for scores x, in place: tanh x = m / (m + 2) with m = e^2x − 1, which is exact to rounding near 0 too.
inline void cap(float* scores, int64_t count, float c) {
  const Vec to_power = splat(static_cast<float>(2 / M_LN2)), one = splat(1), two = splat(2), limit = splat(60);
  for (int64_t s = 0; s < count; s += kWidth) {
    const Exponential e = exponential(minimum(limit, load(scores + s) * to_power));
    const Vec less_one = fma(e.power, e.fraction, e.power - one);
    store(scores + s, splat(c) * less_one / (less_one + two));
  }
}

// Scores to weights, in place. `count` is a multiple of kWidth; numbers that do not count are −∞.
// stats: the largest score so far and the sum of weights. Returns the factor for what was summed before.
inline float weigh_scores(float* scores, int64_t count, float* stats) {
  Vec top = load(scores);
  for (int64_t s = kWidth; s < count; s += kWidth) top = maximum(top, load(scores + s));
  const float before = stats[0], now = largest(top) > before ? largest(top) : before;
  const Vec shift = splat(now);
  Vec total = splat(0);
  for (int64_t s = 0; s < count; s += kWidth) {
    const Vec weight = exp2(load(scores + s) - shift);
    store(scores + s, weight);
    total = total + weight;
  }
  const float factor = now > before ? ::exp2f(before - now) : 1.0f;
  stats[0] = now;
  stats[1] = stats[1] * factor + sum(total);
  return factor;
}

}  // namespace
