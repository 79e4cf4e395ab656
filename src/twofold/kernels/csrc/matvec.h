// A weight matrix times the vectors of one to four tokens.
#pragma once

#include <stdint.h>

#include "types.h"

constexpr int64_t kMaxTokens = 4;

// What the instruction sets read. Strides count numbers, not bytes.
struct MatvecTask {
  const void* weight;  // [rows, width], last dim contiguous: float32, bfloat16 or int8
  int64_t weight_type, weight_stride, width;
  const float* x;  // [tokens, width]
  int64_t x_stride, tokens;
};
