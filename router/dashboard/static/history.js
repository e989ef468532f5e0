// The last minutes of what the charts show: kept by the page, as the router keeps none.

const MOST = 300;
const GAP_S = 5;

export class History {
  constructor(names) {
    this.names = names;
    this.times = [];
    this.values = names.map(() => []);
  }

  add(atSeconds, figures) {
    const last = this.times.at(-1);
    if (last !== undefined && atSeconds - last > GAP_S) this.push(last + 1, this.names.map(() => null)); // the line breaks
    this.push(atSeconds, this.names.map((name) => figures[name]));
  }

  push(at, figures) {
    this.times.push(at);
    figures.forEach((figure, number) => this.values[number].push(figure));
    if (this.times.length > MOST) {
      this.times.shift();
      for (const series of this.values) series.shift();
    }
  }

  of(names) {
    return [this.times, ...names.map((name) => this.values[this.names.indexOf(name)])];
  }
}
