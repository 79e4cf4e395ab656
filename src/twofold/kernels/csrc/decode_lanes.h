// Scores of many queries: a register holds one number of several queries, so that no sum runs across a register, and
// each number of a key is read once for all of them. Scores stand row by row, [rows, lanes].
#pragma once

#include "decode_tile.h"

namespace {

// Queries padded to whole registers; 0 where the padding would cost more than it gains.
inline int64_t lanes_for(int64_t queries) {
  const int64_t lanes = (queries + kWidth - 1) / kWidth * kWidth;
  return 3 * lanes <= 4 * queries ? lanes : 0;
}

// Rows at a time: twelve sums side by side, or eight, whose rows need no more than the registers for addresses.
template <int kVecs>
constexpr int kRowsOf = kVecs == 2 ? 6 : 8;

// scores[j][0 … kVecs·kWidth) of kRows rows from `row` on, for the queries in these lanes; query is [D, lanes].
template <int kRows, int kVecs, typename T>
__attribute__((always_inline)) inline void score_lanes(const Part<T>* parts, int count, const float* query,
                                                       int64_t lanes, int64_t row, float* scores) {
  Vec sums[kRows][kVecs];
  for (int j = 0; j < kRows; j++) {
    for (int n = 0; n < kVecs; n++) sums[j][n] = splat(0);
  }
  for (int part = 0; part < count; part++) {
    const int64_t stride = parts[part].stride;
    const T* key = parts[part].rows + row * stride;
    for (int64_t i = 0; i < parts[part].width; i++, key++, query += lanes) {
      Vec q[kVecs];
      for (int n = 0; n < kVecs; n++) {
        q[n] = load(query + n * kWidth);
        keep_in_register(q[n]);
      }
      for (int j = 0; j < kRows; j++) {
        const Vec k = splat(key[j * stride]);
        for (int n = 0; n < kVecs; n++) sums[j][n] = fma(k, q[n], sums[j][n]);
      }
    }
  }
  for (int j = 0; j < kRows; j++) {
    for (int n = 0; n < kVecs; n++) store(scores + j * lanes + n * kWidth, sums[j][n]);
  }
}

template <int kVecs, typename T>
__attribute__((noinline)) void score_some_lanes(const Part<T>* parts, int count, const float* query, int64_t lanes,
                                                int64_t rows, float* scores, Ahead& ahead) {
  constexpr int kRows = kRowsOf<kVecs>;
  if (rows < kRows) {
    for (int64_t s = 0; s < rows; s++) score_lanes<1, kVecs>(parts, count, query, lanes, s, scores + s * lanes);
    return;
  }
  for (int64_t s = 0; s < rows; s += kRows) {
    ahead.fetch();
    if (s + kRows > rows) s = rows - kRows;  // some rows once more
    score_lanes<kRows, kVecs>(parts, count, query, lanes, s, scores + s * lanes);
  }
}

// scores [rows, lanes] = rows [count of tile, D] · query [D, lanes]
template <typename T>
inline void score_tile_lanes(const Part<T>* parts, int count, const float* query, int64_t lanes, int64_t rows,
                             float* scores, Ahead& ahead) {
  int64_t m = 0;
  for (; m + 2 * kWidth <= lanes; m += 2 * kWidth) {
    score_some_lanes<2>(parts, count, query + m, lanes, rows, scores + m, ahead);
  }
  if (m < lanes) score_some_lanes<1>(parts, count, query + m, lanes, rows, scores + m, ahead);
}

}  // namespace
