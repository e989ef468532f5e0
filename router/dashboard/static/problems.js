// What somebody who was woken up has to know first.

import { badge } from "./badge.js";
import { h } from "./dom.js";
import { ago, count, duration, plural } from "./figures.js";
import { word } from "./words.js";

const LATELY_S = 300;
const FULL = 0.95;
const MOST = 12; // lines: whoever has more problems has one that is behind them

export function problems(now) {
  const every = [...ofRouter(now), ...now.groups.flatMap(ofGroup), ...ofPages(now), ...now.edges.flatMap(ofEdge), ...lately(now)];
  const found = [...every.filter((one) => one.kind === "bad"), ...every.filter((one) => one.kind !== "bad")];
  if (!found.length) return h("p", { class: "well" }, badge("good", "All well"), ` ${summary(now)}`);
  const more = found.length - MOST;
  return [
    h(
      "ul",
      { class: "problems" },
      found.slice(0, MOST).map((one) => h("li", { class: one.kind }, badge(one.kind, one.what), " ", h("span", {}, one.why)))
    ),
    more > 0 ? h("p", { class: "more" }, `And ${count(more)} more: see the panels below.`) : null,
  ];
}

export function worst(now) {
  const groups = now.groups.flatMap(ofGroup);
  return [...ofRouter(now), ...groups].some((one) => one.kind === "bad") ? "bad" : groups.length ? "warn" : "good";
}

function summary(now) {
  const ranks = now.groups.reduce((sum, group) => sum + group.size, 0);
  return `${plural(now.groups.length, "group")}, ${plural(ranks, "rank")}, ${plural(now.router.open, "open request")}.`;
}

function ofRouter({ router }) {
  if (router.state === "ready") return [];
  const kind = router.state === "draining" ? "warn" : "bad";
  return [{ kind, what: `router is ${router.state}`, why: router.why }];
}

function ofGroup(group) {
  const found = [];
  if (group.state !== "usable") {
    const kind = ["lost", "missing", "silent"].includes(group.state) ? "bad" : "warn";
    found.push({ kind, what: `${group.name} is ${word(group.state)}`, why: group.cause });
  }
  if (group.paused) found.push({ kind: "warn", what: `${group.name} is paused`, why: "by an operator's order" });
  for (const rank of group.ranks) {
    if (!rank.ready) found.push({ kind: "bad", what: `${rank.name} is not ready`, why: rank.cause });
    else if (rank.degraded) found.push({ kind: "warn", what: `${rank.name} is degraded`, why: rank.degraded });
  }
  const pages = group.pages;
  if (pages && pages.owned + pages.quarantined > FULL * pages.total) {
    found.push({ kind: "warn", what: `${group.name} is out of pages`, why: "nearly all are in use: requests wait, or make room" });
  }
  return found;
}

function ofEdge(edge) {
  const breaker = edge.breaker ?? "closed";
  if (breaker === "closed") return [];
  const why = `after ${plural(edge.breaker_failures ?? 0, "failure")} in a row; requests take other ways if there are any`;
  return [{ kind: "warn", what: `breaker ${edge.prefill} → ${edge.decode} is ${breaker}`, why }];
}

function ofPages({ held }) {
  const stranded = held.filter((room) => room.stranded);
  if (!stranded.length) return [];
  const pages = stranded.reduce((sum, room) => sum + room.pages, 0);
  const oldest = stranded[0];
  const why = `${plural(pages, "page")}, for ${duration(oldest.age_ms)}; tandem kv release ${oldest.group} ${oldest.peer}`;
  return [{ kind: "bad", what: `${oldest.group} has stranded pages`, why }];
}

// One line for each group that was lost and is back, with all that was said of why: who hears of it first does not know most.
function lately({ losses, groups }) {
  const lost = new Set(groups.filter((group) => group.state === "lost").map((group) => group.name));
  const causes = new Map();
  for (const loss of losses.filter((one) => one.ago_s < LATELY_S && !lost.has(one.group))) {
    const known = causes.get(loss.group) ?? causes.set(loss.group, { ago_s: loss.ago_s, why: new Set() }).get(loss.group);
    known.why.add(loss.cause);
  }
  return [...causes].map(([group, { ago_s, why }]) => ({
    kind: "warn",
    what: `${group} was lost ${ago(ago_s)}`,
    why: [...why].reverse().join("; "),
  }));
}
