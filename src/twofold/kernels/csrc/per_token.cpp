// The entries of what a decode step does once per token.
#include "per_token.h"

#include "kernels.h"

extern "C" __attribute__((visibility("default"))) void twofold_rms_norm(const NormTask* task) {
  kernels().rms_norm(*task);
}

extern "C" __attribute__((visibility("default"))) void twofold_turn(const TurnTask* task) { kernels().turn(*task); }

extern "C" __attribute__((visibility("default"))) void twofold_quantise(const QuantiseTask* task) {
  kernels().quantise(*task);
}
