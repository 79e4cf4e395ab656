// y[t] = W x[t] · scale + bias for one to four tokens t, on several threads.
#include "matvec.h"

#include "kernels.h"
#include "narrow.h"
#include "pool.h"

namespace {

constexpr int64_t kChunkRows = 64;          // at most: its sums stand on the stack
constexpr int64_t kBytesPerThread = 65536;  // below that, waking a thread costs more than it helps

struct Product {
  const Kernels* use;
  const MatvecArguments& asked;
  MatvecTask task;
  int64_t chunk_rows, next;
};

float read(const void* numbers, int64_t type, int64_t i) {
  return type == kBFloat16 ? widened(static_cast<const bf16*>(numbers)[i]) : static_cast<const float*>(numbers)[i];
}

void finish(const Product& p, int64_t first, int64_t count, const float* sums) {
  const MatvecArguments& a = p.asked;
  for (int64_t t = 0; t < a.tokens; t++) {
    for (int64_t n = 0; n < count; n++) {
      float value = sums[t * count + n];
      if (a.scales) value *= a.scales[first + n];
      if (a.bias) value += read(a.bias, a.bias_type, first + n);
      const int64_t to = t * a.rows + first + n;
      if (a.x_type == kBFloat16) {
        narrow(value, static_cast<bf16*>(a.y) + to);
      } else {
        static_cast<float*>(a.y)[to] = value;
      }
    }
  }
}

// Chunks are taken, not dealt: a thread that starts late, or whose core is shared, then takes fewer.
void take_chunks(void* context) {
  Product& p = *static_cast<Product*>(context);
  float sums[kMaxTokens * kChunkRows];
  for (;;) {
    const int64_t first = __atomic_fetch_add(&p.next, p.chunk_rows, __ATOMIC_RELAXED);
    if (first >= p.asked.rows) return;
    const int64_t left = p.asked.rows - first, count = left < p.chunk_rows ? left : p.chunk_rows;
    p.use->matvec_rows(p.task, first, count, sums);
    finish(p, first, count, sums);
  }
}

int64_t clamped(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

}  // namespace

// Returns 0, or 1 where there is no memory.
extern "C" __attribute__((visibility("default"))) int twofold_matvec(const MatvecArguments* arguments) {
  const MatvecArguments& a = *arguments;
  const float* numbers = static_cast<const float*>(a.x);
  if (a.x_type == kBFloat16) {
    float* wide = thread_scratch(a.tokens * a.width);
    if (!wide) return 1;
    for (int64_t i = 0; i < a.tokens * a.width; i++) wide[i] = widened(static_cast<const bf16*>(a.x)[i]);
    numbers = wide;
  }
  const int64_t itemsize = a.weight_type == kFloat32 ? 4 : a.weight_type == kBFloat16 ? 2 : 1;
  const int64_t threads = clamped(a.rows * a.width * itemsize / kBytesPerThread, 1, a.threads);
  // About eight chunks a thread, each a multiple of four rows.
  const int64_t chunk_rows = clamped(a.rows / (8 * threads) / 4 * 4, 4, kChunkRows);
  const MatvecTask task = {a.weight, a.weight_type, a.weight_stride, a.width, numbers, a.width, a.tokens};
  Product product = {&kernels(), a, task, chunk_rows, 0};
  run_on_threads(threads, take_chunks, &product);
  return 0;
}
