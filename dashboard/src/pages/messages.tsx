/** Messages of a log, by offset or by time. */
import { useEffect, useState } from "preact/hooks";
import { ApiError, get, messageOf, path } from "../api";
import { overview } from "../live";
import type { Message, MessagesAnswer, OffsetAnswer, StreamDetail } from "../contract";
import { count } from "../format";
import { MessageList } from "../components/messages";
import { useResource } from "../components/resource";
import { Field, Notice, PageHead, Tabs } from "../components/ui";
import { href, replace, route } from "../router";

const PAGE = 50;

export const MESSAGE_TABS = [
  { id: "browse", label: "Browse a log", href: href("messages") },
  { id: "tail", label: "Live tail", href: href("messages", ["tail"]) },
];

interface Found {
  messages: Message[];
  first: number;
  next: number;
  end: number;
}

/** Where to begin: an offset, or the first message from a time on. */
async function startOf(stream: string, shard: number, from: string, time: string): Promise<number> {
  const where = ["v1", "streams", stream, "shards", shard];
  if (from === "time") {
    const at = Date.parse(time);
    if (Number.isNaN(at)) throw new ApiError(0, "say a date and a time");
    return (await get<OffsetAnswer>(path([...where, "offset"], { time_us: at * 1000 }))).offset;
  }
  const ends = await get<OffsetAnswer>(path([...where, "offset"], { time_us: 0 }));
  if (from === "earliest") return ends.first_offset;
  if (from === "latest") return Math.max(ends.first_offset, ends.next_offset - PAGE);
  if (!/^\d+$/.test(from)) throw new ApiError(0, "say an offset: a whole number");
  return Number(from);
}

async function read(stream: string, shard: number, first: number, filter: string): Promise<Found> {
  const where = path(["v1", "streams", stream, "shards", shard, "messages"], {
    from: first,
    limit: PAGE,
    filter: filter || "#",
  });
  const answer = await get<MessagesAnswer>(where);
  return { messages: answer.messages, first, next: answer.next_offset, end: answer.end_offset };
}

export function MessagesPage() {
  const { query } = route.value;
  const streams = useResource<{ streams: StreamDetail[] }>("/v1/streams").value?.streams ?? [];
  const readable = streams.filter((stream) => stream.shard_list.length > 0);
  const stream = readable.find((one) => one.name === query.stream) ?? readable[0];
  const shards = stream?.shard_list ?? [];
  const shard = shards.find((one) => String(one.shard) === query.shard) ?? shards[0];
  const from = query.from ?? "latest";
  const [found, setFound] = useState<Found | null>(null);
  const [failure, setFailure] = useState("");
  const [round, setRound] = useState(0);

  useEffect(() => {
    if (stream === undefined || shard === undefined) return;
    let isCurrent = true;
    const load = async () => {
      try {
        const first = await startOf(stream.name, shard.shard, from, query.time ?? "");
        const fresh = await read(stream.name, shard.shard, first, query.filter ?? "");
        if (isCurrent) {
          setFound(fresh);
          setFailure("");
        }
      } catch (error) {
        if (isCurrent) setFailure(messageOf(error));
      }
    };
    void load();
    return () => {
      isCurrent = false;
    };
  }, [stream?.name, shard?.shard, from, query.time, query.filter, round]);

  const set = (changes: Record<string, string | number | undefined>) =>
    replace(href("messages", [], { ...query, stream: stream?.name, shard: shard?.shard, ...changes }));

  return (
    <>
      <PageHead title="Messages" note="What is stored, by offset or by time, at the node that answers." />
      <Tabs label="Messages" tabs={MESSAGE_TABS} current="browse" />
      <Choice
        streams={readable}
        stream={stream}
        shard={shard?.shard}
        set={set}
        again={() => setRound(round + 1)}
      />
      {failure !== "" && <Notice tone="bad">{failure}</Notice>}
      {found !== null && failure === "" && (
        <section class="panel" aria-label="Messages found">
          <div class="panel-head">
            <p class="note" role="status">
              {found.messages.length === 0
                ? `Nothing from offset ${count(found.first)} on. The next offset is ${count(found.end)}.`
                : `Offsets ${count(found.messages[0]?.offset ?? 0)} to ${count(found.messages.at(-1)?.offset ?? 0)} of ${count(found.end)}`}
            </p>
            <div class="actions">
              <button
                type="button"
                disabled={found.first === 0}
                onClick={() => set({ from: Math.max(0, found.first - PAGE) })}
              >
                Older
              </button>
              <button
                type="button"
                disabled={found.next >= found.end}
                onClick={() => set({ from: found.next })}
              >
                Newer
              </button>
            </div>
          </div>
          <MessageList messages={found.messages} label="Messages" />
        </section>
      )}
      {overview.value !== null && streams.length > 0 && readable.length === 0 && (
        <p class="empty">No stream stores messages here.</p>
      )}
    </>
  );
}

