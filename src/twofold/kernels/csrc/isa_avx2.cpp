#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include "vec_avx2.h"
#include "every_isa.h"
TWOFOLD_KERNELS(kAvx2Kernels, "avx2");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
