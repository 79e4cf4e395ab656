// One pass over a chunk of rows, tile by tile: a tile is read from memory once and serves as keys and as values.
#pragma once

#include <math.h>
#include <string.h>

#include "decode_tile.h"
#include "kernels.h"
#include "softmax.h"

namespace {

constexpr int64_t kTileBytes = 16384;  // half of the smallest L1 cache in use
constexpr int64_t kMostRows = 64;

inline int64_t rounded(int64_t count) { return (count + 15) / 16 * 16; }

// The numbers of a head's own part that key and value use together.
struct Used {
  int64_t start, width;
};
inline Used used_of(const DecodeArguments& a) {
  const int64_t start = a.key_start < a.value_start ? a.key_start : a.value_start;
  const int64_t key_stop = a.key_start + a.key_width, value_stop = a.value_start + a.value_width;
  return {start, (key_stop > value_stop ? key_stop : value_stop) - start};
}

// Where the pieces of a thread's scratch memory begin; the last is its size.
struct Offsets {
  int64_t query, turned, scores, out, stats, own, shared, keys, angles, end;
};
inline Offsets offsets_of(const DecodeArguments& a, int64_t tile) {
  const int64_t queries = query_count(a), dim = key_dim(a);
  const bool turns = a.frequencies != nullptr, converts = a.dtype != kFloat32;
  Offsets at{};
  int64_t used = 0;
  const auto take = [&used](int64_t count) {
    const int64_t here = used;
    used += rounded(count);
    return here;
  };
  at.query = take(queries * dim);
  at.turned = take(turns ? queries * dim : 0);
  at.scores = take(queries * tile);
  at.out = take(queries * a.value_width);
  at.stats = take(queries * 2);
  at.own = take(converts ? tile * used_of(a).width : 0);
  at.shared = take(converts ? tile * a.shared_width : 0);
  at.keys = take(turns ? tile * dim : 0);
  at.angles = take(turns ? 4 * a.pairs : 0);  // two arrays of double
  at.end = used;
  return at;
}

inline TileSizes decode_sizes(const DecodeArguments& a) {
  const int64_t row_bytes = 4 * (used_of(a).width + a.shared_width);
  int64_t rows = kTileBytes / row_bytes / 16 * 16;
  rows = rows < 16 ? 16 : rows > kMostRows ? kMostRows : rows;
  return {rows, offsets_of(a, rows).end};
}

// A part of the rows in memory: numbers `width` from `start` on of each of them.
struct Source {
  const void* rows;
  int64_t stride;
  const float* scales;
  int64_t scales_stride;
  int64_t width;
};

// One register of numbers as floats, and int8 ones by their scale.
template <typename T>
inline void convert_some(const T* from, Vec scale, int64_t left, float* to) {
  const Vec numbers = load_within(from, left);
  store_within(to, sizeof(T) == 1 ? numbers * scale : numbers, left);
}

template <typename T>
inline void convert_row(const T* row, int64_t width, Vec scale, float* to) {
  int64_t i = 0;
  for (; i + 4 * kWidth <= width; i += 4 * kWidth) {
    for (int j = 0; j < 4; j++) convert_some(row + i + j * kWidth, scale, kWidth, to + i + j * kWidth);
  }
  for (; i + kWidth <= width; i += kWidth) convert_some(row + i, scale, kWidth, to + i);
  if (i == width) return;
  const int64_t step = width < kWidth ? 8 : kWidth;  // the last register overlaps the one before it
  if (i == 0) convert_some(row, scale, step, to);
  convert_some(row + width - step, scale, step, to + width - step);
}

template <typename T>
inline void convert(const Source& from, int64_t first, int64_t count, float* to) {
  const T* row = static_cast<const T*>(from.rows) + first * from.stride;
  for (int64_t s = 0; s < count; s++, row += from.stride, to += from.width) {
    convert_row(row, from.width, splat(from.scales ? from.scales[(first + s) * from.scales_stride] : 1.0f), to);
  }
}

// Rows [first, first + count) as floats: where they are, or converted into `scratch`.
inline Part rows_of_tile(const Source& from, int64_t dtype, int64_t first, int64_t count, float* scratch) {
  switch (dtype) {
    case kBFloat16: convert<bf16>(from, first, count, scratch); break;
    case kFloat16: convert<f16>(from, first, count, scratch); break;
    case kInt8: convert<int8_t>(from, first, count, scratch); break;
    default: return {static_cast<const float*>(from.rows) + first * from.stride, from.stride, from.width};
  }
  return {scratch, from.width, from.width};
}

// Queries of the group, contiguous [M, D], times `factor`.
inline void pack_queries(const DecodeArguments& a, int64_t sequence, int64_t group, float factor, float* to) {
  const int64_t heads = a.query_heads / a.groups, dim = key_dim(a);
  for (int64_t h = 0; h < heads; h++) {
    const float* of_head = a.query + sequence * a.query_strides[0] + (group * heads + h) * a.query_strides[1];
    for (int64_t t = 0; t < a.positions; t++, to += dim) {
      for (int64_t i = 0; i < dim; i++) to[i] = of_head[t * a.query_strides[2] + i] * factor;
    }
  }
}

// Turn the queries back by the position of a tile's first row: what is left of a key's angle is its offset in the tile.
inline void turn_queries_back(const float* query, int64_t queries, int64_t dim, int64_t pairs, const double* cos,
                              const double* sin, float* to) {
  for (int64_t m = 0; m < queries; m++, query += dim, to += dim) {
    for (int64_t i = 0; i < pairs; i++) {
      const double first = query[i], second = query[i + pairs];
      to[i] = static_cast<float>(first * cos[i] + second * sin[i]);
      to[i + pairs] = static_cast<float>(second * cos[i] - first * sin[i]);
    }
    memcpy(to + 2 * pairs, query + 2 * pairs, (dim - 2 * pairs) * sizeof(float));
  }
}

// Keys of a tile with their first dims turned by the row's offset in the tile, [count, D].
inline void turn_keys(const Part* parts, int part_count, int64_t count, const Turns& turns, int64_t pairs, int64_t dim,
                      float* to) {
  for (int64_t s = 0; s < count; s++) {
    float* row = to + s * dim;
    for (int part = 0; part < part_count; part++) {
      memcpy(row, parts[part].rows + s * parts[part].stride, parts[part].width * sizeof(float));
      row += parts[part].width;
    }
    row = to + s * dim;
    const float *cos = turns.cos + s * pairs, *sin = turns.sin + s * pairs;
    for (int64_t i = 0; i < pairs; i++) {
      const float first = row[i], second = row[i + pairs];
      row[i] = first * cos[i] - second * sin[i];
      row[i + pairs] = second * cos[i] + first * sin[i];
    }
  }
}

struct Angles {
  double *cos, *sin;

