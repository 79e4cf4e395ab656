// Bandwidth and arithmetic of this machine, measured on the threads that the kernels use.
#include <chrono>

#include "kernels.h"
#include "pool.h"

namespace {

struct Probe {
  const Kernels* use;
  const float* numbers;
  int64_t count;
  int64_t rounds;
  int64_t pieces;
  int64_t next;
  float total;
};

void take_pieces(void* context) {
  Probe& probe = *static_cast<Probe*>(context);
  for (;;) {
    const int64_t piece = __atomic_fetch_add(&probe.next, 1, __ATOMIC_RELAXED);
    if (piece >= probe.pieces) return;
    const int64_t first = probe.count * piece / probe.pieces, last = probe.count * (piece + 1) / probe.pieces;
    float total = probe.numbers ? probe.use->read(probe.numbers + first, last - first)
                                : probe.use->multiply_add(probe.rounds);
    __atomic_store(&probe.total, &total, __ATOMIC_RELAXED);
  }
}

double seconds(Probe probe, int64_t threads) {
  const auto before = std::chrono::steady_clock::now();
  run_on_threads(threads, take_pieces, &probe);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
}

}  // namespace

// Seconds to read `count` floats once on `threads` threads.
extern "C" __attribute__((visibility("default"))) double twofold_read_bandwidth(const float* numbers, int64_t count,
                                                                                int64_t threads) {
  return seconds({&kernels(), numbers, count, 0, 8 * threads, 0, 0}, threads);
}

// Seconds for `rounds` rounds on each of `threads` threads; twofold_flops_per_round says what a round is.
extern "C" __attribute__((visibility("default"))) double twofold_fma_peak(int64_t rounds, int64_t threads) {
  return seconds({&kernels(), nullptr, 0, rounds, threads, 0, 0}, threads);
}

extern "C" __attribute__((visibility("default"))) int64_t twofold_flops_per_round() {
  return kernels().flops_per_round;
}
