// What every instruction set offers: one table each, and the best one that this processor runs.
#pragma once

#include <stddef.h>

#include "decode.h"
#include "decoder_step.h"
#include "matvec.h"
#include "per_token.h"

struct Kernels {
  const char* name;
  TileSizes (*decode_sizes)(const DecodeArguments&);
  void (*decode_chunk)(const DecodeArguments&, const Chunk&, const Turns&, int64_t tile_rows, float* scratch);
  float (*read)(const float* numbers, int64_t count);  // their sum: a plain stream, to measure bandwidth
  float (*multiply_add)(int64_t rounds);               // kFlopsPerRound · rounds operations in registers
  int64_t flops_per_round;
  // out[t][n] = weight row (first + n) · x[t], for `count` weight rows.
  void (*matvec_rows)(const MatvecTask&, int64_t first, int64_t count, float* out);
  void (*rms_norm)(const NormTask&);
  void (*turn)(const TurnTask&);
  void (*quantise)(const QuantiseTask&);
  void (*step_norm)(const StepNorm&, const float* x, int64_t width, float* out);  // of one vector
  void (*gate)(const float* gates, float* up, int64_t count);                     // up · SiLU(gates), in `up`
};

// In use: the best by default, or what twofold_use_isa chose.
const Kernels& kernels();
