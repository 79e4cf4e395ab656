// Chooses an instruction set: the best that this processor runs, or the one that was asked for.
#include <string.h>

#include "kernels.h"

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
#endif

namespace {

bool runs_here(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (!strcmp(name, "avx2")) return avx2;
  if (!strcmp(name, "avx512")) {
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  }
#endif
  return true;
}

// From best to plainest.
const Kernels* const kAll[] = {
#if defined(__x86_64__)
    &kAvx512Kernels,
    &kAvx2Kernels,
#elif defined(__aarch64__)
    &kNeonKernels,
#endif
    &kPortableKernels,
};

const Kernels* best() {
  for (const Kernels* candidate : kAll) {
    if (runs_here(candidate->name)) return candidate;
  }
  return &kPortableKernels;
}

const Kernels* chosen = nullptr;

}  // namespace

const Kernels& kernels() {
  if (!chosen) chosen = best();
  return *chosen;
}

extern "C" __attribute__((visibility("default"))) const char* twofold_isa() { return kernels().name; }

// 1 where this library has the instruction set and this processor runs it; "" stands for the best one.
extern "C" __attribute__((visibility("default"))) int twofold_use_isa(const char* name) {
  if (!name[0]) {
    chosen = best();
    return 1;
  }
  for (const Kernels* candidate : kAll) {
    if (!strcmp(candidate->name, name) && runs_here(name)) {
      chosen = candidate;
      return 1;
    }
  }
  return 0;
}
