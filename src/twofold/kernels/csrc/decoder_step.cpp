// Walks the blocks of a decoder for the tokens of one step. Activations are float32; products and attention run on
// threads, what lies between them is a few thousand numbers.
#include "decoder_step.h"

#include <math.h>
#include <string.h>

#include <new>
#include <vector>

#include "kernels.h"
#include "narrow.h"

namespace {

struct Walk {
  const DecoderStep& a;
  const StepBlock* blocks;
  const StepRows* rows;
  const Kernels& use;
  int64_t tokens, queries, keys;  // numbers of all heads, of one token
  std::vector<float> x, normed, query, key, value, turned, row, read, hidden, gates, cos, sin;
  std::vector<int64_t> starts;

  Walk(const DecoderStep& asked, const StepBlock* given_blocks, const StepRows* given_rows)
      : a(asked),
        blocks(given_blocks),
        rows(given_rows),
        use(kernels()),
        tokens(a.sequences * a.positions),
        queries(a.heads * a.head_dim),
        keys(a.groups * a.head_dim),
        x(tokens * a.width),
        normed(tokens * a.width),
        query(tokens * queries),
        key(tokens * keys),
        value(tokens * keys),
        turned(tokens * queries),
        row(tokens * a.groups * a.row_width),
        read(tokens * queries),
        cos(tokens * 2 * a.pairs),
        sin(tokens * 2 * a.pairs),
        starts(a.starts ? a.sequences : 0) {
    int64_t most = 0;
    for (int64_t n = 0; n < a.blocks; n++) most = blocks[n].up.rows > most ? blocks[n].up.rows : most;
    hidden.resize(tokens * most);
    gates.resize(tokens * most);
  }

  // Cosines and sines of all tokens, [tokens, 2 · pairs]: both dims of a pair have theirs, the sine with its sign.
  void find_angles() {
    for (int64_t n = 0; n < tokens; n++) {
      const int64_t place = a.places[n / a.positions * a.place_stride + n % a.positions];
      float *c = &cos[n * 2 * a.pairs], *s = &sin[n * 2 * a.pairs];
      for (int64_t i = 0; i < a.pairs; i++) {
        const double angle = static_cast<double>(place) * a.frequencies[i];
        c[i] = c[i + a.pairs] = static_cast<float>(::cos(angle));
        s[i + a.pairs] = static_cast<float>(::sin(angle));
        s[i] = -s[i + a.pairs];
      }
    }
  }

  // x [B, T, heads, D] with strides turned by the angles, or back; as it is where nothing turns.
  void turn(const float* from, int64_t heads, int64_t of_sequence, int64_t of_position, int64_t of_head, double sign,
            float* to) const {
    use.turn({kFloat32, a.sequences, a.positions, heads, a.head_dim, 2 * a.pairs, from,
              {of_sequence, of_position, of_head}, cos.data(), sin.data(), a.positions * 2 * a.pairs, sign, to});
  }
  void turn(const std::vector<float>& from, int64_t heads, float* to) const {
    turn(from.data(), heads, a.positions * heads * a.head_dim, heads * a.head_dim, a.head_dim, 1, to);
  }

  void norm(const StepNorm& by, const std::vector<float>& from, float* to) const {
    for (int64_t n = 0; n < tokens; n++) use.step_norm(by, &from[n * a.width], a.width, to + n * a.width);
  }

  Product product(const StepLinear& of, const std::vector<float>& from, std::vector<float>& to, int64_t then) const {
    return {{of.weight, of.type, of.stride, of.width, from.data(), of.width, tokens},
            of.rows,
            of.scales,
            of.bias,
            of.bias_type,
            to.data(),
            kFloat32,
            then};
  }

  // Queries, and keys and values where the block has such, from `normed`.
  void project(const StepBlock& block) {
    Product all[kMostProducts];
    int64_t count = 0;
    if (block.query.rows) all[count++] = product(block.query, normed, query, kNothing);
    if (block.key.rows) all[count++] = product(block.key, normed, key, kNothing);
    if (block.value.rows) all[count++] = product(block.value, normed, value, kNothing);
    multiply(all, count, a.threads);
  }

  // A token's row of each head: the key, turned or not, and what follows it.
  void make_rows() {
    const float* first = a.keys_turned ? turned.data() : key.data();
    const int64_t dims = a.head_dim, tail = a.row_width - dims;
    const float* second = a.tail == kValueTail ? value.data() : key.data();
    for (int64_t n = 0; n < tokens * a.groups; n++) {
      float* to = &row[n * a.row_width];
      memcpy(to, first + n * dims, dims * sizeof(float));
      if (a.tail != kNoTail) memcpy(to + dims, second + n * dims, tail * sizeof(float));
    }
  }

  template <typename T>
  void write_as(const StepRows& layer) const {
    for (int64_t b = 0; b < a.sequences; b++)
      for (int64_t t = 0; t < a.positions; t++)
        for (int64_t g = 0; g < a.groups; g++) {
          const int64_t at = layer.count - a.positions + t;
          const float* from = &row[((b * a.positions + t) * a.groups + g) * a.row_width];
          T* to = static_cast<T*>(layer.heads) + b * layer.strides[0] + g * layer.strides[1] + at * layer.strides[2];
          for (int64_t i = 0; i < a.row_width; i++) put(from[i], to + i);
        }
  }
  static void put(float number, float* to) { *to = number; }
  template <typename T>
  static void put(float number, T* to) {
    narrow(number, to);
  }

