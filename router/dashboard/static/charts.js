// Three lines over the last five minutes.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { h } from "./dom.js";
import { bytes, count, duration } from "./figures.js";
import { History } from "./history.js";

const SPAN_S = 300;
const HEIGHT = 120;
const CHARTS = [
  { title: "KV moved", series: [{ name: "kv", label: "all edges", colour: "--line-1" }], figure: (value) => `${bytes(value)}/s`, least: 1000 },
  {
    title: "Time to first token",
    series: [
      { name: "p50", label: "p50", colour: "--line-1" },
      { name: "p95", label: "p95", colour: "--line-2", dash: [5, 4] },
    ],
    figure: duration,
    least: 10,
  },
  {
    title: "Requests",
    series: [
      { name: "open", label: "at groups", colour: "--line-1" },
      { name: "queued", label: "in the queue", colour: "--line-2", dash: [5, 4] },
    ],
    figure: count,
    least: 5,
    steps: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000],
  },
];

export class Charts {
  constructor(place) {
    this.place = place;
    this.history = new History(CHARTS.flatMap((chart) => chart.series.map((series) => series.name)));
    this.made = [];
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.make());
    new ResizeObserver(() => requestAnimationFrame(() => this.fit())).observe(place);
  }

  add(now) {
    const tokens = now.first_tokens;
    this.history.add(now.at_us / 1e6, {
      kv: now.edges.reduce((sum, edge) => sum + (edge.bytes_per_s ?? 0), 0),
      p50: tokens.count ? tokens.p50_ms : null,
      p95: tokens.count ? tokens.p95_ms : null,
      open: now.router.open,
      queued: now.router.queued,
    });
    if (!this.made.length) this.make();
    for (const { chart, plot, caption, canvas } of this.made) {
      const data = this.history.of(chart.series.map((series) => series.name));
      const text = chart.series.map((series, at) => `${series.label} ${told(chart, data[at + 1].at(-1))}`).join(" · ");
      caption.textContent = text;
      canvas.setAttribute("aria-label", `${chart.title}, last five minutes; now ${text}`);
      plot.setData(data);
    }
  }

  make() {
    for (const { plot } of this.made) plot.destroy();
    this.place.replaceChildren();
    const css = getComputedStyle(document.documentElement);
    this.made = CHARTS.map((chart) => this.draw(chart, (name) => css.getPropertyValue(name).trim()));
    this.fit();
  }

  draw(chart, colour) {
    const canvas = h("div", { class: "canvas", role: "img" });
    const caption = h("figcaption", {});
    const keys = chart.series.map((series, at) => h("span", { class: `key line-${at + 1}` }, series.label));
    this.place.append(h("figure", {}, h("h3", {}, chart.title, h("span", { class: "keys", "aria-hidden": "true" }, chart.series.length > 1 ? keys : [])), canvas, caption));
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const options = {
      width: 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { range: (_, low, high) => [high - SPAN_S, high] }, y: { range: (_, low, high) => [0, Math.max(high || 0, chart.least) * 1.1] } },
      axes: [
        { ...axis, space: 70, size: 24, values: (_, times) => times.map(clock) },
        { ...axis, space: 40, size: 68, incrs: chart.steps, values: (_, values) => values.map((value) => chart.figure(value)) },
      ],
      series: [{}, ...chart.series.map((series) => ({ label: series.label, stroke: colour(series.colour), width: 2, dash: series.dash, points: { show: false } }))],
    };
    const plot = new uPlot(options, this.history.of(chart.series.map((series) => series.name)), canvas);
    return { chart, plot, caption, canvas };
  }

  fit() {
    for (const { plot, canvas } of this.made) {
      const width = canvas.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
    }
  }
}

function told(chart, value) {
  return value === null || value === undefined ? "–" : chart.figure(value);
}

function clock(seconds) {
  const at = new Date(seconds * 1000);
  return [at.getHours(), at.getMinutes()].map((part) => String(part).padStart(2, "0")).join(":");
}
