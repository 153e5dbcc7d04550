/** Numbers, sizes, rates and times as people read them. Everything here is pure. */

const NONE = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

type Maybe = number | null | undefined;

function isMissing(value: Maybe): value is null | undefined {
  return value === null || value === undefined || !Number.isFinite(value);
}

/** A count with thousands separators; a dash where nobody knows. */
export function count(value: Maybe): string {
  return isMissing(value) ? NONE : whole.format(value);
}

/** Bytes in binary units with three digits: 1.46 KiB, 14.6 KiB, 146 KiB. */
export function bytes(value: Maybe): string {
  if (isMissing(value)) return NONE;
  let size = Math.abs(value);
  let unit = 0;
  // What would be rounded to 1,024 of a unit is 1 of the next.
  while (size >= 1023.5 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
  return `${value < 0 ? "-" : ""}${size.toFixed(digits)} ${BYTE_UNITS[unit]}`;
}

/** Something per second: whole numbers from 10 on, one digit below. */
export function rate(value: Maybe): string {
  if (isMissing(value)) return NONE;
  return value >= 10 || value === 0 ? whole.format(value) : tenths.format(value);
}

export function perSecond(value: Maybe): string {
  return isMissing(value) ? NONE : `${rate(value)}/s`;
}

export function bytesPerSecond(value: Maybe): string {
  return isMissing(value) ? NONE : `${bytes(value)}/s`;
}

export function percent(value: Maybe): string {
  return isMissing(value) ? NONE : `${value >= 10 ? whole.format(value) : tenths.format(value)} %`;
}

export function milliseconds(value: Maybe): string {
  if (isMissing(value)) return NONE;
  return `${value >= 100 ? whole.format(value) : value >= 1 || value === 0 ? tenths.format(value) : value.toFixed(2)} ms`;
}

/** A length of time with its two largest units: 3 d 4 h, 12 min 5 s, 8 s. */
export function duration(seconds: Maybe): string {
  if (isMissing(seconds)) return NONE;
  const all = Math.max(0, Math.floor(seconds));
  const parts: [number, string][] = [
    [Math.floor(all / 86400), "d"],
    [Math.floor(all / 3600) % 24, "h"],
    [Math.floor(all / 60) % 60, "min"],
    [all % 60, "s"],
  ];
  const first = parts.findIndex(([value]) => value > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(" ");
}

/** How long a stream keeps things: 0 is without this bound. */
export function retention(ageSeconds: number, sizeBytes: number): string {
  const parts = [
    ageSeconds > 0 ? duration(ageSeconds) : "",
    sizeBytes > 0 ? `${bytes(sizeBytes)} a shard` : "",
  ].filter((part) => part !== "");
  return parts.length > 0 ? parts.join(", ") : "for ever";
}

function two(value: number): string {
  return String(value).padStart(2, "0");
}

/** The time of day, in the time zone of whoever looks. */
export function clock(timeUs: number): string {
  const at = new Date(timeUs / 1000);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Date and time of day with milliseconds. */
export function dateTime(timeUs: number): string {
  const at = new Date(timeUs / 1000);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${clock(timeUs)}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

export function ago(timeUs: number, nowUs: number): string {
  const seconds = (nowUs - timeUs) / 1e6;
  return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

/** Whether a reader is so far behind that it is worth a look: a few messages are always on their way. */
export function isFar(lag: Maybe): boolean {
  return !isMissing(lag) && lag >= 1000;
}

/** "1 node", "2 nodes". */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
