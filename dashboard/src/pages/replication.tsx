/** What each of the four ways to replicate shows of itself. */
import type {
  LeaderlessGroup,
  Measured,
  Overview,
  ReplicationGroupRow,
  RoutedStatus,
  ShardRow,
  StreamDetail,
  TopicClass,
} from "../contract";
import { count, milliseconds, plural } from "../format";
import { useResource } from "../components/resource";
import { Badge, Code, Facts, NodeLink, NodeLinks, Panel, State, Table, type Column } from "../components/ui";
import { Replicas } from "./cluster";

// ------------------------------------------------------------------------------------------------ quorum

interface ReplicaOfGroup {
  group: ReplicationGroupRow;
  node: string;
  role: string;
  applied: number | null;
  lag: number | null;
}

export function RaftPanel({ groups }: { groups: readonly ReplicationGroupRow[] }) {
  const rows: ReplicaOfGroup[] = groups.flatMap((group) =>
    group.replicas.map((replica) => ({ group, ...replica })),
  );
  const columns: Column<ReplicaOfGroup>[] = [
    { name: "Shard", show: (row) => row.group.group },
    { name: "Node", show: (row) => <NodeLink node={row.node} /> },
    { name: "Raft role", show: (row) => <Role role={row.role} /> },
    { name: "Vote", show: (row) => (row.group.voters.includes(row.node) ? "voter" : "learner") },
    { name: "Term", number: true, show: (row) => count(row.group.term) },
    { name: "Commit", number: true, show: (row) => count(row.group.commit) },
    { name: "Applied", number: true, show: (row) => count(row.applied) },
    { name: "Lag", number: true, show: (row) => <Lag value={row.lag} /> },
  ];
  return (
    <Panel title="Raft" note="Who leads each shard, in which term, and how far the others are behind.">
      <Table
        label="Raft replicas"
        columns={columns}
        rows={rows}
        keyOf={(row) => `${row.group.group}/${row.node}`}
        empty="No replica has answered."
      />
    </Panel>
  );
}

function Role({ role }: { role: string }) {
  const isFirst = role === "leader" || role === "primary";
  return isFirst ? <Badge tone="accent">{role}</Badge> : <>{role}</>;
}

function Lag({ value }: { value: number | null }) {
  return value !== null && value > 0 ? <span class="lag">{count(value)}</span> : <>{count(value)}</>;
}

// ------------------------------------------------------------------------------------------------- pairs

const PAIR_COLUMNS: Column<ShardRow>[] = [
  { name: "Shard", show: (shard) => shard.shard },
  { name: "Epoch", number: true, show: (shard) => count(shard.term) },
  { name: "Primary", show: (shard) => <NodeLink node={shard.primary ?? null} /> },
  {
    name: "Backup",
    show: (shard) => (shard.backup ? <NodeLink node={shard.backup} /> : <State tone="bad">none</State>),
  },
  {
    name: "In sync",
    show: (shard) =>
      shard.in_sync == null ? (
        "–"
      ) : (
        <State tone={shard.in_sync ? "good" : "warning"}>{shard.in_sync ? "yes" : "no"}</State>
      ),
  },
];

const FRAME_COLUMNS: Column<ShardRow>[] = [
  { name: "Queued", number: true, show: (shard) => count(shard.queued) },
  { name: "Copies sent", number: true, show: (shard) => count(shard.copies) },
  { name: "Stored", number: true, minor: true, show: (shard) => count(shard.stored) },
  { name: "Recovered", number: true, minor: true, show: (shard) => count(shard.recovered) },
  { name: "Dropped", number: true, show: (shard) => count(shard.dropped) },
  { name: "Refused", number: true, show: (shard) => count(shard.overloaded) },
];

const CLASS_COLUMNS: Column<TopicClass>[] = [
  { name: "Topic class", show: (row) => <Code>{row.filter}</Code> },
  { name: "Period", number: true, show: (row) => milliseconds(row.period_ms) },
  { name: "Deadline", number: true, show: (row) => milliseconds(row.deadline_ms) },
  {
    name: "May be lost",
    number: true,
    show: (row) => (row.loss_tolerance === null ? "any" : `${count(row.loss_tolerance)} in a row`),
  },
  { name: "Dispatch by", number: true, show: (row) => milliseconds(row.dispatch_ms) },
  { name: "Replicate by", number: true, show: (row) => milliseconds(row.replicate_ms) },
  { name: "Replicated", show: (row) => (row.is_replicated ? "yes" : "no") },
  { name: "Why", minor: true, wide: true, show: (row) => <span class="quiet">{row.why}</span> },
];

const MEASURED_COLUMNS: Column<Measured>[] = [
  { name: "Measured", show: (row) => <Code>{row.what}</Code> },
  { name: "p99", number: true, show: (row) => milliseconds(row.p99_ms) },
  { name: "Bound", number: true, show: (row) => milliseconds(row.bound_ms) },
  { name: "Late", number: true, show: (row) => `${count(row.late)} of ${count(row.of)}` },
  {
    name: "State",
    show: (row) => (
      <State tone={row.alert ? "bad" : "good"}>{row.alert ? "above its bound" : "within"}</State>
    ),
  },
];