  void write_rows(const StepRows& layer) const {
    if (a.row_type == kFloat32) return write_as<float>(layer);
    if (a.row_type == kBFloat16) return write_as<bf16>(layer);
    if (a.row_type == kFloat16) return write_as<f16>(layer);
    const int64_t at = layer.count - a.positions, width = a.groups * a.row_width;
    use.quantise({kFloat32, a.sequences, a.groups, a.positions, a.row_width, row.data(),
                  {a.positions * width, a.row_width, width},
                  static_cast<int8_t*>(layer.heads) + at * layer.strides[2],
                  {layer.strides[0], layer.strides[1], layer.strides[2]},
                  layer.scales + at * layer.scales_strides[2],
                  {layer.scales_strides[0], layer.scales_strides[1], layer.scales_strides[2]}});
  }

  void attend(const StepRows& layer, const float* asked) {
    const int64_t dropped = a.total - layer.count;  // by a window
    for (int64_t b = 0; b < static_cast<int64_t>(starts.size()); b++) {
      starts[b] = a.starts[b] > dropped ? a.starts[b] - dropped : 0;
    }
    DecodeArguments d = {};
    d.sequences = a.sequences;
    d.query_heads = a.heads;
    d.groups = a.groups;
    d.positions = a.positions;
    d.rows = layer.count;
    d.query = asked;
    d.query_strides[0] = a.positions * queries;
    d.query_strides[1] = a.head_dim;
    d.query_strides[2] = queries;
    d.out = read.data();
    d.dtype = a.row_type;
    d.heads = layer.heads;
    memcpy(d.heads_strides, layer.strides, sizeof d.heads_strides);
    d.key_start = a.key_start;
    d.value_start = a.value_start;
    d.key_width = d.value_width = a.head_dim;
    d.starts = a.starts ? starts.data() : nullptr;
    d.window = layer.window;
    d.scales = layer.scales;
    memcpy(d.scales_strides, layer.scales_strides, sizeof d.scales_strides);
    if (!a.keys_turned) {
      d.frequencies = a.frequencies;
      d.pairs = a.pairs;
      d.first_position = a.first_position + dropped;
    }
    d.scale = a.scale;
    d.softcap = a.softcap;
    d.threads = a.threads;
    decode(d);
  }

  // What the heads read, [B, H, T, D] in `read`, as the output projection expects it: [B, T, H, D] in `query`.
  void gather() {
    const int64_t dims = a.head_dim, of_sequence = a.positions * queries, of_head = a.positions * dims;
    if (a.reading == kTurnedBack) return turn(read.data(), a.heads, of_sequence, dims, of_head, -1, query.data());
    const int64_t rolled = a.reading == kRolled ? 2 * a.pairs : 0;
    float* to = query.data();
    for (int64_t b = 0; b < a.sequences; b++)
      for (int64_t t = 0; t < a.positions; t++)
        for (int64_t h = 0; h < a.heads; h++, to += dims) {
          const float* from = &read[b * of_sequence + h * of_head + t * dims];
          memcpy(to + rolled, from, (dims - rolled) * sizeof(float));
          memcpy(to, from + dims - rolled, rolled * sizeof(float));
        }
  }

  void attention(const StepBlock& block, const StepRows& layer) {
    norm(block.attention_norm, x, normed.data());
    project(block);
    const float* asked = query.data();
    if (block.key.rows) {
      if (a.query_is_key || a.keys_turned) turn(key, a.groups, turned.data());
      make_rows();
      write_rows(layer);
    }
    if (a.query_is_key) {
      asked = turned.data();
    } else if (a.pairs) {
      turn(query, a.heads, turned.data());
      asked = turned.data();
    }
    attend(layer, asked);
    gather();
    const Product added = product(block.out, query, x, kAdd);
    multiply(&added, 1, a.threads);
  }

  void mlp(const StepBlock& block) {
    norm(block.mlp_norm, x, normed.data());
    const bool gated = block.gate.rows > 0;
    const Product in[] = {product(block.up, normed, hidden, a.activation),
                          product(block.gate, normed, gates, kNothing)};
    multiply(in, gated ? 2 : 1, a.threads);
    if (gated) use.gate(gates.data(), hidden.data(), tokens * block.up.rows);
    const Product added = product(block.down, hidden, x, kAdd);
    multiply(&added, 1, a.threads);
  }

  void run() {
    if (a.pairs) find_angles();
    if (a.x_type == kBFloat16) {
      for (size_t i = 0; i < x.size(); i++) x[i] = widened(static_cast<const bf16*>(a.x)[i]);
    } else {
      memcpy(x.data(), a.x, x.size() * sizeof(float));
    }
    for (int64_t n = 0; n < a.blocks; n++) {
      attention(blocks[n], rows[n]);
      mlp(blocks[n]);
    }
    if (a.x_type == kFloat32) return norm(a.norm, x, static_cast<float*>(a.out));
    norm(a.norm, x, normed.data());
    for (size_t i = 0; i < x.size(); i++) narrow(normed[i], static_cast<bf16*>(a.out) + i);
  }
};

}  // namespace

// 0, or 1 where memory does not suffice. As many `rows` as `blocks`.
extern "C" __attribute__((visibility("default"))) int twofold_decoder_step(const DecoderStep* step,
                                                                           const StepBlock* blocks,
                                                                           const StepRows* rows) {
  try {
    Walk(*step, blocks, rows).run();
  } catch (const std::bad_alloc&) {
    return 1;
  }
  return 0;
}
