// Between the number types, one number at a time: to the nearest, ties to even.
#pragma once

#include <string.h>

#include "types.h"

namespace {

inline uint32_t bits_of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

inline float widened(bf16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }

inline void narrow(float x, bf16* to) {
  const uint32_t bits = bits_of(x);
  to->bits = static_cast<uint16_t>(x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline void narrow(float x, f16* to) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000;
  uint32_t bits = bits_of(x) & 0x7fffffff;
  if (bits >= 0x47800000) {  // 65,536 or more, infinity, NaN
    bits = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
  } else if (bits < 0x38800000) {  // subnormal: beside 0.5, float32 counts in float16's smallest steps
    bits = bits_of(from_bits(bits) + 0.5f) - 0x3f000000;
  } else {
    bits = (bits + 0xfff + (bits >> 13 & 1) - 0x38000000) >> 13;
  }
  to->bits = static_cast<uint16_t>(sign | bits);
}

}  // namespace
