// The stream of snapshots. EventSource cannot send a key, so events are read out of a fetch.

import { headers } from "./key.js";

const WAITS_MS = [1000, 2000, 4000, 8000, 15000];
const SILENT_MS = 6000; // a snapshot comes every second: one that does not answer has to be asked anew

// `on` hears: connecting(), snapshot(object), lost(why, retryAt), refused(status).
export class Stream {
  constructor(url, on) {
    this.url = url;
    this.on = on;
    this.failures = 0;
    this.abort = null;
    this.timer = 0;
    this.running = false;
  }

  start() {
    this.stop();
    this.running = true;
    this.run(new AbortController());
  }

  stop() {
    this.running = false;
    clearTimeout(this.timer);
    this.abort?.abort();
  }

  // Do not wait any longer.
  hurry() {
    if (this.running) this.start();
  }

  async run(abort) {
    this.abort = abort;
    this.on.connecting();
    let why = "the router closed the stream";
    try {
      const answer = await this.within(abort, fetch(this.url, { headers: headers(), signal: abort.signal, cache: "no-store" }));
      if (answer.status === 401 || answer.status === 403) {
        this.running = false;
        this.on.refused(answer.status);
        return;
      }
      if (!answer.ok) throw new Error(`the router answers with status ${answer.status}: ${await messageOf(answer)}`);
      await this.read(abort, answer.body.pipeThrough(new TextDecoderStream()).getReader());
    } catch (error) {
      if (this.abort !== abort || !this.running) return; // stopped, or begun anew
      why = abort.signal.aborted ? `nothing was heard for ${SILENT_MS / 1000} s` : reason(error);
    }
    if (this.abort !== abort || !this.running) return;
    const wait = WAITS_MS[Math.min(this.failures, WAITS_MS.length - 1)];
    this.failures += 1;
    this.on.lost(why, Date.now() + wait);
    this.timer = setTimeout(() => this.run(new AbortController()), wait);
  }

  async read(abort, reader) {
    let text = "";
    for (;;) {
      const { done, value } = await this.within(abort, reader.read());
      if (done) return;
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data: "));
        if (!data.length) continue;
        this.on.snapshot(JSON.parse(data.map((line) => line.slice(6)).join("\n")));
        this.failures = 0;
      }
    }
  }

  async within(abort, promise) {
    const timer = setTimeout(() => abort.abort(), SILENT_MS);
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
    }
  }
}

export async function messageOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return answer.statusText;
  }
}

function reason(error) {
  return error instanceof TypeError ? "the router cannot be reached" : error.message;
}
