// Drawing for the lab: grids of coloured squares that tell their numbers, bars, and one curve.
const LabDraw = (() => {
  const PIXELS = 2; // canvas pixels per CSS pixel, at least
  const GUTTER = 18, LEGIBLE = 9; // CSS pixels beside a grid for names, and of a square that is named
  let made = 0;
  let kept = null; // the square that was chosen, while the grid is drawn anew because of it

  function element(tag, properties = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in node && name !== "role") node[name] = value;
      else node.setAttribute(name, value);
    }
    node.append(...children);
    return node;
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function number(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return (size >= 1e-3 && size < 1e5 ? value.toPrecision(4) : value.toExponential(2)).replace("-", "−");
  }

  const counted = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;

  // Bytes exactly and, from 1 KiB up, in short.
  function bytes(count) {
    const units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    const unit = Math.min(Math.max(Math.floor(Math.log2(count) / 10), 0), units.length - 1);
    const short = count / 1024 ** unit;
    return unit ? `${Number(short.toPrecision(4)).toLocaleString("en")} ${units[unit]}` : counted(count, "byte");
  }

  const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);

  function letter(paint, name, x, y) {
    paint.fillStyle = colour("--muted");
    paint.font = "11px ui-monospace, Menlo, Consolas, monospace";
    paint.textAlign = "center";
    paint.textBaseline = "middle";
    paint.fillText(name.length > 2 ? name.slice(-2) : name, x, y);
  }

  // A figure of rows × columns squares. `at(r, c)` is a number, or null for a square that is left out; below 0 it is
  // orange, above blue, the stronger the nearer to ±`most`. `describe(r, c)` is what pointing at a square says, `look`
  // is called with its row and column, `choose` when it is tapped, and `framed` is a row that stands out. `names` stand
  // at the left of rows, and above columns where there are as many; `cell` is a square's height over its width.
  function grid({ id, title, rows, columns, at, most, hint, describe, look, choose, framed, names, cell = 1 }) {
    const canvas = element("canvas", { id, tabIndex: 0, role: "application", className: rows === 1 ? "grid single" : "grid" });
    canvas.setAttribute("aria-roledescription", "grid of numbers");
    let point = kept?.id === id ? kept.point : null;
    const readout = element("output", { className: "readout", id: `${id}-readout` }, point ? describe(...point) : hint);
    const heading = element("figcaption", {}, ...(Array.isArray(title) ? title : [title]));
    canvas.setAttribute("aria-label", `${heading.textContent}, ${rows} by ${columns}. Arrow keys read single numbers.`);
    canvas.setAttribute("aria-describedby", readout.id);
    canvas.style.aspectRatio = `${columns} / ${rows * cell}`;
    const left = names ? GUTTER : 0, top = names?.length === columns ? GUTTER : 0;

    function draw() {
      const size = Math.max(PIXELS, devicePixelRatio || 1);
      const [width, height] = [canvas.clientWidth - left, canvas.clientHeight - top];
      canvas.width = Math.round(canvas.clientWidth * size);
      canvas.height = Math.round(canvas.clientHeight * size);
      const paint = canvas.getContext("2d");
      paint.scale(size, size);
      paint.translate(left, top);
      const [w, h] = [width / columns, height / rows], gap = w > 5 && h > 5 ? 1 : 0;
      const [above, below, absent] = [colour("--high"), colour("--low"), colour("--absent")];
      for (let r = 0; r < rows; r++) {
        for (let c = 0; c < columns; c++) {
          const value = at(r, c);
          paint.globalAlpha = value === null ? 1 : 0.05 + 0.95 * Math.min(Math.abs(value) / most, 1);
          paint.fillStyle = value === null ? absent : value < 0 ? below : above;
          paint.fillRect(c * w, r * h, w - gap, h - gap);
        }
      }
      paint.globalAlpha = 1;
      if (left && h >= LEGIBLE) names.forEach((name, r) => letter(paint, name, -left / 2, (r + 0.5) * h));
      if (top && w >= LEGIBLE) names.forEach((name, c) => letter(paint, name, (c + 0.5) * w, -top / 2));
      paint.strokeStyle = colour("--ink");
      paint.lineWidth = 1.5;
      if (framed !== undefined && rows > 1) paint.strokeRect(0.75, framed * h, width - 1.5, h);
      if (point) paint.strokeRect(point[1] * w, point[0] * h, Math.max(w - gap, 2), Math.max(h - gap, 2));
    }

    function show(r, c) {
      point = [r, c];
      readout.textContent = describe(r, c);
      look?.(r, c);
      draw();
    }

    function pick() {
      kept = { id, point };
      choose?.(...point);
      kept = null;
    }

    function under(event) {
      const box = canvas.getBoundingClientRect();
      const part = (offset, length, count) => Math.min(Math.max(Math.floor((offset / length) * count), 0), count - 1);
      return [part(event.clientY - box.top - top, box.height - top, rows), part(event.clientX - box.left - left, box.width - left, columns)];
    }

    canvas.addEventListener("pointermove", (event) => show(...under(event)));
    canvas.addEventListener("click", (event) => { show(...under(event)); pick(); });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (event.key === "Enter" && point) pick();
      if (!moves) return;
      event.preventDefault();
      const [r, c] = point ?? [0, 0];
      show(Math.min(Math.max(r + moves[0], 0), rows - 1), Math.min(Math.max(c + moves[1], 0), columns - 1));
    });
    new ResizeObserver(draw).observe(canvas);
    return Object.assign(element("figure", { className: "numbers" }, heading, canvas, readout), { redraw: draw });
  }

  // One vector as a strip; `names(c)` says what a number is part of.
  function strip({ title, values, most, names = () => "", ...others }) {
    const list = Array.from(values);
    const peak = most ?? largest(list);
    return grid({
      id: `strip-${++made}`, title, rows: 1, columns: list.length, at: (_, c) => list[c], most: peak,
      hint: `${list.length} numbers, the largest ±${number(largest(list))}`,
      describe: (_, c) => `${names(c)}number ${c}: ${number(list[c])}`, cell: list.length / 22, ...others,
    });
  }

  // A role's sign: the letter and its colour, or of several roles that are one vector, all of them.
  function badge(...roles) {
    const letters = roles.map((role) => element("b", { className: `role ${role}` }, role[0]));
    return element("span", { className: "badge" }, ...letters.flatMap((letter, n) => (n ? [" = ", letter] : [letter])));
  }

  // Horizontal bars: [label, share of the longest, text, whether it stands out].
  function bars(entries, label) {
    const list = element("ul", { className: "bars", "aria-label": label });
    for (const [name, share, text, strong] of entries) {
      const bar = element("span", { className: "length" });
      bar.style.inlineSize = `${100 * share}%`;
      list.append(element("li", { className: strong ? "strong" : "" },
        element("span", { className: "name" }, name), element("span", { className: "track" }, bar), element("span", { className: "amount" }, text)));
    }
    return list;
  }

  // A curve of values over 0…end with a point at `here`, as SVG; `marks` are [x, text].
  function curve({ values, end, most, here, marks, label }) {
    const [width, height, foot] = [320, 120, 20];
    const x = (position) => 6 + (position / end) * (width - 12);
    const y = (value) => 6 + (1 - value / most) * (height - foot - 12);
    const place = (n) => (n / (values.length - 1)) * end;
    const path = values.map((value, n) => `${n ? "L" : "M"}${x(place(n)).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const draw = (tag, attributes, text = "") => {
      const node = document.createElementNS(svg.namespaceURI, tag);
      for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
      node.textContent = text;
      svg.append(node);
    };
    for (const [name, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "curve" })) svg.setAttribute(name, value);
    draw("line", { x1: 6, x2: width - 6, y1: y(0), y2: y(0), class: "axis" });
    for (const [position, text] of marks) {
      draw("line", { x1: x(position), x2: x(position), y1: 6, y2: y(0), class: "mark" });
      draw("text", { x: x(position), y: height - 4, "text-anchor": "middle" }, text);
    }
    draw("path", { d: path, class: "line" });
    const near = (here / end) * (values.length - 1), low = Math.min(Math.floor(near), values.length - 2);
    draw("circle", { cx: x(here), cy: y(values[low] + (near - low) * (values[low + 1] - values[low])), r: 5, class: "here" });
    return svg;
  }

  return { element, number, bytes, counted, largest, grid, strip, badge, bars, curve };
})();
