/** Who is connected, and which sessions are kept for those who are not. */
import { mayOperate, path, post, remove } from "../api";
import type { Client, Session } from "../contract";
import { count, duration } from "../format";
import { ask } from "../components/dialog";
import { PagedTable, SearchBar, useList } from "../components/list";
import { Badge, NodeLink, PageHead, State, Tabs, type Column } from "../components/ui";
import { href } from "../router";

const TABS = [
  { id: "clients", label: "Connected clients", href: href("clients") },
  { id: "sessions", label: "Durable sessions", href: href("sessions") },
];

export function askDisconnect(id: string, then: () => void): void {
  ask({
    title: `Disconnect client ${id}?`,
    body: (
      <p>
        Its connection is closed. A client that reconnects by itself will be back soon; a durable session
        stays.
      </p>
    ),
    verb: "Disconnect",
    act: async () => {
      await post(path(["v1", "clients", id, "disconnect"]));
      then();
    },
    done: `${id} is disconnected`,
  });
}

export function askDelete(id: string, then: () => void): void {
  ask({
    title: `Delete the session of ${id}?`,
    body: (
      <p>
        Its subscriptions and all messages that wait for it are forgotten at every node; a connected client is
        disconnected. It cannot be undone.
      </p>
    ),
    verb: "Delete",
    act: async () => {
      await remove(path(["v1", "sessions", id]));
      then();
    },
    done: `The session of ${id} is deleted`,
  });
}

/** Buttons that change something are for those who may. */
function actionsOf<T>(column: Column<T>): Column<T>[] {
  return mayOperate() ? [column] : [];
}

export function ClientsPage() {
  const list = useList<Client>("clients", 3000);
  const now = Date.now() * 1000;
  const columns: Column<Client>[] = [
    {
      name: "Client",
      show: (client) => (
        <a class="id" href={href("clients", [client.client_id])}>
          {client.client_id}
        </a>
      ),
    },
    { name: "User", show: (client) => client.user ?? <span class="quiet">anonymous</span> },
    { name: "Node", show: (client) => <NodeLink node={client.node} /> },
    {
      name: "Protocol",
      show: (client) => (client.protocol === client.door ? client.door : `${client.door} ${client.protocol}`),
    },
    {
      name: "Session",
      minor: true,
      show: (client) => (client.is_durable ? <Badge tone="accent">durable</Badge> : "clean"),
    },
    { name: "Connected", number: true, show: (client) => duration((now - client.connected_us) / 1e6) },
    { name: "Subscriptions", number: true, show: (client) => count(client.subscriptions) },
    { name: "In flight", number: true, show: (client) => count(client.in_flight) },
    { name: "Queued", number: true, show: (client) => count(client.queued) },
    { name: "Received", number: true, extra: true, show: (client) => count(client.received) },
    { name: "Sent", number: true, extra: true, show: (client) => count(client.sent) },
    ...actionsOf<Client>({
      name: "Actions",
      actions: true,
      show: (client) => (
        <button
          type="button"
          class="small danger-quiet"
          aria-label={`Disconnect ${client.client_id}`}
          onClick={() => askDisconnect(client.client_id, list.reload)}
        >
          Disconnect…
        </button>
      ),
    }),
  ];
  return (
    <>
      <PageHead
        title="Clients and sessions"
        note="Received and sent count messages, as the broker sees them."
      />
      <Tabs label="Clients and sessions" tabs={TABS} current="clients" />
      <SearchBar page="clients" label="Search client ids" hasNode />
      <PagedTable
        page="clients"
        label="Clients"
        list={list}
        columns={columns}
        keyOf={(client) => `${client.node}/${client.client_id}`}
        empty="No client is connected that fits."
      />
    </>
  );
}

export function SessionsPage() {
  const list = useList<Session>("sessions", 3000);
  const now = Date.now() * 1000;
  const columns: Column<Session>[] = [
    {
      name: "Client",
      show: (session) => (
        <a class="id" href={href("sessions", [session.client_id])}>
          {session.client_id}
        </a>
      ),
    },
    {
      name: "State",
      show: (session) =>
        session.is_connected ? (
          <State tone="good">connected</State>
        ) : (
          <State tone="neutral">
            away
            {session.away_since_us !== null && ` for ${duration((now - session.away_since_us) / 1e6)}`}
          </State>
        ),
    },
    { name: "User", show: (session) => session.user ?? <span class="quiet">anonymous</span> },
    { name: "Owner", show: (session) => <NodeLink node={session.owner} /> },
    { name: "Subscriptions", number: true, show: (session) => count(session.subscriptions) },
    { name: "Queued", number: true, show: (session) => count(session.queued) },
    {
      name: "Unfinished QoS 2",
      number: true,
      extra: true,
      show: (session) => count(session.unfinished_qos2),
    },
    { name: "Expires after", number: true, minor: true, show: (session) => expiry(session.expiry_s) },
    { name: "Will", extra: true, show: (session) => (session.has_will ? "yes" : "no") },
    ...actionsOf<Session>({
      name: "Actions",
      actions: true,
      show: (session) => (
        <button
          type="button"
          class="small danger-quiet"
          aria-label={`Delete the session of ${session.client_id}`}
          onClick={() => askDelete(session.client_id, list.reload)}
        >
          Delete…
        </button>
      ),
    }),
  ];
  return (
    <>
      <PageHead
        title="Clients and sessions"
        note="A durable session keeps subscriptions and messages while its client is away."
      />
      <Tabs label="Clients and sessions" tabs={TABS} current="sessions" />
      <SearchBar page="sessions" label="Search client ids" />
      <PagedTable
        page="sessions"
        label="Sessions"
        list={list}
        columns={columns}
        keyOf={(session) => session.client_id}
        empty="There is no session that fits."
      />
    </>
  );
}

/** MQTT's largest expiry means never. */
export function expiry(seconds: number): string {
  return seconds >= 4294967295 ? "never" : duration(seconds);
}
