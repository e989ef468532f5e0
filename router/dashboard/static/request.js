// One request's timeline, drawn as a waterfall.

import { badge } from "./badge.js";
import { h, show } from "./dom.js";
import { count, duration } from "./figures.js";
import { headers } from "./key.js";
import { messageOf } from "./stream.js";
import { outcome } from "./words.js";

const AGAIN_MS = 2000;
const SAID = {
  wait: "waits",
  run: "computes",
  queue: "KV: queue",
  post: "KV: post",
  wire: "KV: wire",
  commit: "KV: commit",
  landed: "KV: landed",
  moment: "happens",
  fault: "fails",
};

export class RequestDialog {
  constructor(dialog, title, body, onClosed) {
    this.dialog = dialog;
    this.title = title;
    this.body = body;
    this.id = "";
    this.timer = 0;
    dialog.addEventListener("close", () => {
      this.id = "";
      clearTimeout(this.timer);
      onClosed();
    });
  }

  open(id) {
    this.id = id;
    this.title.textContent = `Request ${id}`;
    show(this.body, h("p", { class: "note", role: "status" }, "Asking the ranks that worked on it…"));
    if (!this.dialog.open) this.dialog.showModal();
    this.load(id);
  }

  async load(id) {
    clearTimeout(this.timer);
    let drawn;
    try {
      const answer = await fetch(`dashboard/requests/${encodeURIComponent(id)}`, { headers: headers(), cache: "no-store" });
      if (!answer.ok) throw new Error(await messageOf(answer));
      drawn = await answer.json();
    } catch (error) {
      if (this.id !== id) return;
      const why = error instanceof TypeError ? "The router cannot be reached." : error.message;
      show(this.body, h("p", { class: "error", role: "alert" }, badge("bad", "No timeline"), " ", h("span", {}, why)), retry(id));
      return;
    }
    if (this.id !== id) return;
    show(this.body, ...picture(drawn));
    if (drawn.drawings.some(goesOn)) this.timer = setTimeout(() => this.load(id), AGAIN_MS);
  }
}

function retry(id) {
  return h("p", {}, h("button", { type: "button", "data-request": id }, "Ask again"));
}

function goesOn(drawing) {
  return !["ended", "gone", "evicted", "failed"].includes(drawing.state);
}

export function picture(drawn) {
  const silent = Object.entries(drawn.silent);
  return [
    drawn.waited_ms ? h("p", {}, `It waited ${duration(drawn.waited_ms)} in the router's queue first.`) : null,
    silent.length
      ? h("div", { class: "missing" }, badge("warn", "Not all ranks have answered"), h("ul", {}, silent.map(([name, why]) => h("li", {}, `${name}: ${why}`))))
      : null,
    h("ul", { class: "legend" }, Object.entries(SAID).map(([kind, text]) => h("li", {}, h("i", { class: `swatch bar-${kind}`, "aria-hidden": "true" }), text))),
    ...drawn.drawings.map((drawing) => attempt(drawing, drawn.drawings.length)),
  ];
}

function attempt(drawing, all) {
  const facts = [
    Object.values(drawing.groups).join(" → "),
    `${count(drawing.prompt_tokens)} prompt tokens`,
    drawing.tokens === null ? null : `${count(drawing.tokens)} generated`,
    `began ${new Date(drawing.began_us / 1000).toLocaleTimeString()}`,
  ];
  return h(
    "section",
    { class: "attempt", "data-key": String(drawing.attempt) },
    h("h3", {}, all > 1 ? `Attempt ${drawing.attempt} ` : "", badge(drawing.reason ? "idle" : "good", outcome(drawing))),
    h("p", { class: "quiet" }, facts.filter(Boolean).join(" · ")),
    drawing.dropped ? h("p", { class: "quiet" }, `${count(drawing.dropped)} entries in the middle are not kept.`) : null,
    h("div", { class: "axis", "aria-hidden": "true" }, [drawing.from_us, (drawing.from_us + drawing.to_us) / 2, drawing.to_us].map((at) => h("span", {}, duration(at / 1000)))),
    h("ol", { class: "waterfall" }, drawing.rows.map((row, at) => line(row, drawing, at)))
  );
}

function line(row, { from_us: from, to_us: to }, at) {
  const whole = to - from;
  const bars = row.bars
    .filter((bar) => bar.to_us >= from && bar.from_us <= to)
    .map((bar) => {
      const left = (100 * (Math.max(bar.from_us, from) - from)) / whole;
      const width = (100 * (Math.min(bar.to_us, to) - Math.max(bar.from_us, from))) / whole;
      return h("i", { class: `bar bar-${bar.kind}`, style: { left: `min(${left}%, 100% - 6px)`, width: `${width}%` } });
    });
  const late = row.bars.length > 0 && bars.length === 0;
  return h(
    "li",
    { "data-key": `${at} ${row.label}` },
    h("span", { class: row.label.startsWith(" ") ? "label inner" : "label" }, row.label.trim()),
    h("span", { class: "track", "aria-hidden": "true" }, bars, late ? h("span", { class: "later" }, "later →") : null),
    h("span", { class: "figure" }, row.note)
  );
}
