"use strict";
// Draws every figure in the page's own colours, and again when the reader's colour scheme or the paper changes.
(() => {
  const figures = [...document.querySelectorAll(".figure")].map((place) => {
    const data = document.getElementById(place.id.replace("figure-", "data-"));
    return { place, ...JSON.parse(data.textContent) };
  });
  const options = { responsive: true, displayModeBar: false, doubleClick: false, showTips: false };

  function themed(layout) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const result = structuredClone(layout);
    result.font.color = colour("--ink");
    result.hoverlabel = { ...result.hoverlabel, bgcolor: colour("--panel"), bordercolor: colour("--rule"), font: { color: colour("--ink") } };
    for (const axis of Object.keys(result).filter((key) => /^[xy]axis/.test(key))) {
      result[axis].gridcolor = colour("--grid");
    }
    return result;
  }

  function draw() {
    return Promise.all(figures.map(({ place, data, layout }) => Plotly.react(place, data, themed(layout), options)));
  }

  const resize = () => figures.forEach(({ place }) => Plotly.Plots.resize(place));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => { draw(); resize(); });
  addEventListener("afterprint", () => { draw(); resize(); });
  draw();
})();
