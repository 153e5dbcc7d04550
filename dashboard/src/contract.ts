/** What the node's HTTP API says, as far as the dashboard shows it. Times are microseconds since 1970. */

export interface Page<T> {
  items: T[];
  next: string | null;
  /** Nodes that did not answer in time: the list lacks what only they know. */
  missing: string[];
}

export type NodeState = "up" | "suspect" | "unreachable" | "removed";

export interface Link {
  to: string;
  is_up: boolean;
  rtt_ms: number | null;
}

export interface Figures {
  version: string;
  uptime_s: number;
  clients: number;
  sessions: number;
  subscriptions: number;
  retained_messages: number;
  retained_bytes: number;
  cpu_percent: number;
  memory_bytes: number;
  disk_used_bytes: number;
  disk_free_bytes: number;
  loop_lag_ms: number;
  in_messages_s: number;
  out_messages_s: number;
  in_bytes_s: number;
  out_bytes_s: number;
  dropped: number;
  /** Empty, or the reason why the node does not serve. */
  waits_for: string;
  links: Link[];
}

export interface NodeRow {
  node: string;
  replica: string;
  state: NodeState;
  is_draining: boolean;
  leads_meta: boolean;
  leads: number;
  addresses: { mqtt: string | null; http: string | null; peer: string | null };
  /** The machine that it shares with other nodes; empty: a machine of its own. */
  host: string;
  silent_s: number;
  is_answering: boolean;
  figures: Figures | null;
}

export interface ReplicaRow {
  node: string;
  role: string;
  applied: number | null;
  lag: number | null;
}

export interface ReplicationGroupRow {
  group: number;
  /** "cluster", "sessions" or "stream NAME". */
  keeps: string;
  leader: string | null;
  term: number;
  commit: number;
  applied: number;
  voters: string[];
  learners: string[];
  replicas: ReplicaRow[];
}

export type Replication = "quorum" | "primary-backup" | "leaderless" | "routed";

export interface StreamRow {
  name: string;
  replication: Replication;
  filters: string[];
  shards: number;
  replicas: number;
  capture: string;
  bytes: number;
  messages: number;
  in_messages_s: number;
  leaders: string[];
  is_degraded: boolean;
  degraded: string;
}

export interface Totals {
  clients: number;
  sessions: number;
  in_messages_s: number;
  out_messages_s: number;
  in_bytes_s: number;
  out_bytes_s: number;
  stored_bytes: number;
}

export interface Overview {
  time_us: number;
  node: string;
  cluster: string;
  version: string;
  /** Leader of the group that keeps the cluster's own records. */
  leader: string | null;
  is_settled: boolean;
  nodes: NodeRow[];
  groups: ReplicationGroupRow[];
  streams: StreamRow[];
  totals: Totals;
}

export const EVENT_KINDS = [
  "election",
  "join",
  "leave",
  "node",
  "link",
  "stream",
  "group",
  "client",
  "access",
  "storage",
  "pipeline",
  "limit",
] as const;

export type Severity = "info" | "warning" | "error";

export interface ClusterEvent {
  id: string;
  time_us: number;
  node: string;
  kind: string;
  severity: Severity;
  text: string;
  fields: Record<string, string | number>;
}

export interface Subscription {
  filter: string;
  qos: number;
  no_local: boolean;
  retain_as_published: boolean;
  retain_handling: number;
  identifier: number | null;
  group: string | null;
}

export interface Client {
  client_id: string;
  user: string | null;
  node: string;
  address: string;
  door: string;
  protocol: string;
  connected_us: number;
  keep_alive_s: number;
  is_durable: boolean;
  subscriptions: number;
  in_flight: number;
  queued: number;
  received: number;
  sent: number;
}

export interface ClientDetail extends Client {
  filters: Subscription[];
  will_topic: string | null;
  session_expiry_s: number;
}

export interface Session {
  client_id: string;
  user: string | null;
  owner: string | null;
  is_connected: boolean;
  expiry_s: number;
  away_since_us: number | null;
  subscriptions: number;
  queued: number | null;
  unfinished_qos2: number;
  has_will: boolean;
}

export interface SessionDetail extends Session {
  filters: Subscription[];
  cursors: { shard: number; offset: number; lag: number }[];
}

