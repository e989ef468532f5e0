// Each pair of a prefill and a decode group: how much moves, what failed, and whether requests still go there.

import { badge } from "./badge.js";
import { empty, h } from "./dom.js";
import { bytes, count, plural } from "./figures.js";

const STEPS = 5; // shades of heat, by powers of ten below the busiest edge

export function edges(now) {
  const senders = now.groups.filter((group) => group.role === "prefill").map((group) => group.name);
  const receivers = now.groups.filter((group) => group.role === "decode").map((group) => group.name);
  if (!senders.length || !receivers.length) return empty("There is no pair of a prefill and a decode group.");
  const known = new Map(now.edges.map((edge) => [`${edge.prefill} ${edge.decode}`, edge]));
  const busiest = Math.max(1, ...now.edges.map((edge) => edge.bytes_per_s ?? 0));
  const head = h("tr", {}, h("th", { scope: "col" }, "Moved"), receivers.map((name) => h("th", { scope: "col" }, name)));
  const rows = senders.map((sender) =>
    h(
      "tr",
      { "data-key": sender },
      h("th", { scope: "row" }, sender),
      receivers.map((receiver) => cell(known.get(`${sender} ${receiver}`), busiest))
    )
  );
  return [
    h(
      "div",
      { class: "scroll", tabindex: receivers.length > 4 ? "0" : undefined },
      h("table", { class: "heat" }, h("caption", { class: "unseen" }, "Bytes a second, failures and breakers by pair"), h("thead", {}, head), h("tbody", {}, rows))
    ),
    h("p", { class: "quiet" }, `Of the last ten seconds; failures among the last ${plural(now.remembered, "attempt")}; ✕ is a breaker that keeps requests away.`),
  ];
}

function cell(edge, busiest) {
  if (!edge) return h("td", { class: "heat-0" }, "0");
  const rate = edge.bytes_per_s ?? 0;
  const heat = rate > 0 ? Math.max(1, STEPS + Math.ceil(Math.log10(rate / busiest))) : 0;
  const breaker = edge.breaker ?? "closed";
  return h(
    "td",
    { class: `heat-${heat}` },
    h("span", { class: "rate" }, rate ? `${bytes(rate)}/s` : "0"),
    edge.failures ? h("span", { class: "failures" }, `${count(edge.failures)} failed`) : null,
    breaker === "closed" ? null : badge("bad", breaker)
  );
}
