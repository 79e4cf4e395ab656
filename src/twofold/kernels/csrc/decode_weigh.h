// Sums of a tile's values by their weights.
#pragma once

#include "decode_tile.h"

namespace {

// Where the weight of query m for row s of a tile stands: at numbers[m · query_stride + s · row_stride].
struct Weights {
  const float* numbers;
  int64_t query_stride, row_stride;
};

// out[m][0 … kVecs·kWidth) += Σ over rows of weights[m][row] · values[row]
template <int kQueries, int kVecs, bool kFetch, typename T>
__attribute__((noinline)) void weigh_block(const Part<T>& values, int64_t at, int64_t rows, const Weights& weights,
                                           float* out, Ahead& ahead) {
  const int64_t left = values.width - at - (kVecs - 1) * kWidth;
  Vec sums[kQueries][kVecs];  // of this tile alone: one running sum over a long context would lose digits
  for (int m = 0; m < kQueries; m++) {
    for (int j = 0; j < kVecs; j++) sums[m][j] = splat(0);
  }
  const T* row = values.rows + at;
  const float* weight = weights.numbers;
  const int64_t query_stride = weights.query_stride;
  for (int64_t s = 0; s < rows; s++, row += values.stride, weight += weights.row_stride) {
    if constexpr (kFetch) ahead.fetch();
    const auto value = [&](int j) {
      return j + 1 < kVecs ? load(row + j * kWidth) : load_within(row + j * kWidth, left);
    };
    if constexpr (kQueries == 1 && sizeof(T) == 1) {  // in pieces: all at once, a sum would not stay in its register
      const Vec by = splat(*weight);
      for (int j = 0; j < kVecs; j++) sums[0][j] = fma(by, value(j), sums[0][j]);
    } else {
      Vec v[kVecs];
      for (int j = 0; j < kVecs; j++) v[j] = value(j);
      for (int m = 0; m < kQueries; m++) {
        const Vec by = splat(weight[m * query_stride]);
        for (int j = 0; j < kVecs; j++) sums[m][j] = fma(by, v[j], sums[m][j]);
      }
    }
  }
  for (int m = 0; m < kQueries; m++) {
    for (int j = 0; j < kVecs; j++) {
      float* p = out + m * values.width + at + j * kWidth;
      const int64_t within = j + 1 < kVecs ? kWidth : left;
      store_within(p, load_within(p, within) + sums[m][j], within);
    }
  }
}

// Of `kQueries` queries at a time as long as there are as many, from query m on.
template <int kQueries, int kVecs, typename T>
inline void weigh_queries(const Part<T>& values, int64_t queries, int64_t rows, const Weights& weights, float* out,
                          Ahead& ahead, int64_t& m) {
  constexpr bool kFetch = kQueries < kManyQueries;
  for (; m + kQueries <= queries; m += kQueries) {
    const Weights of = {weights.numbers + m * weights.query_stride, weights.query_stride, weights.row_stride};
    float* to = out + m * values.width;
    int64_t at = 0;
    for (; at + (kVecs - 1) * kWidth < values.width; at += kVecs * kWidth) {
      weigh_block<kQueries, kVecs, kFetch>(values, at, rows, of, to, ahead);
    }
    for (; at < values.width; at += kWidth) {
      weigh_block<kQueries, 1, kFetch>(values, at, rows, of, to, ahead);
    }
  }
}

// out [queries, value width] += weights [queries, rows] · values [rows, value width]
template <typename T>
inline void weigh_tile(const Part<T>& values, int64_t queries, int64_t rows, const Weights& weights, float* out,
                       Ahead& ahead) {
  int64_t m = 0;
  weigh_queries<6, kRegisters / 8>(values, queries, rows, weights, out, ahead, m);
  weigh_queries<4, kRegisters / 8>(values, queries, rows, weights, out, ahead, m);
  weigh_queries<2, 4>(values, queries, rows, weights, out, ahead, m);
  weigh_queries<1, 8>(values, queries, rows, weights, out, ahead, m);
}

}  // namespace
