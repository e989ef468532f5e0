// KV on its way, layer by layer.

import { badge, requestButton } from "./badge.js";
import { empty, h, table } from "./dom.js";
import { bytes, count, duration, percent, plural } from "./figures.js";
import { word } from "./words.js";

const COLUMNS = [
  { name: "Request" },
  { name: "From → to" },
  { name: "State", wide: true },
  { name: "Layers landed" },
  { name: "Prompt", number: true, wide: true },
  { name: "KV", number: true, wide: true },
  { name: "Age", number: true },
];

export function transfers(now) {
  if (!now.live.length) return empty("No KV is on its way, and none came in the last ten seconds.");
  const hidden = now.live_count - now.live.filter((one) => !one.over).length;
  return [
    h("p", { class: "quiet" }, `${plural(now.live_count, "transfer")} on the way${hidden > 0 ? `, ${count(hidden)} more than are shown` : ""}.`),
    table("Transfers, those on their way first", COLUMNS, now.live.map(row)),
  ];
}

function row(one) {
  return {
    key: `${one.id}.${one.attempt}`,
    cells: [
      requestButton(one.id, one.attempt),
      `${one.groups.prefill} → ${one.groups.decode}`,
      badge(one.over ? "idle" : "good", word(one.state)),
      layers(one),
      `${count(one.prompt_tokens)} tokens`,
      bytes(one.bytes),
      duration(one.age_ms),
    ],
  };
}

function layers(one) {
  const [landed, all] = one.layers;
  const parts = one.progress.length ? one.progress : Array.from({ length: all }, (_, at) => (at < landed ? 1 : 0));
  const whole = one.progress.length ? one.progress.filter((part) => part >= 1).length : landed;
  const label = `${whole} of ${all} layers`;
  return h(
    "div",
    { class: "layers", title: parts.map((part, at) => `layer ${at}: ${percent(part, 1)}`).join(", ") },
    h("div", { class: "cells", role: "img", "aria-label": label }, parts.map((part) => h("i", { class: part >= 1 ? "whole" : undefined, style: { "--part": `${Math.round(part * 100)}%` } }))),
    h("span", { class: "figure" }, `${whole}/${all}`)
  );
}
