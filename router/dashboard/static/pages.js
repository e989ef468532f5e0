// Whose each group's KV pages are.

import { stack } from "./badge.js";
import { empty, h } from "./dom.js";
import { count, percent } from "./figures.js";

const PARTS = ["owned", "cached", "quarantined", "free"];

export function pages(now) {
  const known = now.groups.filter((group) => group.pages);
  if (!known.length) return empty("No group has told how its pages are used.");
  return h("ul", { class: "stacks" }, known.map(one));
}

function one(group) {
  const { total } = group.pages;
  const parts = PARTS.map((name) => ({ name, value: group.pages[name], kind: name }));
  return h(
    "li",
    { "data-key": group.name },
    h("p", { class: "stack-title" }, h("b", {}, group.name), ` ${count(total)} pages, ${percent(group.pages.free, total)} free`),
    stack(parts, total, parts.map((part) => `${part.name} ${count(part.value)}`).join(", ")),
    legend(parts, count)
  );
}

export function legend(parts, figure) {
  return h(
    "ul",
    { class: "legend" },
    parts.map((part) => h("li", {}, h("i", { class: `swatch ${part.kind}`, "aria-hidden": "true" }), `${part.name} `, h("b", {}, figure(part.value))))
  );
}
