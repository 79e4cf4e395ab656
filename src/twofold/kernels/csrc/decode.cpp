// Splits a decode step into chunks of rows, runs them on threads, and puts partial results together.
#include "decode.h"

#include <math.h>
#include <stdlib.h>

#include <memory>
#include <new>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace {

constexpr int64_t kLeastRows = 256;           // of a chunk: below, putting together costs more than it gains
constexpr int64_t kMostRows = 2048;           // above, one running sum would lose digits
constexpr int64_t kChunksPerThread = 4;       // so that a thread that is held up does not hold up the others
constexpr double kSerialNumbers = 32 * 1024;  // fewer multiply-adds than this per thread are not worth waking it

struct Freed {
  void operator()(float* memory) const { free(memory); }
};
using Floats = std::unique_ptr<float[], Freed>;

Floats floats(int64_t count) {
  Floats memory(static_cast<float*>(malloc((count ? count : 1) * sizeof(float))));
  if (!memory) throw std::bad_alloc();
  return memory;
}

struct Work {
  const DecodeArguments& a;
  const Kernels& use;
  TileSizes sizes;
  Turns turns;
  std::vector<Chunk> chunks;
  int64_t next;
  bool failed;
};

void take_chunks(void* context) {
  Work& work = *static_cast<Work*>(context);
  float* scratch = thread_scratch(work.sizes.scratch);
  if (!scratch) {
    __atomic_store_n(&work.failed, true, __ATOMIC_RELAXED);
    return;
  }
  for (;;) {
    const int64_t index = __atomic_fetch_add(&work.next, 1, __ATOMIC_RELAXED);
    if (index >= static_cast<int64_t>(work.chunks.size())) return;
    work.use.decode_chunk(work.a, work.chunks[index], work.turns, work.sizes.rows, scratch);
  }
}

// cos and sin of j · frequency for the rows j of a tile, by repeated turning in double, and those of a whole tile.
struct TurnTables {
  std::vector<float> cos, sin;
  std::vector<double> tile_cos, tile_sin;

  TurnTables(const DecodeArguments& a, int64_t tile) {
    if (!a.frequencies) return;
    cos.resize(tile * a.pairs);
    sin.resize(tile * a.pairs);
    tile_cos.assign(a.pairs, 1.0);
    tile_sin.assign(a.pairs, 0.0);
    std::vector<double> step_cos(a.pairs), step_sin(a.pairs);
    for (int64_t i = 0; i < a.pairs; i++) {
      step_cos[i] = ::cos(a.frequencies[i]);
      step_sin[i] = ::sin(a.frequencies[i]);
    }
    for (int64_t j = 0; j < tile; j++) {
      for (int64_t i = 0; i < a.pairs; i++) {
        const double c = tile_cos[i], s = tile_sin[i];
        cos[j * a.pairs + i] = static_cast<float>(c);
        sin[j * a.pairs + i] = static_cast<float>(s);
        tile_cos[i] = c * step_cos[i] - s * step_sin[i];
        tile_sin[i] = s * step_cos[i] + c * step_sin[i];
      }
    }
  }
};

Seen seen_by_any(const DecodeArguments& a, int64_t sequence) {
  const Seen oldest = seen_by(a, sequence, 0), newest = seen_by(a, sequence, a.positions - 1);
  return {oldest.first, newest.last};
}

// The first sequence whose start or length is not in its rows, or −1.
int64_t misplaced(const DecodeArguments& a) {
  for (int64_t b = 0; b < a.sequences; b++) {
    const int64_t start = a.starts ? a.starts[b] : 0, length = a.lengths ? a.lengths[b] : a.rows;
    if (start < 0 || length < 0 || length > a.rows) return b;
  }
  return -1;
}

int64_t rows_per_chunk(const DecodeArguments& a, int64_t threads, int64_t tile) {
  int64_t rows = 0;
  for (int64_t b = 0; b < a.sequences; b++) {
    const Seen seen = seen_by_any(a, b);
    rows += seen.last - seen.first;
  }
  int64_t wanted = threads == 1 ? a.rows : rows * a.groups / (kChunksPerThread * threads);
  if (wanted > kMostRows) wanted = kMostRows;
  if (wanted < kLeastRows) wanted = kLeastRows;
  return (wanted + tile - 1) / tile * tile;
}

