// A state as a shape, a word and a colour: any one of them is enough.

import { h } from "./dom.js";

const SHAPES = { good: "●", warn: "▲", bad: "✕", idle: "○" };

export function badge(kind, text) {
  return h("span", { class: `badge ${kind}` }, h("span", { "aria-hidden": "true" }, SHAPES[kind]), " ", text);
}

export function requestButton(id, attempt) {
  return h(
    "button",
    { type: "button", class: "link", "data-request": attempt ? `${id}.${attempt}` : id, title: "Show its timeline" },
    attempt > 1 ? `${id}.${attempt}` : id
  );
}

// A part of a whole: `parts` are { name, value, kind }, drawn in order and told as text below.
export function stack(parts, whole, label) {
  return h(
    "div",
    { class: "stack", role: "img", "aria-label": label },
    parts
      .filter((part) => part.value > 0)
      .map((part) => h("span", { class: `part ${part.kind}`, style: { width: `${(100 * part.value) / whole}%` } }))
  );
}
