// A weight matrix times the vectors of one to four tokens.
#pragma once

#include <stdint.h>

#include "types.h"

constexpr int64_t kMaxTokens = 4;

// Filled by kernels/matvec.py, field by field in this order; every field has eight bytes. Types are those of DType.
// Shapes were checked there.
struct MatvecArguments {
  const void* weight;  // [rows, width], last dim contiguous
  int64_t weight_type, weight_stride, rows, width;
  const void* x;  // [tokens, width], contiguous, as y is: float32 or bfloat16
  int64_t x_type, tokens;
  const void* bias;  // [rows] or null
  int64_t bias_type;
  const float* scales;  // [rows] or null
  void* y;              // [tokens, rows] of x's type
  int64_t threads;
};

// What the instruction sets read. Strides count numbers, not bytes.
struct MatvecTask {
  const void* weight;  // [rows, width], last dim contiguous: float32, bfloat16 or int8
  int64_t weight_type, weight_stride, width;
  const float* x;  // [tokens, width]
  int64_t x_stride, tokens;
};

// What happens to a product: it is added to what is in y, or goes through a function (gelu_tanh: GELU by a tanh).
enum Then : int64_t { kNothing = 0, kAdd = 1, kGelu = 2, kGeluTanh = 3, kRelu = 4 };

// One product of several that share a wake-up of the threads.
struct Product {
  MatvecTask task;
  int64_t rows;
  const float* scales;  // [rows] or null
  const void* bias;     // [rows] or null
  int64_t bias_type;
  void* y;  // [tokens, rows] of y_type: float32 or bfloat16; kAdd takes float32
  int64_t y_type, then;
};

constexpr int64_t kMostProducts = 3;

// At most kMostProducts of them, none without rows, on at most `threads` threads.
void multiply(const Product* products, int64_t count, int64_t threads);