int64_t useful_threads(const DecodeArguments& a) {
  const double numbers = static_cast<double>(a.rows) * a.sequences * a.query_heads * a.positions *
                         (key_dim(a) + a.value_width);
  return numbers < kSerialNumbers * a.threads ? 1 : a.threads;
}

// Partial results (largest score, sum of weights, weighted sum) of one sequence and key/value head into one.
void put_together(const Chunk* chunks, int64_t count, int64_t queries, int64_t width, float* out) {
  for (int64_t m = 0; m < queries; m++, out += width) {
    float top = -INFINITY;
    for (int64_t c = 0; c < count; c++) top = fmaxf(top, chunks[c].stats[2 * m]);
    float total = 0;
    for (int64_t i = 0; i < width; i++) out[i] = 0;
    for (int64_t c = 0; c < count; c++) {
      const float* stats = chunks[c].stats + 2 * m;
      if (stats[1] == 0) continue;  // it saw no row of this chunk
      const float factor = exp2f(stats[0] - top);
      total += factor * stats[1];
      for (int64_t i = 0; i < width; i++) out[i] += factor * chunks[c].out[m * width + i];
    }
    const float inverse = total == 0 ? 0 : 1 / total;
    for (int64_t i = 0; i < width; i++) out[i] *= inverse;
  }
}

}  // namespace

void decode(const DecodeArguments& a) {
  const Kernels& use = kernels();
  const int64_t threads = useful_threads(a);
  Work work = {a, use, use.decode_sizes(a), {}, {}, 0, false};
  const int64_t step = rows_per_chunk(a, threads, work.sizes.rows);
  const int64_t queries = query_count(a), width = a.value_width;
  std::vector<int64_t> counts(a.sequences * a.groups);
  for (int64_t b = 0; b < a.sequences; b++) {
    const Seen seen = seen_by_any(a, b);
    for (int64_t g = 0; g < a.groups; g++) {
      const int64_t before = work.chunks.size();
      for (int64_t first = seen.first; first < seen.last || first == seen.first; first += step) {
        work.chunks.push_back({b, g, first, first + step < seen.last ? first + step : seen.last, nullptr, nullptr});
      }
      counts[b * a.groups + g] = work.chunks.size() - before;
    }
  }
  const Floats partial = floats(static_cast<int64_t>(work.chunks.size()) * queries * (width + 2));
  float* next = partial.get();
  int64_t index = 0;
  for (int64_t pair = 0; pair < a.sequences * a.groups; pair++) {
    for (int64_t c = 0; c < counts[pair]; c++, index++) {
      const bool whole = counts[pair] == 1;
      work.chunks[index].out = whole ? a.out + pair * queries * width : next;
      work.chunks[index].stats = whole ? nullptr : next + queries * width;
      next += queries * (width + 2);
    }
  }
  const TurnTables tables(a, work.sizes.rows);
  work.turns = {tables.cos.data(), tables.sin.data(), tables.tile_cos.data(), tables.tile_sin.data()};
  run_on_threads(threads, take_chunks, &work);
  if (work.failed) throw std::bad_alloc();
  index = 0;
  for (int64_t pair = 0; pair < a.sequences * a.groups; index += counts[pair++]) {
    if (counts[pair] == 1) continue;
    put_together(&work.chunks[index], counts[pair], queries, width, a.out + pair * queries * width);
  }
}

// 0; or 1 + the first sequence whose start or length does not lie in its rows; or −1 where memory does not suffice.
extern "C" __attribute__((visibility("default"))) int64_t twofold_decode(const DecodeArguments* arguments) {
  const int64_t sequence = misplaced(*arguments);
  if (sequence >= 0) return 1 + sequence;
  try {
    decode(*arguments);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  return 0;
}
