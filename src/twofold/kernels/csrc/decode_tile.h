// Register-blocked products over one tile of rows: scores of queries, and sums of values by their weights.
#pragma once

#include "decode.h"

namespace {

// Loads and stores at numbers that may end eight after p: only a register of sixteen can stand out.
template <typename T>
inline Vec load_within(const T* p, int64_t left) {
  if constexpr (kWidth > 8) {
    if (left < kWidth) return load_half(p);
  }
  return load(p);
}
template <typename V>
inline void store_within(float* p, V a, int64_t left) {
  if constexpr (kWidth > 8) {
    if (left < kWidth) return store_half(p, a);
  }
  store(p, a);
}

// Rows of one part of a tile.
struct Part {
  const float* rows;
  int64_t stride, width;
};

// The rows of the next tile, fetched towards the caches a little at a time between the products of this one: all at
// once they would fill the processor's queue of misses, and it would wait for memory first and compute after.
struct Ahead {
  const char* row;
  int64_t stride, bytes;   // of a row
  int64_t rows, rate;      // left to fetch, and 1/256 rows for each call
  int64_t due = 0;

  void set_rate(int64_t rows_to_fetch, int64_t calls) {
    rate = (rows_to_fetch * 256 + calls - 1) / calls;
    due = 0;
  }

