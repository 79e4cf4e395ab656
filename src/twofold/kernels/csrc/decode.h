// One decode step's attention over rows: what is asked, and one piece of the work.
#pragma once

#include <stdint.h>

#include "types.h"

// Filled by kernels/decode_native.py, field by field in this order; every field has eight bytes. Strides count numbers,
// not bytes. Spans and shapes were checked there; `starts` and `lengths` are checked here.
struct DecodeArguments {
  int64_t sequences, query_heads, groups, positions, rows;
  const float* query;  // [B, H, T, D], last dim contiguous
  int64_t query_strides[3];
  float* out;  // [B, H, T, value width], contiguous
  int64_t dtype;
  const void* heads;  // [B, G, S, W]
  int64_t heads_strides[3];
  const void* shared;  // [B, S, W] or null
  int64_t shared_strides[2];
  int64_t key_start, key_width, value_start, value_width, shared_start, shared_width;
  const int64_t* starts;   // [B] or null: 0
  const int64_t* lengths;  // [B] or null: `rows`
  int64_t window;          // 0: everything
  const float* scales;     // [B, G, S], of int8 rows
  int64_t scales_strides[3];
  const float* shared_scales;  // [B, S]
  int64_t shared_scales_strides[2];
  const double* frequencies;  // [pairs] or null
  int64_t pairs, first_position;
  double scale, softcap;
  int64_t threads;
};

// Rows [first, last) of one sequence and key/value head, for all M = (H / G) · T queries of its group.
struct Chunk {
  int64_t sequence, group, first, last;
  float* out;    // [M, value width]
  float* stats;  // [M, 2]: the largest score (in units of log 2) and the sum of weights; null: `out` gets the quotient
};

// In-tile turns of the keys, the same for all chunks: cos and sin of j · frequency, [tile, pairs] each, and those of
// a whole tile, [pairs], in double.
struct Turns {
  const float *cos, *sin;
  const double *tile_cos, *tile_sin;
};

struct TileSizes {
  int64_t rows;     // of a tile
  int64_t scratch;  // floats that `decode_chunk` needs
};

inline int64_t query_count(const DecodeArguments& a) { return a.query_heads / a.groups * a.positions; }
inline int64_t key_dim(const DecodeArguments& a) { return a.key_width + a.shared_width; }

// The rows [first, last) that some query of a sequence sees.
struct Seen {
  int64_t first, last;
};
inline Seen seen_by(const DecodeArguments& a, int64_t sequence, int64_t position) {
  const int64_t start = a.starts ? a.starts[sequence] : 0;
  const int64_t length = a.lengths ? a.lengths[sequence] : a.rows;
  const int64_t last = length - (a.positions - 1 - position);
  const int64_t first = a.window && last - a.window > start ? last - a.window : start;
  return {first, last > first ? last : first};
}

// The whole step. Starts and lengths must lie in the rows. Throws std::bad_alloc.
void decode(const DecodeArguments& a);
