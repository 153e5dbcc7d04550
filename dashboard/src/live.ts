/**
 * The live stream of the node: an overview once a second, and events as they happen.
 *
 * A stream that breaks, or that is silent for too long, is opened again after a growing pause. Meanwhile the
 * overview is asked for, because a proxy may let requests pass and streams not.
 */
import { signal } from "@preact/signals";
import { get, identify, me, messageOf } from "./api";
import type { ClusterEvent, Overview } from "./contract";
import { History } from "./history";

export type Connection = "connecting" | "live" | "polling" | "broken";

const SILENT_MS_MAX = 4000;
const RETRY_MS = [300, 700, 1500, 3000];
const POLL_MS = 2000;
const EVENTS_MAX = 500;
const EVENTS_EVERY_MS = 500;

export const overview = signal<Overview | null>(null);
export const connection = signal<Connection>("connecting");
/** Why the stream is broken, for the banner. */
export const trouble = signal("");
/** When the last overview came, by the clock of this browser. */
export const updatedMs = signal(0);
/** Newest first. */
export const events = signal<readonly ClusterEvent[]>([]);
export const figures = new History();

let source: EventSource | null = null;
let failures = 0;
let retry: ReturnType<typeof setTimeout> | undefined;
let silence: ReturnType<typeof setTimeout> | undefined;
let poll: ReturnType<typeof setInterval> | undefined;

export function take(fresh: Overview): void {
  const seconds = fresh.time_us / 1e6;
  const totals = fresh.totals;
  figures.add("total/in", seconds, totals.in_messages_s);
  figures.add("total/out", seconds, totals.out_messages_s);
  figures.add("total/in_bytes", seconds, totals.in_bytes_s);
  figures.add("total/out_bytes", seconds, totals.out_bytes_s);
  figures.add("total/clients", seconds, totals.clients);
  for (const node of fresh.nodes) {
    if (node.figures === null) continue;
    figures.add(`node/${node.node}/cpu`, seconds, node.figures.cpu_percent);
    figures.add(`node/${node.node}/memory`, seconds, node.figures.memory_bytes);
    figures.add(`node/${node.node}/in`, seconds, node.figures.in_messages_s);
    figures.add(`node/${node.node}/out`, seconds, node.figures.out_messages_s);
  }
  for (const stream of fresh.streams) figures.add(`stream/${stream.name}/in`, seconds, stream.in_messages_s);
  figures.prune(seconds, 600);
  updatedMs.value = Date.now();
  overview.value = fresh;
}

let arrived: ClusterEvent[] = [];

/** Events may come by the hundred a second: they are shown together, a few times a second. */
export function takeEvent(fresh: ClusterEvent): void {
  arrived.push(fresh);
  if (arrived.length > 1) return;
  setTimeout(() => {
    const known = new Set(events.value.map((event) => event.id));
    const news = arrived.reverse().filter((event) => !known.has(event.id));
    arrived = [];
    events.value = [...news, ...events.value].slice(0, EVENTS_MAX);
  }, EVENTS_EVERY_MS);
}

function watchSilence(): void {
  clearTimeout(silence);
  silence = setTimeout(() => broken("the node is silent"), SILENT_MS_MAX);
}

function opened(): void {
  failures = 0;
  trouble.value = "";
  connection.value = "live";
  clearInterval(poll);
  poll = undefined;
}

function broken(why: string): void {
  source?.close();
  source = null;
  clearTimeout(silence);
  trouble.value = why;
  if (connection.value !== "polling") connection.value = "broken";
  clearTimeout(retry);
  retry = setTimeout(open, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]);
  failures += 1;
  poll ??= setInterval(() => void ask(), POLL_MS);
}

async function ask(): Promise<void> {
  try {
    await identify();
    if (me.value?.login_needed) {
      stop();
      return;
    }
    take(await get<Overview>("/v1/overview"));
    if (connection.value !== "live") connection.value = "polling";
  } catch (error) {
    if (connection.value !== "live") {
      connection.value = "broken";
      trouble.value = messageOf(error);
    }
  }
}

function open(): void {
  clearTimeout(retry);
  source?.close();
  const fresh = new EventSource("/v1/live");
  source = fresh;
  watchSilence();
  fresh.addEventListener("overview", (message: MessageEvent<string>) => {
    opened();
    watchSilence();
    take(JSON.parse(message.data) as Overview);
  });
  fresh.addEventListener("event", (message: MessageEvent<string>) => {
    takeEvent(JSON.parse(message.data) as ClusterEvent);
  });
  fresh.addEventListener("error", () => {
    if (source === fresh) broken("the live stream was interrupted");
  });
}

/** Begins; calling it again does nothing while it runs. */
export function start(): void {
  if (source === null && retry === undefined) open();
}

export function stop(): void {
  source?.close();
  source = null;
  clearTimeout(retry);
  clearTimeout(silence);
  clearInterval(poll);
  retry = poll = silence = undefined;
  connection.value = "connecting";
}
