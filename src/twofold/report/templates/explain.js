// Attention over the text's tokens: a square for each head, and the weights of the query that is pointed at.
(() => {
  const shade = (weight) => Math.sqrt(weight / 1000);
  const bar = () => getComputedStyle(document.documentElement).getPropertyValue("--bar").trim();

  function draw(canvas, rows) {
    const size = rows.length;
    canvas.width = canvas.height = size;
    const paint = canvas.getContext("2d");
    paint.fillStyle = bar();
    rows.forEach((row, query) => row.forEach((weight, key) => {
      paint.globalAlpha = shade(weight);
      if (weight) paint.fillRect(key, query, 1, 1);
    }));
  }

  function read(place) {
    const { pieces, maps } = JSON.parse(document.getElementById(place.id.replace("reading-", "reading-data-")).textContent);
    const [layers, heads, said, words, squares] = [".layer", ".head", ".said", ".pieces", ".thumbnails"].map((name) => place.querySelector(name));
    const spans = pieces.map((piece, position) => {
      const span = document.createElement("span");
      span.textContent = piece;
      for (const event of ["pointerenter", "click"]) span.addEventListener(event, () => look(position));
      words.append(span);
      return span;
    });
    let shown = maps[0];
    let query = pieces.length - 1;

    function look(position) {
      query = position;
      const row = shown.rows[position] ?? [];
      spans.forEach((span, key) => {
        span.style.setProperty("--weight", shade(row[key] ?? 0));
        span.classList.toggle("query", key === position);
        span.title = `${((row[key] ?? 0) / 1000).toFixed(3)}`;
      });
      const most = row.indexOf(Math.max(...row));
      said.textContent = row.length ? `token ${position} ${JSON.stringify(pieces[position])} looks most at token ${most} ${JSON.stringify(pieces[most])}: ${(row[most] / 1000).toFixed(3)}` : "";
    }

    function show(map) {
      shown = map;
      if (layers.value !== `${map.layer}`) layers.value = `${map.layer}`;
      fill(heads, maps.filter((one) => one.layer === map.layer).map((one) => one.head), map.head);
      squares.querySelectorAll("button").forEach((button, number) => button.setAttribute("aria-pressed", maps[number] === map));
      look(query);
    }

    function fill(select, values, chosen) {
      select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen)));
    }

    fill(layers, [...new Set(maps.map((map) => map.layer))], shown.layer);
    layers.addEventListener("change", () => show(maps.find((map) => `${map.layer}` === layers.value)));
    heads.addEventListener("change", () => show(maps.find((map) => `${map.layer}` === layers.value && `${map.head}` === heads.value)));
    words.addEventListener("keydown", (event) => {
      const last = pieces.length - 1;
      const next = { ArrowLeft: query - 1, ArrowRight: query + 1, Home: 0, End: last }[event.key];
      if (next !== undefined) { event.preventDefault(); look(Math.min(Math.max(next, 0), last)); }
    });
    let row;
    for (const map of maps) {
      if (row?.layer !== map.layer) {
        row = document.createElement("div");
        row.layer = map.layer;
        row.append(Object.assign(document.createElement("b"), { textContent: map.layer }));
        squares.append(row);
      }
      const button = Object.assign(document.createElement("button"), { type: "button", title: `layer ${map.layer} head ${map.head}` });
      button.setAttribute("aria-label", button.title);
      const canvas = document.createElement("canvas");
      button.append(canvas);
      button.addEventListener("click", () => show(map));
      row.append(button);
      draw(canvas, map.rows);
    }
    show(shown);
    return () => squares.querySelectorAll("canvas").forEach((canvas, number) => draw(canvas, maps[number].rows));
  }

  const again = [...document.querySelectorAll(".reading")].map(read);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => again.forEach((redraw) => redraw()));
})();
