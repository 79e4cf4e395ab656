// The page of the lab: what is chosen, the controls that change it, and what is drawn of it.
(() => {
  const { element, number, bytes, counted, bars, curve } = LabDraw;
  const { STEPS } = LabSteps;
  const lab = JSON.parse(document.getElementById("lab").textContent);
  const models = lab.models.map(LabModel.open);
  const find = (id) => document.getElementById(id);
  const MOST_FACTOR = Math.max(8, ...models.map(({ sizes }) => Math.sqrt(sizes.head_dim)));
  const CURVE_POINTS = 33, PAUSE = 150; // of the curve, and milliseconds before it is computed
  const LARGE = { layers: 32, kv_heads: 32, head_dim: 128 };
  const LETTERS = { 32: "␣", 10: "↵", 9: "⇥", 13: "␍" };
  const now = { model: models[0], step: 0, layer: 0, head: 0, token: 0, factor: 1, choose, append, nameOf };
  let curveTimer = 0;

  function nameOf(byte) {
    if (byte === lab.end) return "end";
    return LETTERS[byte] ?? (byte > 32 && byte < 127 ? String.fromCharCode(byte) : `0x${byte.toString(16).padStart(2, "0")}`);
  }

  // Reads the sentence anew. What is longer than the model reads is left out; nothing is read as a space.
  function read() {
    const all = [...new TextEncoder().encode(find("sentence").value || " ")];
    now.limit = Math.min(lab.most_tokens, now.model.sizes.positions || lab.most_tokens);
    const ids = all.slice(0, now.limit);
    find("length").textContent = all.length > ids.length ? `the first ${ids.length} of ${all.length} bytes` : `${ids.length} of ${now.limit} bytes`;
    now.names = ids.map(nameOf);
    now.token = Math.min(now.token, ids.length - 1);
    now.layer = Math.min(now.layer, now.model.sizes.layers - 1);
    now.head = Math.min(now.head, now.model.sizes.heads - 1);
    now.pass = LabModel.forward(now.model, ids, now.factor);
  }

  // Changes what is chosen and draws again; a new model, sentence or factor needs a new pass.
  function choose(changes) {
    const anew = ["model", "factor", "sentence"].some((name) => name in changes);
    Object.assign(now, changes);
    if (anew) read();
    if (changes.model || "sentence" in changes) requestCurve();
    drawStep();
    drawScale();
  }

  // Types a byte after what was read.
  function append(byte) {
    const field = find("sentence");
    field.value = (field.value || " ") + String.fromCharCode(byte);
    choose({ sentence: true, token: now.names.length });
  }

  function drawStep() {
    const step = STEPS[now.step], focused = document.activeElement?.id;
    find("step-title").textContent = `${now.step + 1}. ${step.name}`;
    find("step-text").textContent = step.says(now.model);
    find("step").replaceChildren(...step.draw(now));
    [...find("steps").children].forEach((item, n) => item.firstChild.setAttribute("aria-current", n === now.step ? "step" : "false"));
    find("back").disabled = now.step === 0;
    find("next").disabled = now.step === STEPS.length - 1;
    drawTokens();
    fillChoices();
    if (focused && document.activeElement?.id !== focused) find(focused)?.focus({ preventScroll: true });
  }

  function drawTokens() {
    find("tokens").replaceChildren(...now.names.map((name, t) => {
      const token = element("button", { type: "button", id: `token-${t}`, role: "radio", tabIndex: t === now.token ? 0 : -1 }, name);
      token.setAttribute("aria-checked", t === now.token);
      token.setAttribute("aria-label", `token ${t}, ${name}`);
      token.addEventListener("click", () => choose({ token: t }));
      return token;
    }));
    find("token-said").textContent = `${now.names[now.token]} at ${now.token}`;
  }

  function moveToken(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const token = Math.min(Math.max(now.token + by, 0), now.names.length - 1);
    choose({ token });
    find(`token-${token}`).focus();
  }

  // A row of radio buttons in `place`, one for each text.
  function radios(place, name, texts, chosen, change) {
    const inputs = texts.map((text, n) => {
      const input = element("input", { type: "radio", name, id: `${name}-${n}`, checked: n === chosen });
      input.addEventListener("change", () => change(n));
      return element("label", {}, input, element("span", {}, text));
    });
    find(place).replaceChildren(...inputs);
  }

  function fillChoices() {
    const { layers, heads } = now.model.sizes, upTo = (count) => Array.from({ length: count }, (_, n) => `${n}`);
    radios("models", "model", models.map((model) => model.label), models.indexOf(now.model), (n) => choose({ model: models[n] }));
    radios("layers", "layer", upTo(layers), now.layer, (n) => choose({ layer: n }));
    radios("heads", "head", upTo(heads), now.head, (n) => choose({ head: n }));
    const bits = now.model.bits_per_byte;
    find("quality").textContent = bits ? `${now.model.label}: ${bits.toFixed(3)} bits per byte of held-out text` : "";
  }

  function goTo(step) {
    now.step = Math.min(Math.max(step, 0), STEPS.length - 1);
    drawStep();
  }

  // What the scale does: entropy and saturation of this head and of all, this query's weights, and the whole curve.
  function drawScale() {
    const { model, pass, factor, token } = now, T = now.names.length;
    const map = pass.layers[now.layer].heads[now.head], all = pass.layers.flatMap(({ heads }) => heads.map(({ weights }) => weights));
    const percent = (share) => `${(100 * share).toFixed(1)} %`;
    const cells = [["this head", LabModel.sharpness([map.weights])], ["all heads", LabModel.sharpness(all)]];
    find("factor-said").textContent = `${factor.toFixed(2)} × 1/√d${factor === 1 ? ", as trained" : ""}`;
    find("sharpness").replaceChildren(...(T > 1 ? cells : []).map(([who, found]) => element("tr", {},
      element("th", { scope: "row" }, who), element("td", {}, found.entropy.toFixed(4)), element("td", {}, percent(found.relative)), element("td", {}, percent(found.saturated)))));
    const weights = Array.from(map.weights.subarray(token * T, token * T + token + 1));
    find("weights").replaceChildren(...weights.map((weight, s) => {
      const bar = element("span", { title: `${now.names[s]} at ${s}: ${number(weight)}` });
      bar.style.blockSize = `${100 * weight}%`;
      return element("span", { className: "column" }, element("span", { className: "room" }, bar), element("small", {}, now.names[s]));
    }));
    find("weights-said").textContent = `What ${now.names[token]} at ${token} looks at, layer ${now.layer}, head ${now.head}: entropy ${LabModel.entropy(weights).toFixed(3)} nats, largest weight ${Math.max(...weights).toFixed(3)}.`;
    drawCurve();
  }

  function drawCurve() {
    const marks = [[1, "1/√d"], [Math.sqrt(now.model.sizes.head_dim), "unscaled"]].filter(([x]) => x <= MOST_FACTOR);
    const label = `Mean entropy of all heads, as a share of the most possible, as the scale goes from 0 to ${MOST_FACTOR} times 1/√d`;
    const drawn = now.curve ? [curve({ values: now.curve, end: MOST_FACTOR, most: 1, here: now.factor, marks, label })] : [];
    find("curve").replaceChildren(...drawn);
  }

  // The curve takes many passes: they begin when typing pauses, with pauses between them. Until then there is none.
  function requestCurve() {
    clearTimeout(curveTimer);
    now.curve = null;
    const { model } = now, ids = Array.from(now.pass.ids), values = [];
    if (ids.length < 2) return;
    const more = () => {
      const began = performance.now();
      const pass = LabModel.forward(model, ids, (values.length / (CURVE_POINTS - 1)) * MOST_FACTOR);
      values.push(LabModel.sharpness(pass.layers.flatMap(({ heads }) => heads.map(({ weights }) => weights))).relative);
      if (values.length < CURVE_POINTS) curveTimer = setTimeout(more, performance.now() - began); // as long again for the page
      else { now.curve = values; drawCurve(); }
    };
    curveTimer = setTimeout(more, PAUSE);
  }

  // The whole number that a field stands for, within its bounds.
  const within = ({ value, min, max }) => Math.min(Math.max(Math.floor(Number(value)), Number(min)), Number(max));

  function drawCache() {
    const value = (id) => {
      const field = find(id), kept = within(field);
      if (field.value !== "" && Number(field.value) !== kept) field.value = kept; // an empty one is being typed in
      return kept;
    };
    const tokens = 2 ** Number(find("context").value);
    const given = { layers: value("cache-layers"), kvHeads: value("cache-heads"), headDim: value("cache-dim"), sequences: value("cache-sequences"), tokens, ...lab.dtypes[find("cache-dtype").value] };
    const counts = lab.sharings.map(({ parts }) => LabModel.cacheBytes({ ...given, parts: parts.length }));
    const most = Math.max(...counts);
    find("context-said").textContent = `${tokens.toLocaleString("en")} tokens`;
    find("cache-bars").replaceChildren(bars(lab.sharings.map(({ notation, parts }, n) =>
      [element("span", {}, notation, element("small", {}, `[ ${parts.join(" | ")} ]`)), counts[n] / most, bytes(counts[n])]), "Cache bytes of the four ways of sharing"));
    find("cache-formula").textContent = `${counted(given.sequences, "sequence")} × ${counted(given.layers, "layer")} × ${counted(tokens, "token")} × ${counted(given.kvHeads, "head")} × ${counted(given.headDim, "dim")} × ${counted(given.item, "byte")}, once for each part of the row.` +
      (given.scale ? ` Each head’s row has a scale of ${counted(given.scale, "byte")} more.` : "");
  }

  function setSizes({ layers, kv_heads: heads, head_dim: dim }, dtype, tokens) {
    const set = { "cache-layers": layers, "cache-heads": heads, "cache-dim": dim, "cache-dtype": dtype, "cache-sequences": 1, context: Math.log2(tokens) };
    for (const [id, value] of Object.entries(set)) find(id).value = value;
    drawCache();
  }

  function onKey(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select, canvas, textarea")) return;
    event.preventDefault();
    goTo(now.step + by);
  }

  function start() {
    find("sentence").value = lab.sentence;
    find("sentence").addEventListener("input", () => choose({ sentence: true }));
    find("steps").append(...STEPS.map(({ name }, n) => {
      const go = element("button", { type: "button", id: `step-${n}` }, element("b", {}, `${n + 1}`), element("span", {}, name));
      go.addEventListener("click", () => goTo(n));
      return element("li", {}, go);
    }));
    find("back").addEventListener("click", () => goTo(now.step - 1));
    find("next").addEventListener("click", () => goTo(now.step + 1));
    find("factor").max = MOST_FACTOR;
    find("tokens").addEventListener("keydown", moveToken);
    document.addEventListener("keydown", onKey);
    find("factor").addEventListener("input", (event) => choose({ factor: Number(event.target.value) }));
    for (const button of document.querySelectorAll("[data-factor]")) {
      button.addEventListener("click", () => {
        find("factor").value = button.dataset.factor === "d" ? Math.sqrt(now.model.sizes.head_dim) : button.dataset.factor;
        choose({ factor: Number(find("factor").value) });
      });
    }
    find("cache-dtype").append(...Object.keys(lab.dtypes).map((name) => element("option", { value: name }, name)));
    find("cache").addEventListener("input", drawCache);
    find("cache").addEventListener("change", ({ target }) => { if (target.type === "number") target.value = within(target); });
    find("cache-own").addEventListener("click", () => setSizes(now.model.sizes, now.model.cache.dtype, 64));
    find("cache-large").addEventListener("click", () => setSizes(LARGE, "bfloat16", 32768));
    setSizes(LARGE, "bfloat16", 32768);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawStep());
    choose({ sentence: true, token: Math.min(lab.sentence.length - 1, 8) });
  }

  start();
})();
