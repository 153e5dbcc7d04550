/** One client, or one durable session, with its subscriptions. */
import { mayOperate, path } from "../api";
import type { ClientDetail, SessionDetail, Subscription } from "../contract";
import { count, dateTime, duration } from "../format";
import { useResource } from "../components/resource";
import {
  Back,
  Badge,
  Code,
  Facts,
  NodeLink,
  Notice,
  PageHead,
  Panel,
  State,
  Table,
  type Column,
} from "../components/ui";
import { go, href } from "../router";
import { askDelete, askDisconnect, expiry } from "./clients";

const SUBSCRIPTION_COLUMNS: Column<Subscription>[] = [
  { name: "Filter", show: (row) => <Code>{row.filter}</Code> },
  { name: "QoS", number: true, show: (row) => row.qos },
  { name: "Group", show: (row) => (row.group === null ? <span class="quiet">none</span> : row.group) },
  {
    name: "Options",
    wide: true,
    show: (row) => (
      <span class="filters">
        {row.no_local && <Badge tone="neutral">no local</Badge>}
        {row.retain_as_published && <Badge tone="neutral">retain as published</Badge>}
        {row.retain_handling > 0 && (
          <Badge tone="neutral">{row.retain_handling === 1 ? "retained once" : "no retained"}</Badge>
        )}
      </span>
    ),
  },
  { name: "Identifier", number: true, show: (row) => count(row.identifier) },
];

function Subscriptions({ rows }: { rows: readonly Subscription[] }) {
  return (
    <Panel title="Subscriptions">
      <Table
        label="Subscriptions"
        columns={SUBSCRIPTION_COLUMNS}
        rows={rows}
        keyOf={(row) => `${row.group ?? ""}/${row.filter}`}
        empty="It subscribes to nothing."
      />
    </Panel>
  );
}

export function ClientPage({ id }: { id: string }) {
  const found = useResource<ClientDetail>(path(["v1", "clients", id]), 2000);
  const client = found.value;
  return (
    <>
      <Back page="clients">Clients</Back>
      <PageHead
        title={<span class="id">{id}</span>}
        note={
          client !== null && (
            <State tone={found.error === "" ? "good" : "neutral"}>
              {found.error === "" ? "connected" : "gone"}
            </State>
          )
        }
        actions={
          mayOperate() && (
            <button
              type="button"
              class="danger-quiet"
              disabled={client === null}
              onClick={() => askDisconnect(id, () => go(href("clients")))}
            >
              Disconnect…
            </button>
          )
        }
      />
      {found.error !== "" && <Notice tone="warning">{found.error}</Notice>}
      {client !== null && (
        <>
          <Panel title="Connection">
            <Facts
              rows={[
                ["User", client.user ?? "anonymous"],
                ["Node", <NodeLink node={client.node} />],
                ["Address", <Code>{client.address}</Code>],
                ["Protocol", `${client.door}, version ${client.protocol}`],
                ["Connected since", dateTime(client.connected_us)],
                ["Keep alive", client.keep_alive_s === 0 ? "off" : duration(client.keep_alive_s)],
                ["Session", client.is_durable ? <a href={href("sessions", [id])}>durable</a> : "clean"],
                ["Session expiry", expiry(client.session_expiry_s)],
                ["Will", client.will_topic === null ? "none" : <Code>{client.will_topic}</Code>],
                ["In flight", count(client.in_flight)],
                ["Queued", count(client.queued)],
                ["Messages received", count(client.received)],
                ["Messages sent", count(client.sent)],
              ]}
            />
          </Panel>
          <Subscriptions rows={client.filters} />
        </>
      )}
    </>
  );
}

export function SessionPage({ id }: { id: string }) {
  const found = useResource<SessionDetail>(path(["v1", "sessions", id]), 2000);
  const session = found.value;
  return (
    <>
      <Back page="sessions">Sessions</Back>
      <PageHead
        title={<span class="id">{id}</span>}
        note={
          session !== null && (
            <State tone={session.is_connected ? "good" : "neutral"}>
              {session.is_connected ? "connected" : "away"}
            </State>
          )
        }
        actions={
          mayOperate() && (
            <button
              type="button"
              class="danger-quiet"
              disabled={session === null}
              onClick={() => askDelete(id, () => go(href("sessions")))}
            >
              Delete session…
            </button>
          )
        }
      />
      {found.error !== "" && <Notice tone="warning">{found.error}</Notice>}
      {session !== null && (
        <>
          <Panel title="Session">
            <Facts
              rows={[
                ["User", session.user ?? "anonymous"],
                ["Owner", <NodeLink node={session.owner} />],
                ["Away since", session.away_since_us === null ? "–" : dateTime(session.away_since_us)],
                ["Expires after", expiry(session.expiry_s)],
                ["Queued", count(session.queued)],
                ["Unfinished QoS 2", count(session.unfinished_qos2)],
                ["Will", session.has_will ? "yes" : "no"],
              ]}
            />
          </Panel>
          <Subscriptions rows={session.filters} />
          <Panel title="Positions" note="Up to where it has read each log.">
            <Table
              label="Positions"
              columns={[
                { name: "Shard", show: (row) => row.shard },
                { name: "Next offset", number: true, show: (row) => count(row.offset) },
                { name: "Lag", number: true, show: (row) => count(row.lag) },
              ]}
              rows={session.cursors}
              keyOf={(row) => row.shard}
              empty="It reads no log."
            />
          </Panel>
        </>
      )}
    </>
  );
}
