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

// Scores of one query to weights, in place. `count` is a multiple of kWidth; numbers that do not count are −∞.
// Takes the largest score and the sum of weights so far along. Returns the factor for what was summed before.
// Where rows have scales, the weights come out multiplied by them, and their sum does not.
inline float weigh_scores(float* scores, int64_t count, const float* scales, float& top, float& total) {
  Vec highest = load(scores);
  for (int64_t s = kWidth; s < count; s += kWidth) highest = maximum(highest, load(scores + s));
  const float before = top, now = largest(highest) > before ? largest(highest) : before;
  const Vec shift = splat(now);
  Vec weights = splat(0);
  for (int64_t s = 0; s < count; s += kWidth) {
    const Vec weight = exp2(load(scores + s) - shift);
    store(scores + s, scales ? weight * load(scales + s) : weight);
    weights = weights + weight;
  }
  const float factor = now > before ? ::exp2f(before - now) : 1.0f;
  top = now;
  total = total * factor + sum(weights);
  return factor;
}

// The same for kWidth queries at once, whose scores stand `lanes` apart for each of `count` rows; to factors.
inline void weigh_lanes(float* scores, int64_t count, int64_t lanes, float* tops, float* totals, float* factors) {
  const Vec before = load(tops);
  Vec now = before;
  for (int64_t s = 0; s < count; s++) now = maximum(now, load(scores + s * lanes));
  const Vec shift = maximum(splat(-3e38f), now);  // where nothing is seen yet: −∞ less −∞ is no number
  Vec weights = splat(0);
  for (int64_t s = 0; s < count; s++) {
    const Vec weight = exp2(load(scores + s * lanes) - shift);
    store(scores + s * lanes, weight);
    weights = weights + weight;
  }
  const Vec factor = exp2(before - shift);
  store(tops, now);
  store(totals, fma(load(totals), factor, weights));
  store(factors, factor);
}

}  // namespace
