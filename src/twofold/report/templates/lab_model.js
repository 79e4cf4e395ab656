"use strict";
// The decoder of the lab, in double precision on its float32 weights, and the arithmetic of its cache. It touches no
// page, so that it runs alone. Arrays are flat and row-major; T tokens, M width, H query heads, G key/value heads,
// D head dim, W row width, V vocabulary.
const LabModel = (() => {
  const ATTENTION = "attention.projections";
  const MATRICES = { query: "q_proj", key: "k_proj", value: "v_proj" };
  const SATURATED = 0.99;

  // A record of lab.html with its weights as arrays by name.
  function open(record) {
    const bytes = Uint8Array.from(atob(record.weights), (letter) => letter.charCodeAt(0));
    const numbers = new DataView(bytes.buffer);
    const tensors = {};
    let place = 0;
    for (const { name, shape } of record.tensors) {
      const count = shape.reduce((product, size) => product * size, 1);
      tensors[name] = Float32Array.from({ length: count }, (_, n) => numbers.getFloat32(4 * (place + n), true));
      place += count;
    }
    return { ...record, tensors };
  }

  // x [T, inputs] times the transpose of a matrix [outputs, inputs]: [T, outputs].
  function project(x, matrix, inputs) {
    const tokens = x.length / inputs, outputs = matrix.length / inputs;
    const made = new Float64Array(tokens * outputs);
    for (let t = 0; t < tokens; t++) {
      for (let o = 0; o < outputs; o++) {
        let sum = 0;
        for (let i = 0; i < inputs; i++) sum += x[t * inputs + i] * matrix[o * inputs + i];
        made[t * outputs + o] = sum;
      }
    }
    return made;
  }

  // x / √(mean of x² + ε) · weight, token by token (RMSNorm, arXiv 1910.07467).
  function norm(x, weight, epsilon) {
    const width = weight.length;
    const made = new Float64Array(x.length);
    for (let start = 0; start < x.length; start += width) {
      let squares = 0;
      for (let i = 0; i < width; i++) squares += x[start + i] ** 2;
      const factor = 1 / Math.sqrt(squares / width + epsilon);
      for (let i = 0; i < width; i++) made[start + i] = x[start + i] * factor * weight[i];
    }
    return made;
  }

  const added = (x, y) => x.map((number, n) => number + y[n]);

  // Rotary positions (arXiv 2104.09864), half-split: of the first r dims of each head, i turns with i + r/2.
  function turned(x, heads, { rotated_dims: r, rotary_base: base, sizes: { head_dim: D } }, direction = 1) {
    if (!r) return x;
    const made = Float64Array.from(x);
    for (let start = 0; start < x.length; start += D) {
      const position = Math.floor(start / (heads * D));
      for (let i = 0; i < r / 2; i++) {
        const angle = direction * position * base ** ((-2 * i) / r);
        const [a, b] = [x[start + i], x[start + i + r / 2]];
        made[start + i] = a * Math.cos(angle) - b * Math.sin(angle);
        made[start + i + r / 2] = b * Math.cos(angle) + a * Math.sin(angle);
      }
    }
    return made;
  }

  function embedded(model, ids) {
    const { width, positions } = model.sizes;
    const row = (name, n) => model.tensors[name].subarray(n * width, (n + 1) * width);
    const table = (name, numbers, factor) => Float64Array.from([...numbers].flatMap((n) => Array.from(row(name, n), (x) => x * factor)));
    const token = table("model.embed_tokens.weight", ids, model.embedding_factor);
    const position = positions ? table("model.embed_positions.weight", ids.keys(), 1) : null;
    return { token, position, x: position ? added(token, position) : token };
  }

  // Query, key and value vectors [T, heads, D]; roles that share a matrix are one array.
  function roles(model, layer, x) {
    const made = {};
    for (const source of new Set(Object.values(model.sources))) {
      made[source] = project(x, model.tensors[`model.layers.${layer}.${ATTENTION}.${MATRICES[source]}.weight`], model.sizes.width);
    }
    return { query: made[model.sources.query], key: made[model.sources.key], value: made[model.sources.value] };
  }

  // What the cache keeps of a layer: float32 rows, head by head, [G, T, W]. A shared vector is written once.
  function rowsOf(model, key, value) {
    const { kv_heads: G, head_dim: D } = model.sizes, W = model.row.width, T = key.length / (G * D);
    const rows = new Float32Array(G * T * W);
    for (let g = 0; g < G; g++) {
      for (let t = 0; t < T; t++) {
        const from = (t * G + g) * D, to = (g * T + t) * W;
        rows.set(key.subarray(from, from + D), to + model.row.key[0]);
        if (model.sources.value !== "key") rows.set(value.subarray(from, from + D), to + model.row.value[0]);
      }
    }
    return rows;
  }

  // One head's key or value of one token: a view into its row.
  function slice(model, rows, role, head, token) {
    const { heads: H, kv_heads: G } = model.sizes, W = model.row.width, T = rows.length / (G * W);
    const [start, stop] = model.row[role];
    const row = (Math.floor((head * G) / H) * T + token) * W;
    return rows.subarray(row + start, row + stop);
  }

  function dot(x, y) {
    let sum = 0;
    for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
    return sum;
  }

  // q·k of every query (row) and key, [T, T], before scale and mask.
  function products(model, query, rows, head) {
    const { heads: H, head_dim: D } = model.sizes, T = query.length / (H * D);
    return Float64Array.from({ length: T * T }, (_, n) => {
      const start = (Math.floor(n / T) * H + head) * D;
      return dot(query.subarray(start, start + D), slice(model, rows, "key", head, n % T));
    });
  }

  // softmax of scores, past the mask: a query weighs the tokens up to its own. [T, T], each row sums to 1.
  function causalSoftmax(scores) {
    const T = Math.sqrt(scores.length);
    const weights = new Float64Array(T * T);
    for (let t = 0; t < T; t++) {
      const seen = scores.subarray(t * T, t * T + t + 1), most = Math.max(...seen);
      const powers = seen.map((score) => Math.exp(score - most));
      const sum = powers.reduce((total, power) => total + power, 0);
      weights.set(powers.map((power) => power / sum), t * T);
    }
    return weights;
  }

  // Σ weight · value of one head, written into `read` [T, H, D].
  function gather(model, rows, weights, head, read) {
    const { heads: H, head_dim: D } = model.sizes, T = Math.sqrt(weights.length);
    for (let t = 0; t < T; t++) {
      for (let s = 0; s <= t; s++) {
        const value = slice(model, rows, "value", head, s);
        for (let i = 0; i < D; i++) read[(t * H + head) * D + i] += weights[t * T + s] * value[i];
      }
    }
  }

  // One layer's attention; `factor` multiplies its scale. `made` are the roles before rotary turns query and key.
  function attention(model, layer, normed, factor) {
    const { heads: H, kv_heads: G, head_dim: D, width } = model.sizes;
    const made = roles(model, layer, normed);
    const query = turned(made.query, H, model), key = turned(made.key, G, model);
    const rows = rowsOf(model, key, made.value);
    const read = new Float64Array((normed.length / width) * H * D);
    const heads = Array.from({ length: H }, (_, head) => {
      const raw = products(model, query, rows, head);
      const scores = raw.map((product) => product * model.scale * factor);
      const weights = causalSoftmax(scores);
      gather(model, rows, weights, head, read);
      return { raw, scores, weights };
    });
    // A turned key that is read as a value is turned back at the query's position (arXiv 2606.19348).
    const shared = model.sources.value === "key";
    const output = shared ? turned(read, H, model, -1) : read;
    const update = project(output, model.tensors[`model.layers.${layer}.${ATTENTION}.o_proj.weight`], H * D);
    return { made, query, rows, heads, read, output, update };
  }

  // W₃ (SiLU(W₁ x) ⊙ W₂ x), SwiGLU (arXiv 2002.05202).
  function mlp(model, layer, x) {
    const weight = (name) => model.tensors[`model.layers.${layer}.mlp.${name}.weight`];
    const gate = project(x, weight("gate_proj"), model.sizes.width);
    const up = project(x, weight("up_proj"), model.sizes.width);
    return project(up.map((number, n) => (number * gate[n]) / (1 + Math.exp(-gate[n]))), weight("down_proj"), model.sizes.mlp);
  }

  // Everything that the model makes of the tokens; `factor` multiplies 1/√d in every layer.
  function forward(model, ids, factor = 1) {
    const embedding = embedded(model, ids), layers = [];
    let x = embedding.x;
    for (let layer = 0; layer < model.sizes.layers; layer++) {
      const weight = (name) => model.tensors[`model.layers.${layer}.${name}.weight`];
      const normed = norm(x, weight("attention_norm"), model.norm_epsilon);
      const attended = attention(model, layer, normed, factor);
      const between = added(x, attended.update);
      const mixed = mlp(model, layer, norm(between, weight("mlp_norm"), model.norm_epsilon));
      layers.push({ input: x, normed, ...attended, between, mlp: mixed });
      x = added(between, mixed);
    }
    const last = norm(x, model.tensors["model.norm.weight"], model.norm_epsilon);
    const head = model.tensors["lm_head.weight"] ?? model.tensors["model.embed_tokens.weight"];
    return { ids, embedding, layers, x, logits: project(last, head, model.sizes.width) };
  }

  function probabilities(logits) {
    const most = Math.max(...logits);
    const powers = Array.from(logits, (logit) => Math.exp(logit - most));
    const sum = powers.reduce((total, power) => total + power, 0);
    return powers.map((power) => power / sum);
  }

  const entropy = (weights) => weights.reduce((sum, weight) => (weight > 0 ? sum - weight * Math.log(weight) : sum), 0);

  // Means over maps [T, T] and their queries that see at least two tokens: entropy in nats, its share of the most
  // possible, and how many queries give one token more than 0.99.
  function sharpness(maps) {
    let [nats, relative, saturated, count] = [0, 0, 0, 0];
    for (const weights of maps) {
      const T = Math.sqrt(weights.length);
      for (let t = 1; t < T; t++, count++) {
        const row = weights.subarray(t * T, t * T + t + 1), found = entropy(row);
        nats += found;
        relative += found / Math.log(t + 1);
        saturated += Math.max(...row) > SATURATED ? 1 : 0;
      }
    }
    return { entropy: nats / count, relative: relative / count, saturated: saturated / count };
  }

  // layers × sequences × tokens × bytes of a row; `parts` head dims per head, and a scale per head where int8 has one.
  function cacheBytes({ layers, kvHeads, headDim, parts, item, scale = 0, tokens, sequences = 1 }) {
    return layers * sequences * tokens * kvHeads * (parts * headDim * item + scale);
  }

  // The bytes that the arrays of a forward pass's rows really take.
  const measuredBytes = (pass) => pass.layers.reduce((sum, { rows }) => sum + rows.byteLength, 0);

  return { open, forward, slice, probabilities, entropy, sharpness, cacheBytes, measuredBytes };
})();
