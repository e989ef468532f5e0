// Requests worth a look.

import { badge, requestButton } from "./badge.js";
import { empty, h, table } from "./dom.js";
import { ago, count, duration } from "./figures.js";
import { outcome } from "./words.js";

const COLUMNS = [
  { name: "Request" },
  { name: "State" },
  { name: "First token", number: true },
  { name: "Mostly", wide: true },
  { name: "Whole", number: true },
  { name: "Groups", wide: true },
  { name: "Tokens", number: true, wide: true },
  { name: "Began", number: true, wide: true },
];

export function slow(now) {
  if (!now.slow.length) return empty("No rank remembers a request.");
  return [
    h("p", { class: "quiet" }, "Failed attempts first, then those that waited longest for their first token. Open one for its timeline."),
    table("Slow and failed requests", COLUMNS, now.slow.map(row)),
  ];
}

function row(one) {
  return {
    key: `${one.id}.${one.attempt}`,
    cells: [
      requestButton(one.id, one.attempt),
      state(one),
      duration(one.first_token_ms),
      one.longest || "–",
      duration(one.whole_ms),
      Object.values(one.groups).join(" → "),
      one.tokens === null ? count(one.prompt_tokens) : `${count(one.prompt_tokens)} + ${count(one.tokens)}`,
      ago(one.ago_s),
    ],
  };
}

function state(one) {
  if (one.failed) return badge("bad", outcome(one));
  return badge(one.whole_ms === null ? "good" : "idle", outcome(one));
}

export function losses(now) {
  if (!now.losses.length) return empty("None since this router started.");
  return h(
    "ul",
    { class: "losses" },
    now.losses.map((loss) => h("li", {}, h("b", {}, loss.group), ` ${ago(loss.ago_s)}: ${loss.cause}`))
  );
}
