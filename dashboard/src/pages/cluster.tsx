/** The cluster: a picture of its nodes, who leads what, and the figures of each. */
import { overview, figures } from "../live";
import type { NodeRow, Overview, ReplicationGroupRow } from "../contract";
import {
  bytes,
  bytesPerSecond,
  count,
  duration,
  milliseconds,
  percent,
  perSecond,
  plural,
  rate,
} from "../format";
import { Chart } from "../components/chart";
import { Picture } from "../components/picture";
import {
  Badge,
  Meter,
  NodeLink,
  PageHead,
  Panel,
  Sparkline,
  State,
  Table,
  Tile,
  stateTone,
  type Column,
} from "../components/ui";
import { href } from "../router";

export function ClusterPage() {
  const now = overview.value;
  if (now === null) return <p class="empty">Waiting for the first overview.</p>;
  return (
    <>
      <PageHead title="Cluster" note={`${plural(now.nodes.length, "node")}, version ${now.version}`} />
      <Totals overview={now} />
      <div class="split">
        <Panel title="Nodes and links">
          <Picture overview={now} />
        </Panel>
        <Panel title="Who leads what">
          <Leaders overview={now} />
        </Panel>
      </div>
      <Panel title="Nodes">
        <Table
          label="Nodes"
          columns={NODE_COLUMNS}
          rows={now.nodes}
          keyOf={(node) => node.node}
          empty="There are no nodes."
        />
      </Panel>
      <Panel title="Messages">
        <Chart
          label="Messages in and out per second, the last five minutes"
          format={perSecond}
          lines={[
            { label: "in", series: "total/in" },
            { label: "out", series: "total/out" },
          ]}
        />
      </Panel>
      <Panel title="Replication groups" note="A lag counts log entries that a replica does not have yet.">
        <Table
          label="Replication groups"
          columns={GROUP_COLUMNS}
          rows={now.groups}
          keyOf={(group) => group.group}
          empty="There are no groups."
        />
      </Panel>
    </>
  );
}

function Totals({ overview: now }: { overview: Overview }) {
  const { totals } = now;
  const up = now.nodes.filter((node) => node.state === "up").length;
  return (
    <dl class="tiles">
      <Tile
        label="Nodes up"
        value={`${up} of ${now.nodes.length}`}
        note={now.leader === null ? "no leader" : `${now.leader} leads`}
      />
      <Tile label="Clients" value={count(totals.clients)} note={plural(totals.sessions, "durable session")} />
      <Tile
        label="Messages in"
        value={perSecond(totals.in_messages_s)}
        note={bytesPerSecond(totals.in_bytes_s)}
        values={figures.get("total/in").values}
      />
      <Tile
        label="Messages out"
        value={perSecond(totals.out_messages_s)}
        note={bytesPerSecond(totals.out_bytes_s)}
        values={figures.get("total/out").values}
      />
      <Tile label="Stored" value={bytes(totals.stored_bytes)} note={plural(now.streams.length, "stream")} />
    </dl>
  );
}

/** What a group keeps, short: the stream's name and the number of the shard. */
function leadLabel(group: ReplicationGroupRow): string {
  return group.keeps.startsWith("stream ") ? `${group.keeps.slice(7)} ${group.group}` : group.keeps;
}

const LEADS_MAX = 24;

function Leaders({ overview: now }: { overview: Overview }) {
  const orphans = now.groups.filter((group) => group.leader === null);
  const rows: [string | null, ReplicationGroupRow[]][] = now.nodes.map((node) => [
    node.node,
    now.groups.filter((group) => group.leader === node.node),
  ]);
  if (orphans.length > 0) rows.unshift([null, orphans]);
  return (
    <dl class="leads">
      {rows.map(([node, groups]) => (
        <div key={node ?? ""}>
          <dt>{node === null ? <State tone="bad">No leader</State> : <NodeLink node={node} />}</dt>
          <dd>
            {groups.length === 0 && <span class="quiet">nothing</span>}
            {groups.slice(0, LEADS_MAX).map((group) => (
              <Badge
                key={group.group}
                tone={node === null ? "bad" : group.group === 0 ? "accent" : "neutral"}
              >
                {leadLabel(group)} <span class="term">t{group.term}</span>
              </Badge>
            ))}
            {groups.length > LEADS_MAX && <span class="quiet">and {groups.length - LEADS_MAX} more</span>}
          </dd>
        </div>
      ))}
    </dl>
  );
}