  void set(const DecodeArguments& a, int64_t position) {
    for (int64_t i = 0; i < a.pairs; i++) {
      cos[i] = ::cos(position * a.frequencies[i]);
      sin[i] = ::sin(position * a.frequencies[i]);
    }
  }

  void advance(const Turns& by, int64_t pairs) {
    for (int64_t i = 0; i < pairs; i++) {
      const double c = cos[i] * by.tile_cos[i] - sin[i] * by.tile_sin[i];
      sin[i] = sin[i] * by.tile_cos[i] + cos[i] * by.tile_sin[i];
      cos[i] = c;
    }
  }
};

// −∞ where a query does not see a row of the tile; false where it sees none.
inline bool mask_scores(float* scores, int64_t padded, int64_t from, int64_t to) {
  if (from >= to) return false;
  for (int64_t s = 0; s < from; s++) scores[s] = -INFINITY;
  for (int64_t s = to; s < padded; s++) scores[s] = -INFINITY;
  return true;
}

// Scores to weights for every query, and what was summed before rescaled.
inline void weigh_all(const DecodeArguments& a, const Chunk& chunk, int64_t first, int64_t count, int64_t tile,
                      float cap_at, float* scores, float* stats, float* out) {
  const int64_t queries = query_count(a), padded = (count + kWidth - 1) / kWidth * kWidth;
  for (int64_t m = 0; m < queries; m++, scores += tile, stats += 2, out += a.value_width) {
    const Seen seen = seen_by(a, chunk.sequence, m % a.positions);
    const int64_t from = seen.first > first ? seen.first - first : 0;
    const int64_t to = seen.last - first < count ? seen.last - first : count;
    if (cap_at > 0) cap(scores, padded, cap_at);
    if (!mask_scores(scores, padded, from, to)) {
      memset(scores, 0, count * sizeof(float));
      continue;
    }
    const float factor = weigh_scores(scores, padded, stats);
    if (factor == 1.0f) continue;
    for (int64_t i = 0; i < a.value_width; i++) out[i] *= factor;
  }
}

inline void hand_over(const DecodeArguments& a, const Chunk& chunk, const float* out, const float* stats) {
  const int64_t queries = query_count(a), width = a.value_width;
  if (chunk.stats) {
    memcpy(chunk.out, out, queries * width * sizeof(float));
    memcpy(chunk.stats, stats, 2 * queries * sizeof(float));
    return;
  }
  for (int64_t m = 0; m < queries; m++) {
    const float factor = stats[2 * m + 1] == 0 ? 0.0f : 1.0f / stats[2 * m + 1];
    for (int64_t i = 0; i < width; i++) chunk.out[m * width + i] = out[m * width + i] * factor;
  }
}

inline void decode_chunk(const DecodeArguments& a, const Chunk& chunk, const Turns& turns, int64_t tile,
                         float* scratch) {
  const int64_t queries = query_count(a), dim = key_dim(a), b = chunk.sequence, g = chunk.group;
  const Offsets at = offsets_of(a, tile);
  float *query = scratch + at.query, *scores = scratch + at.scores, *out = scratch + at.out;
  float* stats = scratch + at.stats;
  const float cap_at = static_cast<float>(a.softcap * M_LOG2E);
  pack_queries(a, b, g, static_cast<float>(a.softcap > 0 ? a.scale / a.softcap : a.scale * M_LOG2E), query);
  memset(out, 0, queries * a.value_width * sizeof(float));
  for (int64_t m = 0; m < queries; m++) {
    stats[2 * m] = -INFINITY;
    stats[2 * m + 1] = 0;
  }

  const Used used = used_of(a);
  const int64_t item = a.dtype == kFloat32 ? 4 : a.dtype == kInt8 ? 1 : 2;
  const Source own = {static_cast<const char*>(a.heads) +
                          item * (b * a.heads_strides[0] + g * a.heads_strides[1] + used.start),
                      a.heads_strides[2],
                      a.scales ? a.scales + b * a.scales_strides[0] + g * a.scales_strides[1] : nullptr,
                      a.scales_strides[2], used.width};
  const Source shared = {
      static_cast<const char*>(a.shared) + item * (b * a.shared_strides[0] + a.shared_start), a.shared_strides[1],
      a.shared_scales ? a.shared_scales + b * a.shared_scales_strides[0] : nullptr, a.shared_scales_strides[1],
      a.shared_width};

  double* angles = reinterpret_cast<double*>(scratch + at.angles);
  Angles base = {angles, angles + a.pairs};
  if (a.frequencies) base.set(a, a.first_position + chunk.first - (a.starts ? a.starts[b] : 0));

  for (int64_t first = chunk.first; first < chunk.last; first += tile) {
    const int64_t count = chunk.last - first < tile ? chunk.last - first : tile;
    Ahead ahead = {static_cast<const char*>(own.rows) + (first + count) * own.stride * item, own.stride * item,
                   own.width * item, 0, 0};
    ahead.rows = chunk.last - first - count < tile ? chunk.last - first - count : tile;
    const int64_t half = queries < kManyQueries ? (ahead.rows + 1) / 2 : ahead.rows;
    ahead.set_rate(half, (queries + kQueriesAtOnce - 1) / kQueriesAtOnce * ((count + kRowsAtOnce - 1) / kRowsAtOnce));
    const Part of_head = rows_of_tile(own, a.dtype, first, count, scratch + at.own);
    Part keys[2] = {{of_head.rows + a.key_start - used.start, of_head.stride, a.key_width}, {}};
    int parts = 1;
    if (a.shared_width) keys[parts++] = rows_of_tile(shared, a.dtype, first, count, scratch + at.shared);
    const float* asked = query;
    if (a.frequencies) {
      turn_queries_back(query, queries, dim, a.pairs, base.cos, base.sin, scratch + at.turned);
      asked = scratch + at.turned;
      turn_keys(keys, parts, count, turns, a.pairs, dim, scratch + at.keys);
      keys[0] = {scratch + at.keys, dim, dim};
      parts = 1;
      base.advance(turns, a.pairs);
    }
    score_tile(keys, parts, asked, queries, dim, count, scores, tile, ahead);
    weigh_all(a, chunk, first, count, tile, cap_at, scores, stats, out);
    const Part values = {of_head.rows + a.value_start - used.start, of_head.stride, a.value_width};
    ahead.set_rate(ahead.rows, count);
    weigh_tile(values, queries, count, scores, tile, out, ahead);
  }
  hand_over(a, chunk, out, stats);
}

}  // namespace
