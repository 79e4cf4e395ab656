// y[t] = W x[t] · scale + bias for one to four tokens t, on several threads.
#include "matvec.h"

#include <string.h>

#include "kernels.h"
#include "pool.h"

namespace {

constexpr int64_t kChunkRows = 64;          // at most: its sums stand on the stack
constexpr int64_t kBytesPerThread = 65536;  // below that, waking a thread costs more than it helps

struct Product {
  const Kernels* use;
  MatvecTask task;
  const void* bias;     // [rows] of bias_type, or null
  const float* scales;  // [rows], or null
  void* y;              // [tokens, rows] of y_type, contiguous
  int64_t bias_type, y_type, rows;
  int64_t chunk_rows, next;
};

float widened(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// To the nearest, ties to even.
bf16 narrowed(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  if (x != x) return {static_cast<uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

float read(const void* numbers, int64_t type, int64_t i) {
  return type == kBFloat16 ? widened(static_cast<const bf16*>(numbers)[i]) : static_cast<const float*>(numbers)[i];
}

void finish(const Product& p, int64_t first, int64_t count, const float* sums) {
  for (int64_t t = 0; t < p.task.tokens; t++) {
    for (int64_t n = 0; n < count; n++) {
      float value = sums[t * count + n];
      if (p.scales) value *= p.scales[first + n];
      if (p.bias) value += read(p.bias, p.bias_type, first + n);
      const int64_t to = t * p.rows + first + n;
      if (p.y_type == kBFloat16) {
        static_cast<bf16*>(p.y)[to] = narrowed(value);
      } else {
        static_cast<float*>(p.y)[to] = value;
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
    if (first >= p.rows) return;
    const int64_t count = p.rows - first < p.chunk_rows ? p.rows - first : p.chunk_rows;
    p.use->matvec_rows(p.task, first, count, sums);
    finish(p, first, count, sums);
  }
}

int64_t clamped(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

}  // namespace

// Types are those of DType; x is [tokens, width], contiguous. Returns 0, or 1 where there is no memory.
extern "C" __attribute__((visibility("default"))) int twofold_matvec(
    const void* weight, int64_t weight_type, int64_t weight_stride, int64_t rows, int64_t width, const void* x,
    int64_t x_type, int64_t tokens, const void* bias, int64_t bias_type, const float* scales, void* y,
    int64_t threads) {
  const float* numbers = static_cast<const float*>(x);
  if (x_type == kBFloat16) {
    float* wide = thread_scratch(tokens * width);
    if (!wide) return 1;
    for (int64_t i = 0; i < tokens * width; i++) wide[i] = widened(static_cast<const bf16*>(x)[i]);
    numbers = wide;
  }
  const int64_t itemsize = weight_type == kFloat32 ? 4 : weight_type == kBFloat16 ? 2 : 1;
  threads = clamped(rows * width * itemsize / kBytesPerThread, 1, threads);
  // About eight chunks a thread, each a multiple of four rows.
  const int64_t chunk_rows = clamped(rows / (8 * threads) / 4 * 4, 4, kChunkRows);
  Product product = {&kernels(), {weight, weight_type, weight_stride, width, numbers, width, tokens},
                     bias, scales, y, bias_type, x_type, rows, chunk_rows, 0};
  run_on_threads(threads, take_chunks, &product);
  return 0;
}
