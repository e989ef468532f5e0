// Numbers as people read them.

const SIZES = ["B", "kB", "MB", "GB", "TB"];

export function bytes(count) {
  let at = 0;
  while (Math.abs(count) >= 1000 && at < SIZES.length - 1) {
    count /= 1000;
    at += 1;
  }
  return `${digits(count)} ${SIZES[at]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms === 0) return "0 ms";
  const size = Math.abs(ms);
  if (size < 1) return `${ms.toFixed(2)} ms`;
  if (size < 1000) return `${digits(ms)} ms`;
  if (size < 60_000) return `${digits(ms / 1000)} s`;
  if (size < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.floor((ms % 3_600_000) / 60_000)} min`;
}

export function ago(seconds) {
  if (seconds === null || seconds === undefined) return "never";
  return seconds < 1 ? "just now" : `${duration(Math.round(seconds) * 1000)} ago`;
}

export function count(number) {
  return number === null || number === undefined ? "–" : number.toLocaleString("en");
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)}%` : "0%";
}

function digits(number) {
  const size = Math.abs(number);
  return size >= 100 || Number.isInteger(number) ? number.toFixed(0) : size >= 10 ? number.toFixed(1) : number.toFixed(2);
}
