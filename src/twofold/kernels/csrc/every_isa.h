// The kernels, written once over Vec. Each isa_*.cpp includes its Vec, then this. Everything is in an anonymous
// namespace and calls no inline function of a standard header, so that no code of a wider instruction set can be
// linked into a narrower one's place.
#pragma once

#include "decode_chunk.h"
#include "decoder_step_each.h"
#include "matvec_dots.h"
#include "per_token_each.h"
#include "probes.h"

#define TWOFOLD_KERNELS(table, name)                                                                                  \
  extern const Kernels table;                                                                                         \
  const Kernels table = {name,        decode_sizes, decode_chunk, read_numbers, multiply_add, kProbeFlopsPerRound,      \
                         matvec_rows, rms_norm,     turn,         quantise,     step_norm,    gate}
