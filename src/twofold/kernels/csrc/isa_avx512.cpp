#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c")
#endif
#include "vec_avx512.h"
#include "every_isa.h"
TWOFOLD_KERNELS(kAvx512Kernels, "avx512");
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
