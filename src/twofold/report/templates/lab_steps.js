// The steps of the lab: what each says, and what it draws of the pass at hand. `now` holds the model, its pass over the
// tokens, the chosen layer, head and token, and `choose`, which changes them.
const LabSteps = (() => {
  const { element, number, bytes, counted, largest, grid, strip, badge, bars } = LabDraw;
  const ROLES = ["query", "key", "value"];
  const STAGES = { raw: "q·k", scaled: "scaled", masked: "masked" };
  const TOP = 8, READ = 3;
  let stage = "masked";

  // Roles that are one vector together: [[query], [key, value]] for K=V.
  function groups({ sources }) {
    const owners = [...new Set(ROLES.map((role) => sources[role]))];
    return owners.map((owner) => ROLES.filter((role) => sources[role] === owner));
  }

  const sharing = ({ sources }) => `${sources.query === "key" ? "Q=" : ""}K${sources.value === "key" ? "=V" : ""}`;
  const matrix = (roles) => ["W", element("sub", {}, (roles.includes("key") ? "key" : roles[0])[0].toUpperCase())];
  const layerOf = (now) => now.pass.layers[now.layer];
  const mapOf = (now) => layerOf(now).heads[now.head];
  const told = (now, t) => `${now.names[t]} at ${t}`;
  const part = (array, width, t) => array.subarray(t * width, (t + 1) * width);
  const aside = (text) => element("p", { className: "aside" }, text);
  const row = (...children) => element("div", { className: "row" }, ...children);

  // A role's vectors of the chosen head as scores compare and sum them, for every token.
  function vectors(now, role) {
    const { sizes } = now.model, layer = layerOf(now);
    return now.names.map((_, t) => {
      const start = (t * sizes.heads + now.head) * sizes.head_dim;
      return role === "query" ? layer.query.subarray(start, start + sizes.head_dim) : LabModel.slice(now.model, layer.rows, role, now.head, t);
    });
  }

  function tokens(now) {
    const tiles = now.names.map((name, t) => {
      const tile = element("button", { type: "button", className: t === now.token ? "tile chosen" : "tile", id: `tile-${t}` },
        element("b", {}, name), element("span", {}, `${now.pass.ids[t]}`), element("small", {}, `at ${t}`));
      tile.addEventListener("click", () => now.choose({ token: t }));
      return tile;
    });
    return [element("div", { className: "byte-tiles" }, ...tiles), aside(`A letter outside ASCII takes several bytes. This model reads up to ${now.limit}.`)];
  }

  function embedding(now) {
    const { width } = now.model.sizes, { token, position, x } = now.pass.embedding, t = now.token;
    const strips = [["the byte’s row of the embedding table", token]];
    if (position) strips.push([`+ the row of position ${t}`, position], ["= the token’s vector", x]);
    if (now.layer) strips.push([`what the layers before layer ${now.layer} made of it`, layerOf(now).input]);
    const most = largest(strips.flatMap(([, values]) => Array.from(part(values, width, t))));
    const drawn = strips.map(([title, values]) => strip({ title, values: part(values, width, t), most }));
    return [...drawn, strip({ title: "normalised to mean square 1, then weighed: what the projections read", values: part(layerOf(now).normed, width, t) })];
  }

  function projections(now) {
    const D = now.model.sizes.head_dim;
    const boxes = groups(now.model).map((roles) => {
      const all = vectors(now, roles[roles.length - 1]), title = [...matrix(roles), " makes ", badge(...roles)];
      const peak = largest(all.flatMap((one) => Array.from(one)));
      return element("div", { className: `box span-${roles.length} ${roles.join(" ")}` },
        strip({ title, values: all[now.token], most: peak, id: `strip-${roles.join("-")}` }),
        grid({
          id: `all-${roles.join("-")}`, title: "of every token, one row each", rows: all.length, columns: D, framed: now.token,
          names: now.names, at: (t, i) => all[t][i], most: peak, cell: Math.min(1, (0.8 * D) / all.length), hint: "Point at a square, or tap a row to choose its token.",
          describe: (t, i) => `${told(now, t)}, number ${i}: ${number(all[t][i])}`, choose: (t) => now.choose({ token: t }),
        }));
    });
    const turn = now.model.rotated_dims ? [aside(`Queries and keys are shown turned to their positions (rotary, ${now.model.rotated_dims} dims).`)] : [];
    return [element("div", { className: "boxes" }, ...boxes), ...turn];
  }

  function cached(now) {
    const { model, pass, token } = now, { kv_heads: G, layers, head_dim: D } = model.sizes, W = model.row.width;
    const shared = model.sources.value === "key", rows = pass.layers[now.layer].rows, T = now.names.length;
    const name = (c) => (shared ? "key and value, " : c < D ? "key, " : "value, ");
    const strips = Array.from({ length: G }, (_, g) => {
      const values = rows.subarray((g * T + token) * W, (g * T + token + 1) * W);
      const labels = element("div", { className: "parts" }, ...(shared ? [["key", "value"]] : [["key"], ["value"]]).map((roles) =>
        element("span", { className: roles.join(" ") }, badge(...roles), ` ${D} numbers`)));
      const drawn = strip({ title: G === model.sizes.heads ? `head ${g}` : `key/value head ${g}`, values, names: name, cell: W / 22 });
      drawn.querySelector("canvas").before(labels);
      drawn.style.inlineSize = `${shared ? 50 : 100}%`;
      return drawn;
    });
    const perRow = G * W * 4;
    const facts = [
      [`one row: ${G} × ${W} numbers × 4 bytes`, perRow],
      [`one token: ${layers} layers`, layers * perRow],
      [`this sentence: ${T} tokens, by the formula`, layers * T * perRow],
      ["the arrays that this page just filled", LabModel.measuredBytes(pass)],
    ];
    const list = element("dl", { className: "counts", id: "bytes" }, ...facts.map(([term, count]) =>
      element("div", {}, element("dt", {}, term), element("dd", {}, bytes(count), ...(count >= 1024 ? [element("small", {}, ` ${count.toLocaleString("en")}`)] : [])))));
    const { cache } = model;
    return [...strips, list, aside(`Measured in the library when this page was made: ${cache.tokens} tokens in ${cache.dtype} use ${cache.bytes_used.toLocaleString("en")} bytes of rows, in storages of ${cache.bytes_reserved.toLocaleString("en")}, which leave room to grow. Queries are used once and kept nowhere.`)];
  }

  function scores(now) {
    const { raw, scores: scaled } = mapOf(now), T = now.names.length;
    const chosen = element("fieldset", { className: "stages" }, element("legend", {}, "Show"));
    for (const [value, text] of Object.entries(STAGES)) {
      const input = element("input", { type: "radio", name: "stage", value, id: `stage-${value}`, checked: value === stage });
      input.addEventListener("change", () => { stage = value; now.choose({}); });
      chosen.append(element("label", {}, input, text));
    }
    const values = stage === "raw" ? raw : scaled;
    const map = grid({
      id: "scores", title: "a row for each query, a column for each key", rows: T, columns: T, names: now.names, framed: now.token, most: largest(values),
      at: (t, s) => (stage === "masked" && s > t ? null : values[t * T + s]), choose: (t) => now.choose({ token: t }),
      hint: `The largest is ±${number(largest(values))}. Point at a square, or tap a row to choose its query.`,
      describe: (t, s) => `${told(now, t)} asks, ${told(now, s)} is compared: q·k ${number(raw[t * T + s])}, scaled ${number(scaled[t * T + s])}${s > t ? ", masked: it comes later" : ""}`,
    });
    return [chosen, map];
  }

  function softmax(now) {
    const { weights } = mapOf(now), T = now.names.length;
    const said = element("p", { className: "said", id: "said", role: "status" });
    const spans = now.names.map((name, s) => element("span", { id: `piece-${s}` }, name));
    const text = element("p", { className: "pieces", "aria-label": "What the query looks at" }, ...spans);
    function look(t) {
      const list = Array.from(weights.subarray(t * T, t * T + t + 1)), best = list.indexOf(Math.max(...list));
      spans.forEach((span, s) => {
        span.style.setProperty("--weight", Math.sqrt(list[s] ?? 0));
        span.className = s === t ? "query" : s > t ? "later" : "";
        span.title = s > t ? "masked" : number(list[s]);
      });
      said.textContent = `${told(now, t)} looks most at ${told(now, best)}: ${list[best].toFixed(3)}. Entropy ${LabModel.entropy(list).toFixed(3)} of at most ${Math.log(t + 1).toFixed(3)} nats.`;
    }
    spans.forEach((span, t) => {
      for (const event of ["pointerenter", "click"]) span.addEventListener(event, () => look(t));
    });
    look(now.token);
    const map = grid({
      id: "softmax", title: "weights: a row for each query, a column for each key", rows: T, columns: T, names: now.names, framed: now.token, most: 1,
      at: (t, s) => (s > t ? null : Math.sqrt(weights[t * T + s])), look, choose: (t) => now.choose({ token: t }), hint: "Every row sums to 1; shades grow with the square root of a weight.",
      describe: (t, s) => (s > t ? `${told(now, t)} does not see ${told(now, s)}` : `${told(now, t)} gives ${told(now, s)} ${weights[t * T + s].toFixed(4)}`),
    });
    return [text, said, map];
  }

  function output(now) {
    const { model, head, token } = now, { heads: H, head_dim: D, width } = model.sizes, T = now.names.length;
    const layer = layerOf(now), list = Array.from(mapOf(now).weights.subarray(token * T, token * T + token + 1));
    const values = vectors(now, "value"), best = list.map((weight, s) => [weight, s]).sort((a, b) => b[0] - a[0]).slice(0, READ);
    const read = layer.output.subarray((token * H + head) * D, (token * H + head + 1) * D);
    const most = largest([...read, ...best.flatMap(([weight, s]) => Array.from(values[s], (x) => x * weight))]);
    const strips = best.map(([weight, s], n) => strip({
      title: [`${n ? "+ " : ""}${weight.toFixed(3)} × `, badge(...groups(model).find((roles) => roles.includes("value"))), ` of ${told(now, s)}`], values: values[s].map((x) => x * weight), most,
    }));
    const rest = list.length > READ ? `and ${list.length - READ} more, ` : "";
    const back = model.rotated_dims && model.sources.value === "key" ? ", turned back to its position" : "";
    return [
      ...strips,
      strip({ title: `${rest}= what head ${head} reads${back}`, values: read, most, id: "strip-read" }),
      strip({ title: `${H > 1 ? `all ${H} heads` : "the head"} through Wₒ: added to the vector`, values: part(layer.update, width, token) }),
      strip({ title: "then the MLP adds its part", values: part(layer.mlp, width, token) }),
    ];
  }

  function next(now) {
    const { sizes } = now.model, t = now.token;
    const chances = LabModel.probabilities(part(now.pass.logits, sizes.vocab, t));
    const order = chances.map((_, byte) => byte).sort((a, b) => chances[b] - chances[a]);
    const follows = now.pass.ids[t + 1];
    const entries = order.slice(0, TOP).map((byte) => [now.nameOf(byte), chances[byte], `${(100 * chances[byte]).toFixed(1)} %`, byte === follows]);
    const before = now.names.slice(Math.max(0, t - 11), t + 1).join("");
    const likeliest = order.find((byte) => byte >= 32 && byte < 127); // a line of text holds no other byte alone
    const refused = follows !== undefined ? "Choose the last token to type what follows it."
      : t + 1 === now.limit ? `The sentence is full: ${now.limit} bytes are read, and no more.` : "";
    const add = element("button", { type: "button", id: "append", disabled: refused !== "", "aria-describedby": "append-said" }, `Type the likeliest: ${now.nameOf(likeliest)}`);
    add.addEventListener("click", () => now.append(likeliest));
    const known = follows === undefined ? "This is the last token, so nobody knows what follows." : `In your sentence ${now.nameOf(follows)} follows: the model gave it ${(100 * chances[follows]).toFixed(1)} %.`;
    return [element("p", { className: "said" }, `After ${t > 11 ? "…" : ""}${before}`), bars(entries, "The likeliest next bytes"), aside(known), row(add, element("small", { id: "append-said" }, refused))];
  }

  const PROJECTED = {
    K: "Three matrices make three vectors of the same input. The query asks, the key is what it is compared with, and the value is what is handed over.",
    "K=V": "There is no third matrix: one vector is compared with queries and handed over. Key and value are the same numbers, in one place.",
    "Q=K": "There is no matrix for queries: a token asks with the vector that others are compared with. Only the value is made apart.",
    "Q=K=V": "One matrix makes one vector, and it plays all three roles: it asks, is compared, and is handed over.",
  };
  const KEPT = {
    K: "Later tokens will compare with this key and read this value, so both are kept: one row per token and layer.",
    "K=V": "Later tokens need a key and a value, and here they are one vector. The row holds it once: half the bytes.",
    "Q=K": "Sharing the query saves no byte, since queries were never kept. The value still has numbers of its own, and the row holds both.",
    "Q=K=V": "Key and value are one vector, which the row holds once: half the bytes. That the query shares it too saves only a matrix.",
  };
  const SCORED = "Each query is multiplied with each key, number by number, and summed. The sum is scaled by 1/√d, and what comes later is masked.";

  const STEPS = [
    { name: "Tokens", says: () => "A token here is one byte, and its number is all that the model is given. Choose one: the next steps follow it.", draw: tokens },
    { name: "Vectors", says: ({ sizes }) => `Every byte has ${sizes.width} learned numbers${sizes.positions ? ", and so has every position" : ""}. That vector runs through the layers; each reads it and adds to it.`, draw: embedding },
    { name: "q, k, v", says: (model) => PROJECTED[sharing(model)], draw: projections },
    { name: "Cached row", says: (model) => KEPT[sharing(model)], draw: cached },
    { name: "Scores", says: (model) => (model.sources.query === "key" ? `${SCORED} Query and key are one vector, so before the mask the scores are symmetric.` : SCORED), draw: scores },
    { name: "Softmax", says: () => "The softmax turns each row of scores into weights that sum to 1. Point at a token, or at a row, to see what it looks at.", draw: softmax },
    { name: "Output", says: () => "A head’s output is the sum of the values that it sees, each times its weight. Then the heads are mixed and added to the token’s vector.", draw: output },
    { name: "Next byte", says: ({ sizes }) => `After ${counted(sizes.layers, "layer")} the vector is compared with every byte’s own, and one more softmax makes chances of it.`, draw: next },
  ];

  return { STEPS, sharing };
})();
