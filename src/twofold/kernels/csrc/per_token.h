// What a decode step does once per token beside products and attention: RMSNorm, rotary positions, int8 rows.
//
// Filled by kernels/per_token.py, field by field in this order; every field has eight bytes. Strides count numbers,
// not bytes. `dtype` is float32, bfloat16 or float16. Shapes were checked there. One thread: these are few numbers.
#pragma once

#include <stdint.h>

#include "types.h"

// out = x / sqrt(mean(x²) + epsilon) · weight, for each of `vectors` contiguous vectors.
struct NormTask {
  int64_t dtype, vectors, width;
  const void *x, *weight;
  void* out;
  double epsilon;
};

// Pairs (i, i + turned / 2) of the first `turned` dims turned by their position's angle; the other dims as they are.
struct TurnTask {
  int64_t dtype, sequences, positions, heads, dims, turned;
  const void* x;  // [B, T, H, D], last dim contiguous
  int64_t x_strides[3];
  const void *cos, *sin;  // [B or 1, T, turned], contiguous; sines with the sign that they have for the dim they go to
  int64_t angle_stride;   // from one sequence to the next; 0 where all have the same
  double sign;            // −1 turns back
  void* out;              // [B, T, H, D], contiguous
};

// int8 numbers and one scale for each vector x[b, g, t]: see cache/kept.py.
struct QuantiseTask {
  int64_t dtype, sequences, groups, tokens, width;
  const void* x;  // [B, G, T, W], last dim contiguous
  int64_t x_strides[3];
  int8_t* out;
  int64_t out_strides[3];
  float* scales;
  int64_t scales_strides[3];
};
