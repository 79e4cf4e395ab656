#include "pool.h"

#include <stdlib.h>

#include <thread>
#include <vector>

namespace {

using OpenMpParallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
OpenMpParallel openmp_parallel = nullptr;

struct Scratch {
  float* memory = nullptr;
  int64_t count = 0;
  ~Scratch() { free(memory); }
};
thread_local Scratch scratch;

}  // namespace

extern "C" __attribute__((visibility("default"))) void twofold_set_openmp(void* gomp_parallel) {
  openmp_parallel = reinterpret_cast<OpenMpParallel>(gomp_parallel);
}

void run_on_threads(int64_t threads, void (*work)(void*), void* context) {
  if (threads <= 1) {
    work(context);
  } else if (openmp_parallel) {
    openmp_parallel(work, context, static_cast<unsigned>(threads), 0);
  } else {
    std::vector<std::thread> others;
    for (int64_t i = 1; i < threads; i++) others.emplace_back(work, context);
    work(context);
    for (std::thread& other : others) other.join();
  }
}

float* thread_scratch(int64_t count) {
  if (scratch.count < count) {
    free(scratch.memory);
    scratch.count = (count + 1023) / 1024 * 1024;
    scratch.memory = static_cast<float*>(aligned_alloc(64, scratch.count * sizeof(float)));
    if (!scratch.memory) scratch.count = 0;
  }
  return scratch.memory;
}
