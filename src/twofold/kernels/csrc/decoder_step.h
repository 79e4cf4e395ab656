// One decode step of a whole decoder: all blocks and the last norm, for one to four tokens.
//
// Filled by kernels/decoder_step.py, field by field in this order; every field has eight bytes. Types are those of
// DType, strides count numbers, not bytes. Shapes were checked there.
#pragma once

#include <stdint.h>

#include "matvec.h"
#include "types.h"

// y = W x · scale + bias, [rows, width] with contiguous rows. No rows: no such matrix.
struct StepLinear {
  const void* weight;
  int64_t type, stride, rows, width;
  const void* bias;  // [rows] or null
  int64_t bias_type;
  const float* scales;  // [rows], of int8 weights
};

// LayerNorm with a bias, RMSNorm without.
struct StepNorm {
  const void *weight, *bias;
  int64_t type;  // of both
  double epsilon;
};

// The step's activation between `up` and `down`, and with a `gate` SiLU(gate) · up.
struct StepBlock {
  StepNorm attention_norm, mlp_norm;
  StepLinear query, key, value, out, gate, up, down;
};

// Where the rows lie that a layer sees, those of the new tokens last; a layer without a key of its own reads others'.
struct StepRows {
  void* heads;  // [B, G, S, W], last dim contiguous
  int64_t strides[3];
  int64_t count;   // S
  int64_t window;  // 0: everything
  float* scales;   // [B, G, S], of int8 rows
  int64_t scales_strides[3];
};

enum RowTail : int64_t { kNoTail = 0, kValueTail = 1, kRawTail = 2 };  // what follows a key in its row
enum Reading : int64_t { kAsItIs = 0, kTurnedBack = 1, kRolled = 2 };  // what is done to what was read

struct DecoderStep {
  int64_t sequences, positions, width, heads, groups, head_dim;
  const void* x;  // [B, T, M], contiguous, as `out` is: float32 or bfloat16
  int64_t x_type;
  void* out;
  const int64_t* places;       // [B or 1, T]: where the tokens stand
  int64_t place_stride;        // from one sequence to the next, 0 where all stand alike
  const double* frequencies;   // [pairs] or null
  int64_t pairs;               // turn with each other: dims i and i + pairs
  int64_t query_is_key;        // turned, where keys are
  int64_t keys_turned;         // in the rows; else they are turned when they are read
  int64_t tail, reading;       // RowTail, Reading
  int64_t row_type, row_width;
  int64_t key_start, value_start;  // in a row; both are head_dim wide
  const int64_t* starts;           // [B] or null: the first row seen of `total`
  int64_t total;                   // rows of a layer that sees everything
  int64_t first_position;          // of the first row, where keys are turned when they are read
  double scale, softcap;
  int64_t blocks;  // how many
  StepNorm norm;
  int64_t threads;
  int64_t activation;  // Then: of what `up` makes, kNothing with a gate
};
