// The numbers that rows may hold beside float and int8_t. Kept as bits: every instruction set reads them its own way.
#pragma once

#include <stdint.h>

enum DType : int64_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kInt8 = 3 };

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};
