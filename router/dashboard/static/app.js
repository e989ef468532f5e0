// The page: what the stream says goes to the panels, and what people do goes to the router.

import { h, show } from "./dom.js";
import { Charts } from "./charts.js";
import { edges } from "./edges.js";
import { bytes, count, duration, plural } from "./figures.js";
import { held } from "./held.js";
import { canBeKey, keep, key } from "./key.js";
import { firstTokens, phases } from "./latency.js";
import { pages } from "./pages.js";
import { problems, worst } from "./problems.js";
import { queues } from "./queues.js";
import { RequestDialog } from "./request.js";
import { losses, slow } from "./slow.js";
import { Stream } from "./stream.js";
import { topology } from "./topology.js";
import { transfers } from "./transfers.js";

const PANELS = { problems, figures, topology, transfers, edges, pages, first: firstTokens, phases, queues, held, slow, losses };
const MARKS = { good: "●", warn: "▲", bad: "✕" };
const OLD_MS = 3000;

const $ = (id) => document.getElementById(id);
const charts = new Charts($("charts"));
const dialog = new RequestDialog($("request"), $("request-title"), $("request-body"), () => {
  if (location.hash.startsWith("#request=")) history.replaceState(null, "", location.pathname + location.search);
});

let heardAt = 0; // by this browser's clock, so that no other clock matters
let retryAt = 0;
let lostWhy = "";

const stream = new Stream("dashboard/events", {
  connecting() {
    if (!heardAt) state("loading", "Connecting");
  },
  snapshot(now) {
    heardAt = Date.now();
    lostWhy = "";
    state("live", "Live");
    draw(now);
    tick();
  },
  lost(why, at) {
    lostWhy = why;
    retryAt = at;
    state(heardAt ? "stale" : "error", heardAt ? "Stale" : "No connection");
    tick();
  },
  refused(status) {
    const known = key();
    keep("");
    state("sign-in", "Signed out");
    $("sign-in-text").textContent = !known
      ? "The admin port asks for an operator's key."
      : status === 403
        ? "This key is known, but it is not an operator's."
        : "This key is not known to the router.";
    $("key").focus();
  },
});

function state(name, text) {
  document.body.dataset.state = name;
  const shown = { main: name === "live" || name === "stale", loading: name === "loading", "sign-in": name === "sign-in", stale: name === "stale" || name === "error" };
  for (const [id, visible] of Object.entries(shown)) $(id).hidden = !visible;
  $("sign-out").hidden = !key() || name === "sign-in";
  $("freshness").dataset.state = name;
  if ($("freshness-state").textContent !== text) $("freshness-state").textContent = text;
}

// Once a second: how old what is on the page is.
function tick() {
  const name = document.body.dataset.state;
  const age = Date.now() - heardAt;
  if (name === "live" && age > OLD_MS) {
    lostWhy = lostWhy || "the router says nothing";
    state("stale", "Stale");
  }
  const aged = heardAt && name !== "sign-in" ? `${Math.round(age / 1000)} s old` : "";
  $("freshness-age").textContent = name === "live" && age < OLD_MS ? "" : aged;
  $("freshness-mark").textContent = { live: "●", stale: "▲", error: "✕" }[document.body.dataset.state] ?? "○";
  $("h-problems").textContent = document.body.dataset.state === "live" ? "Now" : `${plural(Math.round(age / 1000), "second")} ago`;
  if ($("stale").hidden) return;
  const left = Math.max(0, Math.ceil((retryAt - Date.now()) / 1000));
  const what = heardAt ? `What you see is ${plural(Math.round(age / 1000), "second")} old` : "The router's figures cannot be read";
  $("stale-text").textContent = `${what}: ${lostWhy}. ${left ? `Trying again in ${plural(left, "second")}.` : "Trying again now."}`;
}

function draw(now) {
  for (const [id, panel] of Object.entries(PANELS)) show($(id), panel(now));
  charts.add(now);
  $("about").textContent = `${now.model} · ${now.version}`;
  document.title = `${MARKS[worst(now)]} ${now.model} · Tandem`;
}

function figures(now) {
  const { router, first_tokens: first } = now;
  const moved = now.edges.reduce((sum, edge) => sum + (edge.bytes_per_s ?? 0), 0);
  const facts = [
    ["Open requests", count(router.open)],
    ["In the queue", count(router.queued)],
    ["Requests/s", router.requests_per_s.toFixed(1)],
    ["First token, p50", first.count ? duration(first.p50_ms) : "–"],
    ["First token, p95", first.count ? duration(first.p95_ms) : "–"],
    ["KV moved", `${bytes(moved)}/s`],
    ["Held pages", count(now.held_pages)],
    ["Migrated", count(router.migrated)],
  ];
  return h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function openHash() {
  const [name, id] = location.hash.slice(1).split("=");
  if (name === "request" && id) dialog.open(decoded(id));
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-request]");
  if (!button) return;
  history.replaceState(null, "", `#request=${encodeURIComponent(button.dataset.request)}`);
  dialog.open(button.dataset.request);
});
$("find").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("find-id").value.trim();
  if (!id) return;
  history.replaceState(null, "", `#request=${encodeURIComponent(id)}`);
  dialog.open(id);
});
$("request-close").addEventListener("click", () => $("request").close());
$("retry").addEventListener("click", () => stream.hurry());
$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = $("key").value.trim();
  $("key").value = "";
  if (!canBeKey(given)) {
    $("sign-in-text").textContent = "A key has letters, digits and signs only, and no spaces.";
    return;
  }
  keep(given);
  state("loading", "Connecting");
  stream.start();
});
$("sign-out").addEventListener("click", () => {
  keep("");
  location.reload();
});
addEventListener("online", () => stream.hurry());
addEventListener("hashchange", openHash);
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && document.body.dataset.state === "stale") stream.hurry();
});
setInterval(tick, 1000);
stream.start();
openHash();
