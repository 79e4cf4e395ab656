#include "vec_portable.h"
#include "every_isa.h"
TWOFOLD_KERNELS(kPortableKernels, "portable");
