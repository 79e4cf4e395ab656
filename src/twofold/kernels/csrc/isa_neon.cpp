#if defined(__aarch64__)
#include "vec_neon.h"
#include "every_isa.h"
TWOFOLD_KERNELS(kNeonKernels, "neon");
#endif