export function PairPanels({
  stream,
  groups,
}: {
  stream: StreamDetail;
  groups: readonly ReplicationGroupRow[];
}) {
  const isFrame = stream.primary_backup?.schedule === "frame";
  const pairs = stream.shard_list.filter((shard) => shard.primary !== undefined);
  const measured = pairs.flatMap((shard) => shard.measured ?? []);
  return (
    <>
      <Panel
        title="Pairs"
        note={`Schedule ${stream.primary_backup?.schedule ?? "–"}, health checks every ${milliseconds(stream.primary_backup?.check_interval_ms)}.`}
      >
        <Table
          label="Pairs"
          columns={isFrame ? [...PAIR_COLUMNS, ...FRAME_COLUMNS] : PAIR_COLUMNS}
          rows={pairs}
          keyOf={(shard) => shard.shard}
          empty="No pair has been formed yet."
        />
        {groups.map((group) => (
          <p key={group.group} class="under">
            Shard {group.group}: <Replicas group={group} />
          </p>
        ))}
      </Panel>
      {(stream.topic_classes?.length ?? 0) > 0 && (
        <Panel
          title="FRAME topic classes"
          note="The deadlines that were admitted, and what follows from them."
        >
          <Table
            label="Topic classes"
            columns={CLASS_COLUMNS}
            rows={stream.topic_classes ?? []}
            keyOf={(row) => row.filter}
            empty=""
          />
        </Panel>
      )}
      {measured.length > 0 && (
        <Panel
          title="Measured against the bounds"
          note="At the node that answers; the primary has the figures of its dispatches."
        >
          <Table
            label="Measured"
            columns={MEASURED_COLUMNS}
            rows={measured}
            keyOf={(row) => row.what}
            empty=""
          />
        </Panel>
      )}
    </>
  );
}

// -------------------------------------------------------------------------------------------- leaderless

export function LeaderlessPanels({ stream, overview }: { stream: StreamDetail; overview: Overview }) {
  const logs = stream.shard_list.filter((shard) => shard.origin !== undefined);
  const most = Math.max(1, ...logs.map((shard) => shard.next_offset));
  const columns: Column<ShardRow>[] = [
    { name: "Origin", show: (shard) => <NodeLink node={shard.origin ?? null} /> },
    { name: "Incarnation", number: true, show: (shard) => count(shard.term) },
    { name: "Known up to", number: true, show: (shard) => count(shard.next_offset) },
    {
      name: "Share",
      wide: true,
      show: (shard) => (
        <svg class="bar" height="8" width="100%" aria-hidden="true">
          <rect class="bar-fill" width={`${(100 * shard.next_offset) / most}%`} height="8" rx="2" />
        </svg>
      ),
    },
  ];
  const rows = Object.entries(stream.groups ?? {}).map(([key, group]) => ({ key, ...group }));
  return (
    <>
      <Panel title="Version vector" note={`Up to where node ${overview.node} knows the log of each origin.`}>
        <Table
          label="Version vector"
          columns={columns}
          rows={logs}
          keyOf={(shard) => shard.shard}
          empty="No log has been opened yet."
        />
      </Panel>
      <Panel title="Division of work" note="Which nodes deliver for each group, agreed without a leader.">
        <Table
          label="Division of work"
          columns={DIVISION_COLUMNS}
          rows={rows}
          keyOf={(row) => row.key}
          empty="No group reads this stream."
        />
      </Panel>
    </>
  );
}

const DIVISION_COLUMNS: Column<LeaderlessGroup & { key: string }>[] = [
  { name: "Group", show: (row) => <Code>{row.key}</Code> },
  { name: "Delivered by", show: (row) => <NodeLinks nodes={row.deliver} /> },
  { name: "Clients", wide: true, show: (row) => <Clients names={row.clients} /> },
  { name: "Connected here", number: true, show: (row) => count(row.connected_here) },
  { name: "Lag", number: true, show: (row) => <Lag value={row.lag} /> },
];

function Clients({ names }: { names: readonly string[] }) {
  if (names.length === 0) return <span class="quiet">none</span>;
  return (
    <>
      {names.slice(0, 5).join(", ")}
      {names.length > 5 && ` and ${names.length - 5} more`}
    </>
  );
}

// ------------------------------------------------------------------------------------------------ routed

export function RoutedPanel({ overview }: { overview: Overview }) {
  const status = useResource<{ routed: RoutedStatus }>("/status", 2000).value?.routed;
  const names = new Map(overview.nodes.map((node) => [node.replica, node.node]));
  const peers = Object.entries(status?.peers ?? {}).map(([replica, filters]) => ({
    node: names.get(replica) ?? replica,
    filters,
  }));
  const columns: Column<{ node: string; filters: number }>[] = [
    { name: "Node", show: (row) => <NodeLink node={row.node} /> },
    { name: "Filters its clients want", number: true, show: (row) => count(row.filters) },
    { name: "Messages go there", show: (row) => (row.filters > 0 ? "those that match" : "none") },
  ];
  return (
    <Panel
      title="Interest"
      note={`What node ${overview.node} knows of the others. A message goes once to each node that wants it.`}
    >
      <Table
        label="Interest"
        columns={columns}
        rows={peers}
        keyOf={(row) => row.node}
        empty="There is no other node."
      />
      <Facts
        rows={[
          ["Filters told to others", count(status?.announced)],
          ["Not told yet", count(status?.unannounced)],
          ["Version", count(status?.version)],
          [
            "Retained messages without a log",
            status === undefined ? "–" : plural(status.retained ?? 0, "message"),
          ],
        ]}
      />
    </Panel>
  );
}
