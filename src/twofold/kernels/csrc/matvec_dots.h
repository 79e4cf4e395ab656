// Rows of a weight matrix times one to four vectors, float32 accumulation. Included by each isa_*.cpp after its vec_*.h.
//
// A decode step reads every weight once and uses it one to four times, so all that matters is that loads never wait:
// four to eight sums run side by side (a fused multiply-add takes four cycles, and two start in each), and lines are
// asked for ahead.
#pragma once

#include "matvec.h"

namespace {

// How many weight rows are read side by side, and how far ahead lines are asked for, in bytes. As measured: the
// processor's own prefetcher keeps up with wide weights that are used once, and best with few streams of narrow ones.
template <typename W, int Tokens>
struct Streaming {
  static constexpr int rows = Tokens == 1 ? 1 : 2, ahead = 2048;
};
template <>
struct Streaming<float, 1> {
  static constexpr int rows = 4, ahead = 0;
};

// sums[r][t][c] += weights · x over `Chains` vectors of each row, one per chain.
template <int Chains, typename W, int Rows, int Tokens, int All>
inline void accumulate(const W* weight, int64_t stride, const float* x, int64_t x_stride,
                       Vec (&sums)[Rows][Tokens][All]) {
#pragma GCC unroll 4
  for (int c = 0; c < Chains; c++) {
    Vec x_part[Tokens];
#pragma GCC unroll 4
    for (int t = 0; t < Tokens; t++) x_part[t] = load(x + t * x_stride + c * kWidth);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; r++) {
      const Vec part = load(weight + r * stride + c * kWidth);
#pragma GCC unroll 4
      for (int t = 0; t < Tokens; t++) sums[r][t][c % All] = fma(part, x_part[t], sums[r][t][c % All]);
    }
  }
}

// out[t][r] for `Rows` rows; `x_tail` [Tokens][kWidth] holds what does not fill a vector, then zeros.
template <typename W, int Rows, int Tokens>
inline void dot_rows(const W* weight, const MatvecTask& task, const float* x_tail, float* out, int64_t out_stride) {
  constexpr int chains = Rows * Tokens >= 8 ? 1 : Rows * Tokens >= 4 ? 2 : 4;
  constexpr int step = 4 * kWidth;
  constexpr int ahead = Streaming<W, Tokens>::ahead;
  const int64_t stride = task.weight_stride;
  Vec sums[Rows][Tokens][chains];
  for (auto& row : sums)
    for (auto& token : row)
      for (auto& chain : token) chain = splat(0.0f);
  int64_t k = 0;
  for (; k + step <= task.width; k += step) {
    if (ahead != 0)
      for (int r = 0; r < Rows; r++)
        for (int64_t line = 0; line < step * static_cast<int64_t>(sizeof(W)); line += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(weight + r * stride + k) + ahead + line);
    accumulate<4>(weight + k, stride, task.x + k, task.x_stride, sums);
  }
  for (; k + kWidth <= task.width; k += kWidth) accumulate<1>(weight + k, stride, task.x + k, task.x_stride, sums);
  if (k < task.width) {  // copied, since nothing may be read past the end of a row
    W rest[Rows][kWidth] = {};
    for (int r = 0; r < Rows; r++)
      for (int64_t i = k; i < task.width; i++) rest[r][i - k] = weight[r * stride + i];
    accumulate<1>(&rest[0][0], kWidth, x_tail, kWidth, sums);
  }
  for (int r = 0; r < Rows; r++)
    for (int t = 0; t < Tokens; t++) {
      Vec total = sums[r][t][0];
      for (int c = 1; c < chains; c++) total = total + sums[r][t][c];
      out[t * out_stride + r] = sum(total);
    }
}

template <typename W, int Tokens>
void dots(const MatvecTask& task, int64_t first, int64_t count, float* out) {
  constexpr int together = Streaming<W, Tokens>::rows;
  float x_tail[Tokens][kWidth] = {};
  const int64_t full = task.width - task.width % kWidth;
  for (int t = 0; t < Tokens; t++)
    for (int64_t k = full; k < task.width; k++) x_tail[t][k - full] = task.x[t * task.x_stride + k];
  const W* weight = static_cast<const W*>(task.weight) + first * task.weight_stride;
  int64_t n = 0;
  for (; n + together <= count; n += together)
    dot_rows<W, together, Tokens>(weight + n * task.weight_stride, task, x_tail[0], out + n, count);
  for (; n < count; n++) dot_rows<W, 1, Tokens>(weight + n * task.weight_stride, task, x_tail[0], out + n, count);
}

template <typename W>
void dots_of(const MatvecTask& task, int64_t first, int64_t count, float* out) {
  if (task.tokens == 1) return dots<W, 1>(task, first, count, out);
  if (task.tokens == 2) return dots<W, 2>(task, first, count, out);
  if (task.tokens == 3) return dots<W, 3>(task, first, count, out);
  return dots<W, 4>(task, first, count, out);
}

// out[t][n] = weight row (first + n) · x[t], for `count` weight rows.
void matvec_rows(const MatvecTask& task, int64_t first, int64_t count, float* out) {
  if (task.weight_type == kFloat32) return dots_of<float>(task, first, count, out);
  if (task.weight_type == kBFloat16) return dots_of<bf16>(task, first, count, out);
  return dots_of<int8_t>(task, first, count, out);
}

}  // namespace
