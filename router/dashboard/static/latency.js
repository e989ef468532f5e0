// Where the time goes: until the first token, and in each phase.

import { stack } from "./badge.js";
import { empty, h, table } from "./dom.js";
import { count, duration, plural } from "./figures.js";
import { legend } from "./pages.js";

const SAID = {
  "router queue": "waits in the router",
  alloc: "waits for pages on decode",
  bootstrap: "prefill hears of them",
  admit: "waits for pages on prefill",
  compute: "prompt is computed",
  exposed: "KV still moves after the first token",
  decode: "tokens are generated",
  queue: "a write waits for its worker",
  post: "is handed to the transport",
  wire: "is on the wire",
  commit: "decode is told",
};
const COLUMNS = [
  { name: "Phase" },
  { name: "p50", number: true },
  { name: "p95", number: true },
  { name: "Max", number: true, wide: true },
  { name: "Of", number: true, wide: true },
];

export function firstTokens({ first_tokens: first }) {
  if (!first.count) return empty("No request has got its first token in the last five minutes.");
  const parts = Object.entries(first.parts_ms).map(([name, value]) => ({ name, value, kind: name.replace(" ", "-") }));
  const whole = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  const text = parts.map((part) => `${part.name} ${duration(part.value)}`).join(", ");
  return [
    h("p", { class: "big" }, h("b", {}, duration(first.p50_ms)), " p50 · ", h("b", {}, duration(first.p95_ms)), " p95"),
    stack(parts, whole, `On average: ${text}`),
    legend(parts, duration),
    h("p", { class: "quiet" }, `Averages of ${plural(first.count, "attempt")} of the last five minutes, in the order in which things happen.`),
  ];
}

export function phases(now) {
  if (!now.phases.length) return empty("No request has been through a phase in the last five minutes.");
  const longest = Math.max(...now.phases.map((phase) => phase.p95_ms)) || 1;
  return table("Latency by phase", COLUMNS, now.phases.map((phase) => row(phase, longest)));
}

function row(phase, longest) {
  return {
    key: phase.phase,
    cells: [
      h(
        "span",
        { class: "phase" },
        h("b", {}, phase.phase),
        " ",
        h("span", { class: "quiet" }, SAID[phase.phase] ?? ""),
        h("i", { class: "rule", "aria-hidden": "true", style: { width: `${(100 * phase.p95_ms) / longest}%` } })
      ),
      duration(phase.p50_ms),
      duration(phase.p95_ms),
      duration(phase.max_ms),
      count(phase.count),
    ],
  };
}
