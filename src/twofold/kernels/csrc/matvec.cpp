// y[t] = W x[t] · scale + bias for one to four tokens t, on several threads.
#include "matvec.h"

#include <math.h>

#include "kernels.h"
#include "narrow.h"
#include "pool.h"

namespace {

constexpr int64_t kChunkRows = 64;          // at most: its sums stand on the stack
constexpr int64_t kBytesPerThread = 65536;  // below that, waking a thread costs more than it helps

constexpr double kSqrtHalf = 0.70710678118654752, kSqrtTwoOverPi = 0.79788456080286536;

struct Products {
  const Kernels* use;
  const Product* all;
  int64_t chunk_rows, next;  // chunks of all products, one product after the other
};

float read(const void* numbers, int64_t type, int64_t i) {
  return type == kBFloat16 ? widened(static_cast<const bf16*>(numbers)[i]) : static_cast<const float*>(numbers)[i];
}

// Hendrycks and Gimpel, arXiv 1606.08415, section 2: x·Φ(x), and with a tanh in Φ's place. ReLU lets NaN through.
float activated(float x, int64_t by) {
  if (by == kGelu) return 0.5f * x * (1.0f + erff(x * static_cast<float>(kSqrtHalf)));
  if (by == kGeluTanh) {
    return 0.5f * x * (1.0f + tanhf(static_cast<float>(kSqrtTwoOverPi) * (x + 0.044715f * x * x * x)));
  }
  return by == kRelu && x < 0.0f ? 0.0f : x;
}

void finish(const Product& p, int64_t first, int64_t count, const float* sums) {
  for (int64_t t = 0; t < p.task.tokens; t++) {
    for (int64_t n = 0; n < count; n++) {
      float value = sums[t * count + n];
      if (p.scales) value *= p.scales[first + n];
      if (p.bias) value += read(p.bias, p.bias_type, first + n);
      value = activated(value, p.then);
      const int64_t to = t * p.rows + first + n;
      if (p.y_type == kBFloat16) {
        narrow(value, static_cast<bf16*>(p.y) + to);
      } else {
        static_cast<float*>(p.y)[to] = value + (p.then == kAdd ? static_cast<float*>(p.y)[to] : 0.0f);
      }
    }
  }
}

int64_t chunks_of(int64_t rows, int64_t chunk_rows) { return (rows + chunk_rows - 1) / chunk_rows; }

// Chunks are taken, not dealt: a thread that starts late, or whose core is shared, then takes fewer.
void take_chunks(void* context) {
  Products& work = *static_cast<Products*>(context);
  float sums[kMaxTokens * kChunkRows];
  const Product* p = work.all;
  int64_t before = 0;  // chunks of the products before p
  for (;;) {
    const int64_t chunk = __atomic_fetch_add(&work.next, 1, __ATOMIC_RELAXED);
    while (p->rows && chunk - before >= chunks_of(p->rows, work.chunk_rows)) {
      before += chunks_of(p->rows, work.chunk_rows);
      p++;
    }
    if (!p->rows) return;
    const int64_t first = (chunk - before) * work.chunk_rows, left = p->rows - first;
    const int64_t count = left < work.chunk_rows ? left : work.chunk_rows;
    work.use->matvec_rows(p->task, first, count, sums);
    finish(*p, first, count, sums);
  }
}

int64_t clamped(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

int64_t item_size(int64_t type) { return type == kFloat32 ? 4 : type == kBFloat16 ? 2 : 1; }

}  // namespace

void multiply(const Product* products, int64_t count, int64_t threads) {
  Product all[kMostProducts + 1] = {};  // the last one, of no rows, ends the list
  int64_t rows = 0, bytes = 0;
  for (int64_t i = 0; i < count; i++) {
    all[i] = products[i];
    rows += all[i].rows;
    bytes += all[i].rows * all[i].task.width * item_size(all[i].task.weight_type);
  }
  threads = clamped(bytes / kBytesPerThread, 1, threads);
  // About eight chunks a thread, each a multiple of four rows.
  Products work = {&kernels(), all, clamped(rows / (8 * threads) / 4 * 4, 4, kChunkRows), 0};
  run_on_threads(threads, take_chunks, &work);
}

// Returns 0, or 1 where there is no memory.
extern "C" __attribute__((visibility("default"))) int twofold_matvec(const MatvecArguments* arguments) {
  const MatvecArguments& a = *arguments;
  if (a.rows == 0) return 0;
  const float* numbers = static_cast<const float*>(a.x);
  if (a.x_type == kBFloat16) {
    float* wide = thread_scratch(a.tokens * a.width);
    if (!wide) return 1;
    for (int64_t i = 0; i < a.tokens * a.width; i++) wide[i] = widened(static_cast<const bf16*>(a.x)[i]);
    numbers = wide;
  }
  const MatvecTask task = {a.weight, a.weight_type, a.weight_stride, a.width, numbers, a.width, a.tokens};
  const Product product = {task, a.rows, a.scales, a.bias, a.bias_type, a.y, a.x_type, kNothing};
  multiply(&product, 1, a.threads);
  return 0;
}