function Choice(props: {
  streams: readonly StreamDetail[];
  stream: StreamDetail | undefined;
  shard: number | undefined;
  set: (changes: Record<string, string | number | undefined>) => void;
  again: () => void;
}) {
  const { query } = route.value;
  const { stream, set } = props;
  const from = query.from ?? "latest";
  const kind = /^\d+$/.test(from) ? "offset" : from;
  const [offset, setOffset] = useState("0");
  const [filter, setFilter] = useState(query.filter ?? "");
  return (
    <form
      class="toolbar"
      onSubmit={(event) => {
        event.preventDefault();
        set({ filter, ...(kind === "offset" ? { from: offset } : {}) });
        props.again();
      }}
    >
      <Field label="Stream">
        {(id) => (
          <select
            id={id}
            value={stream?.name}
            onChange={(event) => set({ stream: event.currentTarget.value, shard: undefined })}
          >
            {props.streams.map((one) => (
              <option key={one.name}>{one.name}</option>
            ))}
          </select>
        )}
      </Field>
      <Field label={stream?.replication === "leaderless" ? "Log" : "Shard"}>
        {(id) => (
          <select id={id} value={props.shard} onChange={(event) => set({ shard: event.currentTarget.value })}>
            {stream?.shard_list.map((one) => (
              <option key={one.shard} value={one.shard}>
                {one.origin === undefined ? one.shard : `${one.origin} (${one.shard})`}
              </option>
            ))}
          </select>
        )}
      </Field>
      <Field label="From">
        {(id) => (
          <select
            id={id}
            value={kind}
            onChange={(event) =>
              set({ from: event.currentTarget.value === "offset" ? offset : event.currentTarget.value })
            }
          >
            <option value="latest">the newest</option>
            <option value="earliest">the oldest</option>
            <option value="offset">an offset</option>
            <option value="time">a time</option>
          </select>
        )}
      </Field>
      {kind === "offset" && (
        <Field label="Offset">
          {(id) => (
            <input
              id={id}
              type="number"
              min="0"
              value={from}
              onInput={(event) => setOffset(event.currentTarget.value)}
              onChange={(event) => set({ from: event.currentTarget.value })}
            />
          )}
        </Field>
      )}
      {kind === "time" && (
        <Field label="Time">
          {(id) => (
            <input
              id={id}
              type="datetime-local"
              step="1"
              value={query.time ?? ""}
              onChange={(event) => set({ time: event.currentTarget.value })}
            />
          )}
        </Field>
      )}
      <Field label="Topic filter" class="grow">
        {(id) => (
          <input
            id={id}
            type="text"
            value={filter}
            placeholder="#"
            spellcheck={false}
            onInput={(event) => setFilter(event.currentTarget.value)}
          />
        )}
      </Field>
      <button type="submit" class="primary">
        Read
      </button>
    </form>
  );
}
