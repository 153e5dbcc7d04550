/** What happened in the cluster, on one timeline, newest first. */
import { useState } from "preact/hooks";
import { get, messageOf, path } from "../api";
import { events, overview } from "../live";
import { EVENT_KINDS, type ClusterEvent, type Page } from "../contract";
import { clock, plural } from "../format";
import { useResource } from "../components/resource";
import { Badge, Field, Missing, NodeLink, Notice, PageHead } from "../components/ui";
import { href, replace, route } from "../router";

const PAGE = 100;
/** More than that nobody reads, and a browser should not draw: filters find what is older. */
const ROWS_MAX = 200;
/** Clients come and go all the time, and hide what else happens. */
const BUT_CLIENTS = "all but client";
const SEVERITIES = ["info", "warning", "error"];

/** Fresh and stored events without repeats, newest first, as the filters want them. */
export function merged(
  lists: readonly (readonly ClusterEvent[])[],
  want: Record<string, string>,
): ClusterEvent[] {
  const known = new Map<string, ClusterEvent>();
  for (const event of lists.flat()) known.set(event.id, event);
  const from = SEVERITIES.indexOf(want.severity ?? "info");
  return [...known.values()]
    .filter(
      (event) =>
        !want.kind || (want.kind === BUT_CLIENTS ? event.kind !== "client" : event.kind === want.kind),
    )
    .filter((event) => !want.node || event.node === want.node)
    .filter((event) => SEVERITIES.indexOf(event.severity) >= from)
    .sort((one, other) => other.time_us - one.time_us);
}

/** What the node can filter by itself. */
function kindOf(query: Record<string, string>): string | undefined {
  return query.kind === BUT_CLIENTS ? undefined : query.kind;
}

export function EventsPage() {
  const { query } = route.value;
  const where = path(["v1", "events"], { limit: PAGE, kind: kindOf(query), node: query.node });
  const stored = useResource<Page<ClusterEvent>>(where);
  const [older, setOlder] = useState<{ where: string; items: ClusterEvent[]; next: string | null } | null>(
    null,
  );
  const [failure, setFailure] = useState("");
  const more = older?.where === where ? older : null;
  const next = more !== null ? more.next : (stored.value?.next ?? null);
  const rows = merged([stored.value?.items ?? [], more?.items ?? [], events.value], query);
  const set = (changes: Record<string, string>) => replace(href("events", [], { ...query, ...changes }));
  const load = async () => {
    try {
      const page = await get<Page<ClusterEvent>>(
        path(["v1", "events"], {
          limit: PAGE,
          kind: kindOf(query),
          node: query.node,
          cursor: next ?? undefined,
        }),
      );
      setOlder({ where, items: [...(more?.items ?? []), ...page.items], next: page.next });
      setFailure("");
    } catch (error) {
      setFailure(messageOf(error));
    }
  };
  return (
    <>
      <PageHead title="Events" note="Elections, joins, faults and refusals of all nodes on one timeline." />
      <form class="toolbar" onSubmit={(event) => event.preventDefault()}>
        <Choice
          label="Kind"
          value={query.kind ?? ""}
          options={[BUT_CLIENTS, ...EVENT_KINDS]}
          set={(kind) => set({ kind })}
        />
        <Choice
          label="Severity"
          value={query.severity ?? ""}
          options={["warning", "error"]}
          all="all"
          set={(severity) => set({ severity })}
          suffix=" or worse"
        />
        <Choice
          label="Node"
          value={query.node ?? ""}
          options={overview.value?.nodes.map((node) => node.node) ?? []}
          set={(node) => set({ node })}
        />
        <p class="note" role="status">
          {plural(rows.length, "event")}
        </p>
      </form>
      {(stored.error || failure) !== "" && <Notice tone="bad">{stored.error || failure}</Notice>}
      <Missing nodes={stored.value?.missing ?? []} />
      {rows.length === 0 ? (
        <p class="empty">Nothing happened that fits.</p>
      ) : (
        <Timeline rows={rows.slice(0, ROWS_MAX)} />
      )}
      {next !== null && (
        <button type="button" onClick={() => void load()}>
          Older events
        </button>
      )}
    </>
  );
}

function Choice(props: {
  label: string;
  value: string;
  options: readonly string[];
  all?: string;
  suffix?: string;
  set: (value: string) => void;
}) {
  return (
    <Field label={props.label}>
      {(id) => (
        <select id={id} value={props.value} onChange={(event) => props.set(event.currentTarget.value)}>
          <option value="">{props.all ?? "all"}</option>
          {props.options.map((option) => (
            <option key={option} value={option}>
              {option}
              {option === "error" ? "" : (props.suffix ?? "")}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}

function dayOf(timeUs: number): string {
  return new Date(timeUs / 1000).toLocaleDateString("en-GB", {
    weekday: "long",
    day: "numeric",
    month: "long",
    year: "numeric",
  });
}

function Timeline({ rows }: { rows: readonly ClusterEvent[] }) {
  const days: [string, ClusterEvent[]][] = [];
  for (const row of rows) {
    const day = dayOf(row.time_us);
    const last = days.at(-1);
    if (last?.[0] === day) last[1].push(row);
    else days.push([day, [row]]);
  }
  return (
    <>
      {days.map(([day, list]) => (
        <section key={day} class="panel" aria-label={day}>
          <h2 class="day">{day}</h2>
          <ol class="timeline">
            {list.map((event) => (
              <li key={event.id} class={`event event-${event.severity}`}>
                <time dateTime={new Date(event.time_us / 1000).toISOString()}>{clock(event.time_us)}</time>
                <span class="event-mark" aria-hidden="true" />
                <div>
                  <p>
                    {event.severity !== "info" && (
                      <strong class={`severity-${event.severity}`}>
                        {event.severity === "error" ? "Error: " : "Warning: "}
                      </strong>
                    )}
                    {event.text}
                  </p>
                  <p class="event-facts">
                    <Badge tone="neutral">{event.kind}</Badge> <NodeLink node={event.node} />
                    {Object.entries(event.fields).map(([name, value]) => (
                      <span key={name} class="event-field">
                        {name} <b>{String(value)}</b>
                      </span>
                    ))}
                  </p>
                </div>
              </li>
            ))}
          </ol>
        </section>
      ))}
    </>
  );
}
