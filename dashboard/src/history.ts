/** The last few minutes of every figure, kept in the browser for small charts. */

export interface Series {
  times: number[];
  values: number[];
}

const EMPTY: Series = { times: [], values: [] };

/**
 * Series by name. A name that got no value in a round of samples is forgotten after as long as a series
 * lasts, so that streams and nodes that come and go do not fill the memory.
 */
export class History {
  readonly #series = new Map<string, Series>();

  constructor(
    private readonly samplesMax = 300,
    private readonly namesMax = 2000,
  ) {}

  add(name: string, timeSeconds: number, value: number): void {
    let series = this.#series.get(name);
    if (series === undefined) {
      if (this.#series.size >= this.namesMax) return;
      series = { times: [], values: [] };
      this.#series.set(name, series);
    }
    const last = series.times.at(-1);
    if (last !== undefined && timeSeconds <= last) return;
    series.times.push(timeSeconds);
    series.values.push(value);
    if (series.times.length > this.samplesMax) {
      series.times.shift();
      series.values.shift();
    }
  }

  get(name: string): Series {
    return this.#series.get(name) ?? EMPTY;
  }

  /** Forget what has had no value for `seconds`. */
  prune(nowSeconds: number, seconds: number): void {
    for (const [name, series] of this.#series) {
      if ((series.times.at(-1) ?? 0) < nowSeconds - seconds) this.#series.delete(name);
    }
  }

  get size(): number {
    return this.#series.size;
  }
}

/** The points of a small line chart as an SVG path; empty for fewer than two samples. */
export function sparklinePath(values: readonly number[], width: number, height: number): string {
  if (values.length < 2) return "";
  const top = Math.max(...values, 0);
  const bottom = Math.min(...values, 0);
  const range = top - bottom || 1;
  const step = width / (values.length - 1);
  return values
    .map((value, index) => {
      const x = (index * step).toFixed(1);
      const y = (height - 1 - ((value - bottom) / range) * (height - 2)).toFixed(1);
      return `${index === 0 ? "M" : "L"}${x} ${y}`;
    })
    .join("");
}
