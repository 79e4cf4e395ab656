// What this machine can do at best, to judge the kernels by: read memory, and multiply and add in registers.
#pragma once

#include "kernels.h"

namespace {

inline float read_numbers(const float* numbers, int64_t count) {
  Vec sums[8];
  for (Vec& s : sums) s = splat(0);
  int64_t i = 0;
  for (; i + 8 * kWidth <= count; i += 8 * kWidth) {
    for (int j = 0; j < 8; j++) sums[j] = sums[j] + load(numbers + i + j * kWidth);
  }
  float total = 0;
  for (Vec& s : sums) total += sum(s);
  for (; i < count; i++) total += numbers[i];
  return total;
}

constexpr int kProbeChains = 12;
constexpr int64_t kProbeFlopsPerRound = 2 * kProbeChains * kWidth;

inline float multiply_add(int64_t rounds) {
  Vec chains[kProbeChains];
  for (int j = 0; j < kProbeChains; j++) chains[j] = splat(static_cast<float>(j));
  const Vec factor = splat(0.999f), term = splat(0.001f);
  for (int64_t i = 0; i < rounds; i++) {
    for (Vec& chain : chains) chain = fma(chain, factor, term);
  }
  float total = 0;
  for (Vec& chain : chains) total += sum(chain);
  return total;
}

}  // namespace
