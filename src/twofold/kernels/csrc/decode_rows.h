// What a chunk is computed from: rows as floats, packed queries, and both turned to their positions.
#pragma once

#include <math.h>
#include <string.h>

#include "decode_tile.h"

namespace {

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
inline Part<float> rows_of_tile(const Source& from, int64_t dtype, int64_t first, int64_t count, float* scratch) {
  switch (dtype) {
    case kBFloat16: convert<bf16>(from, first, count, scratch); break;
    case kFloat16: convert<f16>(from, first, count, scratch); break;
    case kInt8: convert<int8_t>(from, first, count, scratch); break;
    default: return {static_cast<const float*>(from.rows) + first * from.stride, from.stride, from.width};
  }
  return {scratch, from.width, from.width};
}

// Queries of the group times `factor`: [M, D], or with lanes [D, lanes] and zeros in lanes that stand for no query.
inline void pack_queries(const DecodeArguments& a, int64_t sequence, int64_t group, int64_t lanes, float factor,
                         float* to) {
  const int64_t heads = a.query_heads / a.groups, dim = key_dim(a);
  const int64_t along = lanes ? lanes : 1, across = lanes ? 1 : dim;
  if (lanes) memset(to, 0, lanes * dim * sizeof(float));
  for (int64_t h = 0; h < heads; h++) {
    const float* of_head = a.query + sequence * a.query_strides[0] + (group * heads + h) * a.query_strides[1];
    for (int64_t t = 0; t < a.positions; t++, to += across) {
      for (int64_t i = 0; i < dim; i++) to[i * along] = of_head[t * a.query_strides[2] + i] * factor;
    }
  }
}

// Turn the queries back by the position of a tile's first row: what is left of a key's angle is its offset in the tile.
// Queries are [M, D], and with lanes [D, lanes]; only their first 2 · pairs dims are written.
inline void turn_queries_back(const float* query, int64_t queries, int64_t lanes, int64_t dim, int64_t pairs,
                              const double* cos, const double* sin, float* to) {
  const int64_t along = lanes ? lanes : 1, across = lanes ? 1 : dim, inner = lanes ? lanes : pairs;
  for (int64_t outer = 0; outer < (lanes ? pairs : queries); outer++) {
    const float* first = query + outer * (lanes ? along : across);
    const float* second = first + pairs * along;
    float *to_first = to + (first - query), *to_second = to_first + pairs * along;
    if (lanes) {  // side by side lie the queries
      const double c = cos[outer], s = sin[outer];
      for (int64_t m = 0; m < inner; m++) {
        to_first[m] = static_cast<float>(first[m] * c + second[m] * s);
        to_second[m] = static_cast<float>(second[m] * c - first[m] * s);
      }
    } else {  // side by side lie the pairs
      for (int64_t i = 0; i < inner; i++) {
        to_first[i] = static_cast<float>(first[i] * cos[i] + second[i] * sin[i]);
        to_second[i] = static_cast<float>(second[i] * cos[i] - first[i] * sin[i]);
      }
    }
  }
}

// Pairs (i, i + pairs) of `from` turned. It may be `to` itself: a pair is read before it is written.
inline void turn(const float* from, const float* cos, const float* sin, int64_t pairs, float* to) {
  int64_t i = 0;
  for (; i + kWidth <= pairs; i += kWidth) {
    const Vec first = load(from + i), second = load(from + i + pairs), c = load(cos + i), s = load(sin + i);
    store(to + i, first * c - second * s);
    store(to + i + pairs, fma(first, s, second * c));
  }
  for (; i < pairs; i++) {
    const float first = from[i], second = from[i + pairs];
    to[i] = first * cos[i] - second * sin[i];
    to[i + pairs] = second * cos[i] + first * sin[i];
  }
}

// Keys of a tile with their first 2 · pairs dims turned by the row's offset in the tile. Where these are registers' worth
// of the first part, they alone are made, in `to` [count, 2 · pairs], and what is left of that part stays where it is:
// most of a key, where few dims are rotary. Else the keys are made whole, [count, D]. Returns the number of parts.
inline int turn_keys(Part<float>* parts, int part_count, int64_t count, const Turns& turns, int64_t pairs, int64_t dim,
                     float* to) {
  const int64_t turned = 2 * pairs;
  const bool alone = turned % 8 == 0 && turned <= parts[0].width;
  const int64_t width = alone ? turned : dim;
  for (int64_t s = 0; s < count; s++) {
    const float* key = parts[0].rows + s * parts[0].stride;
    float* made = to + s * width;
    if (!alone) {
      float* next = made;
      for (int part = 0; part < part_count; next += parts[part++].width) {
        memcpy(next, parts[part].rows + s * parts[part].stride, parts[part].width * sizeof(float));
      }
      key = made;
    }
    turn(key, turns.cos + s * pairs, turns.sin + s * pairs, pairs, made);
  }
  if (!alone) {
    parts[0] = {to, dim, dim};
    return 1;
  }
  const Part<float> rest = {parts[0].rows + turned, parts[0].stride, parts[0].width - turned};
  if (rest.width == 0) {
    parts[0] = {to, turned, turned};
    return part_count;
  }
  for (int part = part_count; part > 1; part--) parts[part] = parts[part - 1];
  parts[0] = {to, turned, turned};
  parts[1] = rest;
  return part_count + 1;
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

}  // namespace
