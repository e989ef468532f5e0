// Pages of ended requests that nobody may use yet.

import { badge, requestButton } from "./badge.js";
import { empty, h, table } from "./dom.js";
import { count, duration, plural } from "./figures.js";

const COLUMNS = [
  { name: "Request" },
  { name: "Group" },
  { name: "For" },
  { name: "Pages", number: true },
  { name: "Age", number: true },
  { name: "State" },
];

export function held(now) {
  if (!now.held.length) return empty("No group holds pages for another one.");
  return [
    h("p", { class: "quiet" }, `${plural(now.held_pages, "page")} in all; tandem kv release GROUP PEER frees them by a fence.`),
    table("Held pages, longest first", COLUMNS, now.held.map(row)),
  ];
}

function row(room) {
  const [id, attempt] = room.room.split(".");
  return {
    key: `${room.group} ${room.room} ${room.peer}`,
    cells: [
      requestButton(id, Number(attempt)),
      room.group,
      room.peer,
      count(room.pages),
      duration(room.age_ms),
      room.stranded ? badge("bad", "stranded") : badge("warn", "held"),
    ],
  };
}