  void fetch() {
    for (due += rate; due >= 256 && rows > 0; due -= 256, rows--, row += stride) {
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
    }
  }
};

constexpr int kManyQueries = 4;  // from here on the scores alone take long enough to fetch a tile meanwhile
constexpr int kRowsAtOnce = 4;
constexpr int kQueriesAtOnce = kRegisters >= 32 ? 4 : 2;

// Where four rows of a part lie: neighbours, or beyond the tile's end the last row again.
__attribute__((always_inline)) inline void find_rows(const Part& part, int64_t row, int64_t last, const float* rows[kRowsAtOnce]) {
  rows[0] = part.rows + row * part.stride;
  if (row + kRowsAtOnce - 1 <= last) {
    for (int j = 1; j < kRowsAtOnce; j++) rows[j] = rows[j - 1] + part.stride;
  } else {
    for (int j = 1; j < kRowsAtOnce; j++) rows[j] = rows[j - 1] + (row + j <= last ? part.stride : 0);
  }
}

template <int kQueries>
__attribute__((always_inline)) inline void score_step(const float* const rows[kRowsAtOnce], const float* query, int64_t query_stride, int64_t i,
                       int64_t left, Vec sums[kQueries][kRowsAtOnce]) {
  Vec keys[kRowsAtOnce];
  for (int j = 0; j < kRowsAtOnce; j++) {
    keys[j] = load_within(rows[j] + i, left);
    if (kQueries > 1) keep_in_register(keys[j]);
  }
  for (int m = 0; m < kQueries; m++) {
    const Vec q = load_within(query + m * query_stride + i, left);
    for (int j = 0; j < kRowsAtOnce; j++) sums[m][j] = fma(q, keys[j], sums[m][j]);
  }
}

// scores[m][0..4) of kQueries queries with rows row … row + 3; beyond the tile's last row that row's score repeats.
template <int kQueries>
__attribute__((always_inline)) inline void score_block(const Part* parts, int count, const float* query, int64_t query_stride, int64_t row,
                        int64_t last, float* scores, int64_t scores_stride) {
  Vec sums[kQueries][kRowsAtOnce];
  for (int m = 0; m < kQueries; m++) {
    for (int j = 0; j < kRowsAtOnce; j++) sums[m][j] = splat(0);
  }
  for (int part = 0; part < count; part++) {
    const float* rows[kRowsAtOnce];
    find_rows(parts[part], row, last, rows);
    const int64_t width = parts[part].width;
    int64_t i = 0;
    for (; i + 2 * kWidth <= width; i += 2 * kWidth) {
      score_step<kQueries>(rows, query, query_stride, i, width, sums);
      score_step<kQueries>(rows, query, query_stride, i + kWidth, width, sums);
    }
    for (; i < width; i += kWidth) score_step<kQueries>(rows, query, query_stride, i, width - i, sums);
    query += width;
  }
  for (int m = 0; m < kQueries; m++) {
    store_sums(scores + m * scores_stride, sums[m][0], sums[m][1], sums[m][2], sums[m][3]);
  }
}

// A pass of kQueries queries over a tile. Not inlined: a small function keeps its pointers in registers.
template <int kQueries>
__attribute__((noinline)) void score_queries(const Part* parts, int part_count, const float* query, int64_t dim,
                                             int64_t rows, float* scores, int64_t scores_stride, Ahead& ahead) {
  for (int64_t s = 0; s < rows; s += kRowsAtOnce) {
    ahead.fetch();
    score_block<kQueries>(parts, part_count, query, dim, s, rows - 1, scores + s, scores_stride);
  }
}

// scores [queries, scores_stride] = query [queries, D] · rows [count of tile, D]
inline void score_tile(const Part* parts, int part_count, const float* query, int64_t queries, int64_t dim,
                       int64_t rows, float* scores, int64_t stride, Ahead& ahead) {
  int64_t m = 0;
  for (; m + kQueriesAtOnce <= queries; m += kQueriesAtOnce) {
    score_queries<kQueriesAtOnce>(parts, part_count, query + m * dim, dim, rows, scores + m * stride, stride, ahead);
  }
  for (; m < queries; m++) {
    score_queries<1>(parts, part_count, query + m * dim, dim, rows, scores + m * stride, stride, ahead);
  }
}

// out[m][0 … kVecs·kWidth) += Σ over rows of weights[m][row] · values[row]
template <int kQueries, int kVecs, bool kFetch>
__attribute__((noinline)) void weigh_block(const Part& values, int64_t at, int64_t rows, const float* weights,
                                           int64_t weights_stride, float* out, Ahead& ahead) {
  const int64_t left = values.width - at - (kVecs - 1) * kWidth;
  Vec sums[kQueries][kVecs];  // of this tile alone: one running sum over a long context would lose digits
  for (int m = 0; m < kQueries; m++) {
    for (int j = 0; j < kVecs; j++) sums[m][j] = splat(0);
  }
  const float* row = values.rows + at;
  for (int64_t s = 0; s < rows; s++, row += values.stride) {
    if constexpr (kFetch) ahead.fetch();
    Vec v[kVecs];
    for (int j = 0; j < kVecs; j++) v[j] = j + 1 < kVecs ? load(row + j * kWidth) : load_within(row + j * kWidth, left);
    for (int m = 0; m < kQueries; m++) {
      const Vec weight = splat(weights[m * weights_stride + s]);
      for (int j = 0; j < kVecs; j++) sums[m][j] = fma(weight, v[j], sums[m][j]);
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

template <int kQueries, int kVecs>
inline void weigh_queries(const Part& values, int64_t rows, const float* weights, int64_t weights_stride, float* out,
                          Ahead& ahead) {
  constexpr bool kFetch = kQueries < kManyQueries;
  int64_t at = 0;
  for (; at + (kVecs - 1) * kWidth < values.width; at += kVecs * kWidth) {
    weigh_block<kQueries, kVecs, kFetch>(values, at, rows, weights, weights_stride, out, ahead);
  }
  for (; at < values.width; at += kWidth) {
    weigh_block<kQueries, 1, kFetch>(values, at, rows, weights, weights_stride, out, ahead);
  }
}

// out [queries, value width] += weights [queries, rows] · values [rows, value width]
inline void weigh_tile(const Part& values, int64_t queries, int64_t rows, const float* weights, int64_t stride,
                       float* out, Ahead& ahead) {
  int64_t m = 0;
  for (; m + 4 <= queries; m += 4) {
    weigh_queries<4, kRegisters / 8>(values, rows, weights + m * stride, stride, out + m * values.width, ahead);
  }
  for (; m + 2 <= queries; m += 2) {
    weigh_queries<2, 4>(values, rows, weights + m * stride, stride, out + m * values.width, ahead);
  }
  if (m < queries) weigh_queries<1, 8>(values, rows, weights + m * stride, stride, out + m * values.width, ahead);
}

}  // namespace
