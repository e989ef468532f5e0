// Who waits where.

import { h, table } from "./dom.js";
import { count, percent } from "./figures.js";

const COLUMNS = [
  { name: "Where" },
  { name: "Waiting", number: true },
  { name: "Running", number: true },
  { name: "From here", number: true },
];

export function queues({ router, groups }) {
  const rows = groups.map((group) => ({
    key: group.name,
    cells: [`${group.name} (${group.role})`, count(group.waiting), count(group.running), count(group.open)],
  }));
  rows.unshift({ key: "router", cells: [h("b", {}, "router"), count(router.queued), count(router.open), "–"] });
  return [
    table("Queue depths", COLUMNS, rows),
    h("p", { class: "quiet" }, `The router's queue is ${percent(router.queued, router.queue_size)} full: ${count(router.queued)} of ${count(router.queue_size)}.`),
  ];
}
