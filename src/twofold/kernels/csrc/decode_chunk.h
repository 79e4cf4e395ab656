// One pass over a chunk of rows, tile by tile: a tile is read from memory once and serves as keys and as values.
#pragma once

#include <math.h>
#include <string.h>

#include "decode_lanes.h"
#include "decode_rows.h"
#include "decode_weigh.h"
#include "kernels.h"
#include "softmax.h"

namespace {

constexpr int64_t kTileBytes = 16384;  // half of the smallest L1 cache in use
constexpr int64_t kMostRows = 64;
constexpr int64_t kFewQueries = 2;  // so few read rows of other types as they are; more read them as floats

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

inline int64_t item_size(const DecodeArguments& a) { return a.dtype == kFloat32 ? 4 : a.dtype == kInt8 ? 1 : 2; }

// Whether rows are first made floats, in scratch memory. Two parts of int8 rows have a scale each, and scores one.
inline bool converts(const DecodeArguments& a) {
  if (a.dtype == kFloat32) return false;
  return query_count(a) > kFewQueries || a.frequencies || (a.dtype == kInt8 && a.shared_width);
}

// Where the pieces of a thread's scratch memory begin; the last is its size.
struct Offsets {
  int64_t query, turned, scores, out, tops, totals, factors, scales, own, shared, keys, angles, end;
};
inline Offsets offsets_of(const DecodeArguments& a, int64_t tile) {
  const int64_t lanes = lanes_for(query_count(a)), dim = key_dim(a);
  const int64_t queries = lanes ? lanes : query_count(a);
  const bool turns = a.frequencies != nullptr, floats = converts(a);
  Offsets at{};
  int64_t used = 0;
  const auto take = [&used](int64_t count) {
    const int64_t here = used;
    used += rounded(count);
    return here;
  };
  at.query = take(queries * dim);
  at.turned = take(turns ? queries * dim : 0);
  at.scores = take(queries * rounded(tile));
  at.out = take(queries * a.value_width);
  at.tops = take(queries);
  at.totals = take(queries);
  at.factors = take(queries);
  at.scales = take(a.dtype == kInt8 ? tile : 0);
  at.own = take(floats ? tile * used_of(a).width : 0);
  at.shared = take(floats ? tile * a.shared_width : 0);
  at.keys = take(turns ? tile * dim : 0);
  at.angles = take(turns ? 4 * a.pairs : 0);  // two arrays of double
  at.end = used;
  return at;
}

inline TileSizes decode_sizes(const DecodeArguments& a) {
  const bool lanes = lanes_for(query_count(a)) > 0;
  const int64_t multiple = lanes ? 12 : 16, least = lanes ? 24 : 16;
  int64_t rows = kTileBytes / (4 * (used_of(a).width + a.shared_width));
  rows = (rows > kMostRows ? kMostRows : rows) / multiple * multiple;
  rows = rows < least ? least : rows;
  return {rows, offsets_of(a, rows).end};
}

// A chunk's running results, and what its tiles are computed with.
struct Pass {
  const DecodeArguments& a;
  const Chunk& chunk;
  int64_t queries, lanes, tile;  // lanes: 0 where scores stand query by query
  const float* query;
  float *scores, *out, *tops, *totals, *factors, *scales;
};

// −∞ where a query does not see a row of the tile; false where it sees none.
inline bool mask_scores(float* scores, int64_t padded, int64_t from, int64_t to) {
  if (from >= to) return false;
  for (int64_t s = 0; s < from; s++) scores[s] = -INFINITY;
  for (int64_t s = to; s < padded; s++) scores[s] = -INFINITY;
  return true;
}

// The rows of a tile that a query sees, counted from the tile's first.
inline Seen seen_in_tile(const Pass& p, int64_t query, int64_t first, int64_t count) {
  const Seen seen = seen_by(p.a, p.chunk.sequence, query % p.a.positions);
  return {seen.first > first ? seen.first - first : 0, seen.last - first < count ? seen.last - first : count};
}

inline bool all_see(const Pass& p, int64_t first, int64_t count) {
  const Seen oldest = seen_by(p.a, p.chunk.sequence, 0), newest = seen_by(p.a, p.chunk.sequence, p.a.positions - 1);
  return newest.first <= first && first + count <= oldest.last;
}

inline void rescale(float* out, int64_t width, float factor) {
  if (factor == 1.0f) return;
  for (int64_t i = 0; i < width; i++) out[i] *= factor;
}

// Scores to weights for every query, and what was summed before rescaled.
inline void weigh_each(const Pass& p, int64_t first, int64_t count, const float* scales) {
  const int64_t padded = (count + kWidth - 1) / kWidth * kWidth;
  const float cap_at = static_cast<float>(p.a.softcap * M_LOG2E);
  for (int64_t m = 0; m < p.queries; m++) {
    float* scores = p.scores + m * p.tile;
    const Seen seen = seen_in_tile(p, m, first, count);
    if (scales) {
      for (int64_t s = 0; s < padded; s += kWidth) store(scores + s, load(scores + s) * load(scales + s));
    }
    if (cap_at > 0) cap(scores, padded, cap_at);
    if (!mask_scores(scores, padded, seen.first, seen.last)) {
      memset(scores, 0, count * sizeof(float));
      continue;
    }
    rescale(p.out + m * p.a.value_width, p.a.value_width,
            weigh_scores(scores, padded, scales, p.tops[m], p.totals[m]));
  }
}

// The same where a register holds a score of several queries.
inline void weigh_all_lanes(const Pass& p, int64_t first, int64_t count) {
  const float cap_at = static_cast<float>(p.a.softcap * M_LOG2E);
  if (cap_at > 0) cap(p.scores, count * p.lanes, cap_at);
  if (!all_see(p, first, count)) {
    for (int64_t m = 0; m < p.queries; m++) {
      const Seen seen = seen_in_tile(p, m, first, count);
      for (int64_t s = 0; s < count; s++) {
        if (s < seen.first || s >= seen.last) p.scores[s * p.lanes + m] = -INFINITY;
      }
    }
  }
  for (int64_t m = 0; m < p.lanes; m += kWidth) {
    weigh_lanes(p.scores + m, count, p.lanes, p.tops + m, p.totals + m, p.factors + m);
  }
  for (int64_t m = 0; m < p.queries; m++) rescale(p.out + m * p.a.value_width, p.a.value_width, p.factors[m]);
}

// Scores, weights and their sums, where scores stand query by query. `scales` of the rows or null.
template <typename T>
inline void attend_tile(const Pass& p, const float* query, const Part<T>* keys, int parts, const Part<T>& values,
                        int64_t first, int64_t count, const float* scales, Ahead& ahead) {
  const int64_t half = p.queries < kManyQueries ? (ahead.rows + 1) / 2 : ahead.rows;
  const int64_t passes = (p.queries + kQueriesAtOnce - 1) / kQueriesAtOnce;
  ahead.set_rate(half, passes * ((count + kRowsAtOnce - 1) / kRowsAtOnce));
  score_tile(keys, parts, query, p.queries, key_dim(p.a), count, p.scores, p.tile, ahead);
  weigh_each(p, first, count, scales);
  ahead.set_rate(ahead.rows, count);
  weigh_tile(values, p.queries, count, {p.scores, p.tile, 1}, p.out, ahead);
}

// The same where a register holds a score of several queries.
inline void attend_tile_lanes(const Pass& p, const float* query, const Part<float>* keys, int parts,
                              const Part<float>& values, int64_t first, int64_t count, Ahead& ahead) {
  const int64_t passes = (p.lanes + 2 * kWidth - 1) / (2 * kWidth);
  ahead.set_rate(ahead.rows, passes * ((count + kRowsOf<2> - 1) / kRowsOf<2>));
  score_tile_lanes(keys, parts, query, p.lanes, count, p.scores, ahead);
  weigh_all_lanes(p, first, count);
  ahead.set_rate(ahead.rows, count);
  weigh_tile(values, p.queries, count, {p.scores, 1, p.lanes}, p.out, ahead);
}

// A tile of rows that are read as they are.
template <typename T>
inline void attend_direct(const Pass& p, const Source& own, const Source& shared, int64_t first, int64_t count,
                          Ahead& ahead) {
  const int64_t start = used_of(p.a).start;
  const T* rows = static_cast<const T*>(own.rows) + first * own.stride - start;
  const Part<T> keys[2] = {{rows + p.a.key_start, own.stride, p.a.key_width},
                           {static_cast<const T*>(shared.rows) + first * shared.stride, shared.stride, shared.width}};
  const Part<T> values = {rows + p.a.value_start, own.stride, p.a.value_width};
  if (own.scales) {
    for (int64_t s = 0; s < count; s++) p.scales[s] = own.scales[(first + s) * own.scales_stride];
  }
  attend_tile<T>(p, p.query, keys, shared.width ? 2 : 1, values, first, count, own.scales ? p.scales : nullptr, ahead);
}

// What a tile of floats is made in.
struct Floats {
  float *own, *shared, *keys, *turned;
  Angles base;  // of the tile's first row
  const Turns& turns;
};

// A tile of rows as floats: where they are, or converted; and the keys turned to their positions.
inline void attend_floats(const Pass& p, Floats& to, const Source& own, const Source& shared, int64_t first,
                          int64_t count, Ahead& ahead) {
  const DecodeArguments& a = p.a;
  const int64_t start = used_of(a).start, dim = key_dim(a);
  const Part<float> of_head = rows_of_tile(own, a.dtype, first, count, to.own);
  const Part<float> values = {of_head.rows + a.value_start - start, of_head.stride, a.value_width};
  Part<float> keys[3] = {{of_head.rows + a.key_start - start, of_head.stride, a.key_width}, {}, {}};
  int parts = 1;
  if (a.shared_width) keys[parts++] = rows_of_tile(shared, a.dtype, first, count, to.shared);
  const float* query = p.query;
  if (a.frequencies) {
    turn_queries_back(query, p.queries, p.lanes, dim, a.pairs, to.base.cos, to.base.sin, to.turned);
    parts = turn_keys(keys, parts, count, to.turns, a.pairs, dim, to.keys);
    to.base.advance(to.turns, a.pairs);
    query = to.turned;
  }
  if (p.lanes) return attend_tile_lanes(p, query, keys, parts, values, first, count, ahead);
  attend_tile(p, query, keys, parts, values, first, count, nullptr, ahead);
}

inline void hand_over(const Pass& p) {
  const int64_t width = p.a.value_width;
  if (p.chunk.stats) {
    memcpy(p.chunk.out, p.out, p.queries * width * sizeof(float));
    for (int64_t m = 0; m < p.queries; m++) {
      p.chunk.stats[2 * m] = p.tops[m];
      p.chunk.stats[2 * m + 1] = p.totals[m];
    }
    return;
  }
  for (int64_t m = 0; m < p.queries; m++) {
    const float factor = p.totals[m] == 0 ? 0.0f : 1.0f / p.totals[m];
    for (int64_t i = 0; i < width; i++) p.chunk.out[m * width + i] = p.out[m * width + i] * factor;
  }
}

inline Source source_of_head(const DecodeArguments& a, int64_t b, int64_t g) {
  const Used used = used_of(a);
  const int64_t first = b * a.heads_strides[0] + g * a.heads_strides[1] + used.start;
  return {static_cast<const char*>(a.heads) + item_size(a) * first, a.heads_strides[2],
          a.scales ? a.scales + b * a.scales_strides[0] + g * a.scales_strides[1] : nullptr, a.scales_strides[2],
          used.width};
}

inline Source source_of_shared(const DecodeArguments& a, int64_t b) {
  const int64_t first = b * a.shared_strides[0] + a.shared_start;
  return {static_cast<const char*>(a.shared) + item_size(a) * first, a.shared_strides[1],
          a.shared_scales ? a.shared_scales + b * a.shared_scales_strides[0] : nullptr, a.shared_scales_strides[1],
          a.shared_width};
}

inline void decode_chunk(const DecodeArguments& a, const Chunk& chunk, const Turns& turns, int64_t tile,
                         float* scratch) {
  const int64_t queries = query_count(a), lanes = lanes_for(queries), item = item_size(a);
  const Offsets at = offsets_of(a, tile);
  float* query = scratch + at.query;
  const Pass p = {a, chunk, queries, lanes, tile, query, scratch + at.scores, scratch + at.out, scratch + at.tops,
                  scratch + at.totals, scratch + at.factors, scratch + at.scales};
  const double factor = a.softcap > 0 ? a.scale / a.softcap : a.scale * M_LOG2E;
  pack_queries(a, chunk.sequence, chunk.group, lanes, static_cast<float>(factor), query);
  memset(p.out, 0, queries * a.value_width * sizeof(float));
  for (int64_t m = 0; m < (lanes ? lanes : queries); m++) {
    p.tops[m] = -INFINITY;
    p.totals[m] = 0;
  }
  const Source own = source_of_head(a, chunk.sequence, chunk.group), shared = source_of_shared(a, chunk.sequence);
  double* angles = reinterpret_cast<double*>(scratch + at.angles);
  Floats floats = {scratch + at.own, scratch + at.shared, scratch + at.keys, scratch + at.turned,
                   {angles, angles + a.pairs}, turns};
  if (a.frequencies) {
    floats.base.set(a, a.first_position + chunk.first - (a.starts ? a.starts[chunk.sequence] : 0));
    memcpy(floats.turned, query, (lanes ? lanes : queries) * key_dim(a) * sizeof(float));  // what is not turned stays
  }

  for (int64_t first = chunk.first; first < chunk.last; first += tile) {
    const int64_t left = chunk.last - first, count = left < tile ? left : tile;
    const int64_t next = left - count < tile ? left - count : tile;
    Ahead ahead = {static_cast<const char*>(own.rows) + (first + count) * own.stride * item, own.stride * item,
                   own.width * item, next, 0};
    if (a.dtype == kFloat32 || converts(a)) {
      attend_floats(p, floats, own, shared, first, count, ahead);
    } else if (a.dtype == kInt8) {
      attend_direct<int8_t>(p, own, shared, first, count, ahead);
    } else if (a.dtype == kBFloat16) {
      attend_direct<bf16>(p, own, shared, first, count, ahead);
    } else {
      attend_direct<f16>(p, own, shared, first, count, ahead);
    }
  }
  hand_over(p);
}

}  // namespace