const NODE_COLUMNS: Column<NodeRow>[] = [
  {
    name: "Node",
    show: (node) => (
      <>
        <a href={href("cluster", [node.node])}>{node.node}</a>
        {node.host !== "" && <span class="quiet"> on {node.host}</span>}
      </>
    ),
  },
  {
    name: "State",
    show: (node) => (
      <State tone={node.is_draining ? "warning" : stateTone(node.state)}>
        {node.state === "up" && node.is_draining ? "draining" : node.state}
      </State>
    ),
  },
  {
    name: "Leads",
    show: (node) => (
      <>
        {count(node.leads)} {node.leads_meta && <Badge tone="accent">cluster</Badge>}
      </>
    ),
  },
  { name: "Clients", number: true, show: (node) => count(node.figures?.clients) },
  {
    name: "CPU",
    number: true,
    show: (node) => (
      <span class="with-spark">
        <Sparkline values={figures.get(`node/${node.node}/cpu`).values} width={48} height={16} />
        {percent(node.figures?.cpu_percent)}
      </span>
    ),
  },
  { name: "Memory", number: true, show: (node) => bytes(node.figures?.memory_bytes) },
  { name: "Data on disk", number: true, show: (node) => <Disk node={node} /> },
  { name: "In", number: true, show: (node) => perSecond(node.figures?.in_messages_s) },
  { name: "Out", number: true, show: (node) => perSecond(node.figures?.out_messages_s) },
  { name: "Loop lag", number: true, minor: true, show: (node) => milliseconds(node.figures?.loop_lag_ms) },
  { name: "Dropped", number: true, minor: true, show: (node) => count(node.figures?.dropped) },
  { name: "Uptime", number: true, minor: true, show: (node) => duration(node.figures?.uptime_s) },
];

export function Disk({ node }: { node: NodeRow }) {
  const found = node.figures;
  if (found === null) return <>–</>;
  const whole = found.disk_used_bytes + found.disk_free_bytes;
  const share = whole > 0 ? found.disk_used_bytes / whole : 0;
  return (
    <span class="with-spark">
      <Meter
        share={share}
        label={`${bytes(found.disk_used_bytes)} of data, ${bytes(found.disk_free_bytes)} free`}
      />
      {bytes(found.disk_used_bytes)}
    </span>
  );
}

export const GROUP_COLUMNS: Column<ReplicationGroupRow>[] = [
  { name: "Group", number: true, show: (group) => group.group },
  { name: "Keeps", show: (group) => <Keeps group={group} /> },
  {
    name: "Leader",
    show: (group) =>
      group.leader === null ? <State tone="bad">none</State> : <NodeLink node={group.leader} />,
  },
  { name: "Term", number: true, show: (group) => count(group.term) },
  { name: "Commit", number: true, show: (group) => count(group.commit) },
  { name: "Applied", number: true, minor: true, show: (group) => count(group.applied) },
  { name: "Replicas", wide: true, show: (group) => <Replicas group={group} /> },
];

function Keeps({ group }: { group: ReplicationGroupRow }) {
  if (!group.keeps.startsWith("stream ")) return <>{group.keeps}</>;
  const name = group.keeps.slice(7);
  return (
    <>
      stream <a href={href("streams", [name])}>{name}</a>
    </>
  );
}

export function Replicas({ group }: { group: ReplicationGroupRow }) {
  return (
    <span class="replicas">
      {group.replicas.map((replica) => (
        <span key={replica.node} class={`replica replica-${replica.role}`}>
          {replica.node} <span class="quiet">{replica.role}</span>
          {replica.lag !== null && replica.lag > 0 && <span class="lag"> {rate(replica.lag)} behind</span>}
        </span>
      ))}
    </span>
  );
}
