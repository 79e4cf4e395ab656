// Register-blocked products over one tile of rows, query by query: scores of few queries.
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
template <typename T>
struct Part {
  const T* rows;
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
template <typename T>
__attribute__((always_inline)) inline void find_rows(const Part<T>& part, int64_t row, int64_t last,
                                                     const T* rows[kRowsAtOnce]) {
  rows[0] = part.rows + row * part.stride;
  if (row + kRowsAtOnce - 1 <= last) {
    for (int j = 1; j < kRowsAtOnce; j++) rows[j] = rows[j - 1] + part.stride;
  } else {
    for (int j = 1; j < kRowsAtOnce; j++) rows[j] = rows[j - 1] + (row + j <= last ? part.stride : 0);
  }
}

template <int kQueries, typename T>
__attribute__((always_inline)) inline void score_step(const T* const rows[kRowsAtOnce], const float* query,
                                                      int64_t query_stride, int64_t i, int64_t left,
                                                      Vec sums[kQueries][kRowsAtOnce]) {
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
template <int kQueries, typename T>
__attribute__((always_inline)) inline void score_block(const Part<T>* parts, int count, const float* query,
                                                       int64_t query_stride, int64_t row, int64_t last, float* scores,
                                                       int64_t scores_stride) {
  Vec sums[kQueries][kRowsAtOnce];
  for (int m = 0; m < kQueries; m++) {
    for (int j = 0; j < kRowsAtOnce; j++) sums[m][j] = splat(0);
  }
  for (int part = 0; part < count; part++) {
    const T* rows[kRowsAtOnce];
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
template <int kQueries, typename T>
__attribute__((noinline)) void score_queries(const Part<T>* parts, int part_count, const float* query, int64_t dim,
                                             int64_t rows, float* scores, int64_t scores_stride, Ahead& ahead) {
  for (int64_t s = 0; s < rows; s += kRowsAtOnce) {
    ahead.fetch();
    score_block<kQueries>(parts, part_count, query, dim, s, rows - 1, scores + s, scores_stride);
  }
}

// scores [queries, scores_stride] = query [queries, D] · rows [count of tile, D]
template <typename T>
inline void score_tile(const Part<T>* parts, int part_count, const float* query, int64_t queries, int64_t dim,
                       int64_t rows, float* scores, int64_t stride, Ahead& ahead) {
  int64_t m = 0;
  for (; m + kQueriesAtOnce <= queries; m += kQueriesAtOnce) {
    score_queries<kQueriesAtOnce>(parts, part_count, query + m * dim, dim, rows, scores + m * stride, stride, ahead);
  }
  for (; m < queries; m++) {
    score_queries<1>(parts, part_count, query + m * dim, dim, rows, scores + m * stride, stride, ahead);
  }
}

}  // namespace
