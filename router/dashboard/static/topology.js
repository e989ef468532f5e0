// Each group with its ring: which stage is where, how far behind, and why it is not ready.

import { badge } from "./badge.js";
import { empty, h, table } from "./dom.js";
import { ago, count, plural } from "./figures.js";
import { word } from "./words.js";

const OLD_S = 5;
const KINDS = { usable: "good", draining: "warn", forming: "warn", connecting: "warn" };
const COLUMNS = [
  { name: "Rank" },
  { name: "State" },
  { name: "Tick", number: true },
  { name: "Lag", number: true },
  { name: "In flight", number: true, wide: true },
  { name: "Epoch", number: true, wide: true },
  { name: "Engine", wide: true },
  { name: "Address", wide: true },
];

export function topology(now) {
  if (!now.groups.length) return empty("No group has registered yet. A rank registers once its engine has loaded.");
  return h("div", { class: "groups" }, now.groups.map(card));
}

function card(group) {
  const facts = [
    plural(group.size, "stage"),
    plural(group.layers, "layer"),
    plural(group.open, "open request"),
    group.heard_s_ago === undefined ? "not heard yet" : `heard ${ago(group.heard_s_ago)}`,
  ];
  return h(
    "article",
    { class: "group", "data-key": group.name, "data-group": group.name, "aria-label": `${group.role} group ${group.name}` },
    h("h3", {}, group.name, " ", h("span", { class: "role" }, group.role), " ", badge(KINDS[group.state] ?? "bad", word(group.state))),
    h("p", { class: "quiet" }, facts.join(" · ")),
    group.cause ? h("p", { class: "cause" }, group.cause) : null,
    table(`Ranks of ${group.name}`, COLUMNS, group.ranks.flatMap(rows))
  );
}

function rows(rank) {
  const cells = [
    rank.name,
    rank.ready ? badge("good", "ready") : badge("bad", "not ready"),
    rank.tick === -1 ? "none yet" : count(rank.tick),
    rank.lag === undefined ? "–" : rank.lag === 0 ? "0" : `${count(rank.lag)} behind`,
    count(rank.in_flight ?? 0),
    rank.epoch && rank.epoch !== "0" ? h("abbr", { title: `epoch ${rank.epoch}` }, `…${rank.epoch.slice(-5)}`) : "–",
    rank.engine || "–",
    rank.http || "–",
  ];
  const told = remarks(rank);
  const found = [{ key: rank.name, cells }];
  if (told.length) found.push({ key: `${rank.name} says`, says: told.join("; ") });
  return found;
}

function remarks(rank) {
  const told = [];
  if (rank.cause) told.push(rank.cause);
  if (rank.degraded) told.push(`degraded: ${rank.degraded}`);
  if (rank.last_end) told.push(`last epoch ended: ${rank.last_end}`);
  if ((rank.asked_s_ago ?? 0) > OLD_S) told.push(`asked ${ago(rank.asked_s_ago)}`);
  return told;
}