/** A message as it is read from a log (`offset`, `shard`) or seen by the live tail (neither). */
export interface Message {
  time_us: number;
  topic: string;
  payload: string;
  encoding?: "utf-8" | "base64";
  qos: number;
  retain: boolean;
  shard?: number;
  offset?: number;
  publisher?: string | null;
  content_type?: string | null;
  response_topic?: string | null;
  correlation_data?: string | null;
  expiry_s?: number | null;
  user_properties?: [string, string][] | null;
  /** Counts what the live tail has shown: two messages may be alike. */
  seen?: number;
  /** Length of the whole payload where `payload` may be cut. */
  payload_bytes?: number;
}

export interface MessagesAnswer {
  stream: string;
  shard: number;
  messages: Message[];
  next_offset: number;
  end_offset: number;
}

export interface OffsetAnswer {
  offset: number;
  first_offset: number;
  next_offset: number;
}

export interface Measured {
  what: string;
  p99_ms: number;
  bound_ms: number;
  late: number;
  of: number;
  alert: boolean;
}

export interface ShardRow {
  shard: number;
  first_offset: number;
  next_offset: number;
  bytes: number;
  staged_bytes: number;
  staged_attempts: number;
  sealed: boolean;
  role: string;
  term: number;
  /** Leaderless: the node whose log this is. */
  origin?: string;
  primary?: string;
  backup?: string | null;
  in_sync?: boolean | null;
  measured?: Measured[];
  overloaded?: number;
  queued?: number;
  copies?: number;
  stored?: number;
  recovered?: number;
  uncopied?: number;
  dropped?: number;
}

export interface TopicClass {
  filter: string;
  period_ms: number;
  deadline_ms: number;
  loss_tolerance: number | null;
  retention: number;
  dispatch_ms: number;
  replicate_ms: number | null;
  is_replicated: boolean;
  why: string;
}

export interface LeaderlessGroup {
  clients: string[];
  connected_here: number;
  deliver: string[];
  lag: number;
}

export interface StreamDetail {
  name: string;
  filters: string[];
  replication: Replication;
  shards: number;
  replicas: number;
  capture: string;
  retention_age_s: number;
  retention_bytes: number;
  hold_age_s: number;
  hold_bytes: number;
  compression: string;
  edge: string;
  generation: number;
  shard_list: ShardRow[];
  ack?: string;
  storage?: string;
  primary_backup?: { schedule: string; check_interval_ms: number };
  topic_classes?: TopicClass[];
  warnings?: string[];
  groups?: Record<string, LeaderlessGroup>;
}

/** What `/status` says of routed streams: filters this node told others, and those it knows of each. */
export interface RoutedStatus {
  announced?: number;
  unannounced?: number;
  version?: number;
  peers?: Record<string, number>;
  retained?: number;
  tombstones?: number;
}

export interface GroupRow {
  name: string;
  filters: string[];
  deliveries_max: number;
  dead_letter: string;
  in_flight_max: number;
  lag: number;
  in_flight: number;
}

export interface GroupShard {
  shard: number;
  stream: string;
  position: number;
  next_offset: number;
  lag: number;
  lag_is_exact: boolean;
  in_flight: number;
  ready_again: number;
  delayed: number;
  dead: number;
  missed: number;
}

export interface GroupDetail extends GroupRow {
  waiting_here: number;
  members_here: number;
  shards: GroupShard[];
  leaderless: { stream: string; lag: number; deliver: string[] }[];
}

export interface PipelineQuery {
  name: string;
  batch: number;
  rows: number;
  rows_per_s: number;
  lag: number | null;
  batch_ms?: number | null;
}

export interface Pipeline {
  name: string;
  time_us: number;
  state: string;
  restarts: number;
  error: string;
  queries: PipelineQuery[];
  place?: string;
  restart?: string;
  /** Where Spark serves its pages. */
  ui?: string;
  /** Whether the cluster holds it, and runs it. */
  is_declared?: boolean;
  /** The node that runs it, of those of the cluster. */
  node?: string;
  epoch?: number;
  version?: number;
  resets?: number;
}

export interface PipelineLog {
  name: string;
  time_us: number;
  place: string;
  lines: string[];
}

export interface Trace {
  topic: string;
  stream: string;
  replication: Replication;
  shard: number | null;
  leader: string | null;
  next_offset: number | null;
  is_captured: Record<string, boolean>;
  receivers: { client_id: string; node: string; filter: string; qos: number; kind: string }[];
  retained: boolean;
}

export interface Me {
  user: string | null;
  is_admin: boolean;
  roles: string[];
  login_needed: boolean;
}

export interface User {
  name: string;
  roles: string[];
  has_password: boolean;
  tokens: number;
}

export interface Rule {
  number: number;
  user: string;
  effect: "allow" | "deny";
  action: "publish" | "subscribe" | "all";
  filter: string;
}
