"""Every metric of a node, described once: name, kind, help and labels.

`/metrics`, the page docs/reference/metrics.md and the checks of the alert rules and the dashboard in deploy/
are made from this table. Names follow the conventions of Prometheus: base units, the unit at the end,
`_total` for what only grows.

No label has values that a client chooses: doors, reasons and QoS are few, streams, groups, pipelines and
peers are what an operator made. Of one metric at most `METRIC_SERIES_MAX` series are shown, in the order of
their labels; what is beyond is left out, and `millrace_metrics_series_left_out` says how many.
"""

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Metrics that belong together on the page."""

    title: str
    text: str
    metrics: list[Metric] = field(default_factory=list)

    def counter(self, name: str, help: str, *labels: str) -> Metric:
        assert name.endswith("_total"), name
        return self._add(Metric(name, "counter", help, labels))

    def gauge(self, name: str, help: str, *labels: str) -> Metric:
        assert not name.endswith("_total"), name
        return self._add(Metric(name, "gauge", help, labels))

    def histogram(self, name: str, help: str, *labels: str) -> Metric:
        assert name.endswith("_seconds"), name
        return self._add(Metric(name, "histogram", help, labels))

    def _add(self, metric: Metric) -> Metric:
        self.metrics.append(metric)
        return metric


# ---------------------------------------------------------------------------------------------- node

_node = Section("Node", "The process, its event loop, and whether it serves.")

BUILD_INFO = _node.gauge(
    "millrace_build_info",
    "Always 1; the labels say which version runs, and whether its kernels are compiled.",
    "version",
    "kernels",
)
READY = _node.gauge("millrace_ready", "1 while the node serves clients, as /readyz says; 0 while it waits.")
START_TIME = _node.gauge("process_start_time_seconds", "When the node was started, in seconds since 1970.")
CPU = _node.counter("process_cpu_seconds_total", "Processor time of the node, in all its threads.")
MEMORY = _node.gauge("process_resident_memory_bytes", "Memory that the node uses (resident set).")
LOOP_LAG = _node.histogram(
    "millrace_event_loop_lag_seconds",
    "Delay of the event loop: how much later than planned a timer ran, measured ten times a second.",
)
SPANS_SENT = _node.counter(
    "millrace_trace_spans_sent_total", "Spans of traces that the collector took (`tracing.endpoint`)."
)
SPANS_DROPPED = _node.counter(
    "millrace_trace_spans_dropped_total",
    "Spans that were lost: `collector` did not take them, or too many waited in the `queue`.",
    "reason",
)
LEFT_OUT = _node.gauge(
    "millrace_metrics_series_left_out",
    "Series that this answer leaves out, because their metric has more than it may show.",
)

# --------------------------------------------------------------------------------------------- doors

_doors = Section(
    "Messages and doors",
    "`door` is the listener: `mqtt`, `mqtts`, `ws`, `wss`, `text`, `http`, and `tail` for live views of the"
    " dashboard. `reason` is the name of an MQTT reason code, or a few words of its own where it says so.",
)

RECEIVED = _doors.counter(
    "millrace_messages_received_total",
    "Messages that clients published here and that were accepted, without repeats and refused messages.",
    "door",
    "qos",
)
SENT = _doors.counter(
    "millrace_messages_sent_total",
    "Messages that were sent to subscribers here, by the QoS of the delivery; repeats count again.",
    "door",
    "qos",
)
READ = _doors.counter(
    "millrace_messages_read_total",
    "Messages that were read from logs over HTTP: by groups, by the queue, by offset, and as blocks.",
)
STAGED_ROWS = _doors.counter(
    "millrace_messages_staged_total",
    "Messages that were staged here by writers; they become visible when their batch is committed.",
)
RECEIVED_BYTES = _doors.counter(
    "millrace_received_bytes_total",
    "Bytes that clients sent, protocol included, as the door sees them (without TLS and WebSocket frames).",
    "door",
)
SENT_BYTES = _doors.counter(
    "millrace_sent_bytes_total",
    "Bytes that were written to clients, protocol included, without the answer to CONNECT.",
    "door",
)
CONNECTIONS = _doors.gauge("millrace_connections", "Clients that are connected now.", "door")
CONNECTED = _doors.counter(
    "millrace_connections_opened_total", "Clients whose connection was accepted.", "door"
)
CONNECTS_REFUSED = _doors.counter(
    "millrace_connections_refused_total",
    "Clients whose connection was refused; `descriptors`: there were no more file descriptors.",
    "reason",
)
SESSIONS = _doors.gauge("millrace_sessions", "Sessions that this node serves or keeps for absent clients.")
SESSION_RECORDS = _doors.gauge(
    "millrace_session_records", "Durable sessions of the whole cluster, the same at every node."
)
SUBSCRIPTIONS = _doors.gauge("millrace_subscriptions", "Subscriptions of the sessions of this node.")
RETAINED = _doors.gauge("millrace_retained_messages", "Retained messages that this node knows.")
RETAINED_BYTES = _doors.gauge("millrace_retained_bytes", "Bytes of the retained messages in memory.")
PUBLISH_ACK = _doors.histogram(
    "millrace_publish_ack_seconds",
    "Time from the arrival of a message until it was acknowledged, for messages that a "
    "log keeps; measured once for each block.",
)
PUBLISHES_REFUSED = _doors.counter(
    "millrace_publishes_refused_total",
    "Messages that a log refused: because the disk was full, there was no leader, too "
    "many messages waited, or the sequence number was too old.",
    "reason",
)
DENIED = _doors.counter(
    "millrace_access_denied_total", "Messages and subscriptions that the access rules did not allow."
)
PROTOCOL_ERRORS = _doors.counter(
    "millrace_protocol_errors_total", "Connections that were closed because they broke the protocol."
)
DROPPED = _doors.counter(
    "millrace_messages_dropped_total",
    "Messages that did not reach a receiver. `slow_client`: QoS 0, and the client did "
    "not read; `queue_full`: the queue of the session was full; `link_full`: too much "
    "waited for another node; `too_large`: larger than the client accepts.",
    "reason",
)
EXPIRED = _doors.counter(
    "millrace_messages_expired_total", "Messages that reached their expiry before they could be delivered."
)
TRIMMED = _doors.counter(
    "millrace_messages_trimmed_total", "Messages that retention removed before a session had read them."
)
UNCOMMITTED = _doors.gauge(
    "millrace_uncommitted_bytes", "Bytes that were received for logs and are not committed yet."
)
OUTPUT_HELD = _doors.gauge(
    "millrace_output_held_bytes", "Bytes that wait in memory for clients that do not keep up."
)
LIMITS_REACHED = _doors.counter(
    "millrace_limits_reached_total",
    "How often something was refused or dropped because a limit was reached. Values of "
    "`limit` are `descriptors`, `clients`, `client_queue`, `client_output`, "
    "`client_packet`, `peer_link`, `disk`, `log_busy`, and the names of further limits "
    "such as `connections`, `sessions`, `subscriptions` and `packet`. A value that "
    "begins with `address_` or `user_` is a limit of one address or one user.",
    "limit",
)

# --------------------------------------------------------------------------------------- replication

_replication = Section(
    "Replication",
    "One row for each replication group of which this node has a replica. `stream` is the stream that a shard"
    " belongs to, `$cluster` for definitions and members, `$sessions` for durable sessions; `shard` is the"
    " number of the group. Leaderless and routed streams have no leader and are not here.",
)
_SHARD = ("stream", "shard")

IS_LEADER = _replication.gauge(
    "millrace_replication_is_leader", "1 at the node that leads the group and serves, 0 at others.", *_SHARD
)
HAS_LEADER = _replication.gauge(
    "millrace_replication_has_leader", "1 while this node leads the group or knows who does.", *_SHARD
)
TERM = _replication.gauge(
    "millrace_replication_term", "The term (of a pair: the epoch) that this replica is in.", *_SHARD
)
COMMIT = _replication.gauge(
    "millrace_replication_commit_index", "The last entry that this replica knows to be committed.", *_SHARD
)
APPLY = _replication.gauge(
    "millrace_replication_apply_index", "The last entry that is part of this replica's state.", *_SHARD
)
LAST = _replication.gauge("millrace_replication_last_index", "The last entry of this replica's log.", *_SHARD)
FOLLOWER_LAG = _replication.gauge(
    "millrace_replication_follower_lag_entries",
    "At the leader: by how many entries this follower's log is behind the leader's.",
    *_SHARD,
    "peer",
)
ELECTIONS = _replication.counter(
    "millrace_replication_elections_total",
    "How often this replica asked the others for their votes.",
    *_SHARD,
)
LEADER_CHANGES = _replication.counter(
    "millrace_replication_leader_changes_total", "How often this replica learned of a new leader.", *_SHARD
)
PENDING = _replication.gauge(
    "millrace_replication_pending_blocks", "Blocks that this node proposed and that are not applied.", *_SHARD
)

# ------------------------------------------------------------------------------------------- storage

_storage = Section(
    "Storage",
    "Logs have the labels of their replication group; of a leaderless stream there is one for each origin.",
)

LOG_BYTES = _storage.gauge("millrace_storage_log_bytes", "Size of the log on the disk of this node.", *_SHARD)
SEGMENTS = _storage.gauge("millrace_storage_segments", "Files that the log consists of.", *_SHARD)
FIRST_OFFSET = _storage.gauge(
    "millrace_storage_first_offset", "Offset of the first message that can be read.", *_SHARD
)
NEXT_OFFSET = _storage.gauge(
    "millrace_storage_next_offset",
    "Offset of the next message; its growth is the rate at which messages are stored.",
    *_SHARD,
)
SYNC = _storage.histogram("millrace_storage_sync_seconds", "How long a sync (fsync) of a log took.")
FREE = _storage.gauge("millrace_storage_free_bytes", "Free space on the disk of the data directory.")
FREE_MIN = _storage.gauge(
    "millrace_storage_free_min_bytes", "Free space below which the logs accept no more messages."
)
REFUSING = _storage.gauge(
    "millrace_storage_refusing", "1 while messages are refused because the disk is too full."
)
DAMAGED = _storage.gauge(
    "millrace_storage_damaged_logs", "Logs with damage that is not repaired from other nodes yet."
)

# -------------------------------------------------------------------------------------------- groups

_groups = Section(
    "Consumer groups",
    "Each node counts in the shards that it leads: `sum by (group)` over all nodes is the whole depth, `max"
    " by (group)` the age.",
)

GROUP_DEPTH = _groups.gauge(
    "millrace_group_depth_messages",
    "At most so many messages wait for the group or are under a lease: messages of other "
    "topics in the same logs are counted until somebody has looked at them.",
    "group",
)
GROUP_IN_FLIGHT = _groups.gauge(
    "millrace_group_in_flight_messages", "Messages that members have under a lease.", "group"
)
GROUP_AGE = _groups.gauge(
    "millrace_group_oldest_age_seconds",
    "Age of the oldest message that the group has not finished; 0 if there is none. One "
    "answer looks up a limited number of ages; a group that was not looked up yet is "
    "missing.",
    "group",
)
GROUP_LEADERLESS = _groups.gauge(
    "millrace_group_leaderless_depth_messages",
    "Messages of leaderless streams that wait for the group, as far as this node knows.",
    "group",
)
GROUP_MEMBERS = _groups.gauge(
    "millrace_group_members", "MQTT members of the group that are connected here.", "group"
)

# ------------------------------------------------------------------------------- writers and pipelines

_writers = Section(
    "Staged writers and pipelines",
    "What the supervisors of pipelines reported to this node. A supervisor reports to "
    "every node that it knows.",
)

WRITERS = _writers.gauge(
    "millrace_staged_writers",
    "Writers of which the cluster remembers the last batch, the same at every node.",
)
STAGED_BYTES = _writers.gauge(
    "millrace_staged_bytes", "Bytes that are staged in the shard and not visible.", *_SHARD
)
STAGED_ATTEMPTS = _writers.gauge(
    "millrace_staged_attempts", "Attempts with staged bytes that are neither released nor dropped.", *_SHARD
)
PIPELINE_STATE = _writers.gauge(
    "millrace_pipeline_state",
    "1 for the state that the pipeline is in, 0 for the others: starting, running, waiting, stopped, failed.",
    "pipeline",
    "state",
)
PIPELINE_REPORT = _writers.gauge(
    "millrace_pipeline_report_time_seconds",
    "Time of the last report of the pipeline to this node, in seconds since 1970.",
    "pipeline",
)
PIPELINE_RESTARTS = _writers.counter(
    "millrace_pipeline_restarts_total", "How often the supervisor started the pipeline again.", "pipeline"
)
PIPELINE_ROWS = _writers.counter(
    "millrace_pipeline_rows_total",
    "Rows that the query read since the pipeline was started.",
    "pipeline",
    "query",
)
PIPELINE_RATE = _writers.gauge(
    "millrace_pipeline_rows_per_second",
    "Rows per second of the last batches, as Spark reports it.",
    "pipeline",
    "query",
)
PIPELINE_LAG = _writers.gauge(
    "millrace_pipeline_lag_offsets",
    "Offsets that the query has not read yet, if its source reports this.",
    "pipeline",
    "query",
)
PIPELINE_OFFSET = _writers.gauge(
    "millrace_pipeline_offset",
    "Sum over all shards of the next offset that the query reads, if its source reports this.",
    "pipeline",
    "query",
)
PIPELINE_BATCH = _writers.gauge(
    "millrace_pipeline_batch_seconds",
    "How long the last batch of the query took, planning and commit included.",
    "pipeline",
    "query",
)
PIPELINE_RETRIES = _writers.gauge(
    "millrace_pipeline_query_retries",
    "How often the running driver started the query again in place.",
    "pipeline",
    "query",
)
PIPELINE_OWNED = _writers.gauge(
    "millrace_pipeline_owned",
    "1 at the node that keeps the pipeline of the cluster running, 0 at the other nodes, "
    "and 0 for a pipeline that is not one of the cluster.",
    "pipeline",
)
PIPELINE_EPOCH = _writers.gauge(
    "millrace_pipeline_epoch",
    "How often a supervisor of the pipeline was started, at whatever node; 0 for a "
    "pipeline that is not one of the cluster.",
    "pipeline",
)

# --------------------------------------------------------------------------------------------- peers

_peers = Section("Peers", "One row for each other member of the cluster; `peer` is its name.")

PEER_UP = _peers.gauge(
    "millrace_peer_up", "1 while there is a link to this node and something arrives over it.", "peer"
)
PEER_RECEIVED = _peers.counter(
    "millrace_peer_received_bytes_total", "Bytes that arrived from this node, over all links.", "peer"
)
PEER_SENT = _peers.counter(
    "millrace_peer_sent_bytes_total", "Bytes that were sent to this node, over all links.", "peer"
)
PEER_LINKS = _peers.counter(
    "millrace_peer_links_opened_total", "Links that were made with this node.", "peer"
)
PEER_RTT = _peers.gauge(
    "millrace_peer_round_trip_seconds",
    "How long a question to this node and its answer took, measured every two seconds; "
    "delays of both event loops are part of it.",
    "peer",
)
PEER_DROPPED = _peers.counter(
    "millrace_peer_frames_dropped_total",
    "Frames for other nodes that were dropped, because there was no link or too much "
    "waited for it. The protocols send again what is needed.",
)

SECTIONS = (_node, _doors, _replication, _storage, _groups, _writers, _peers)
METRICS = {metric.name: metric for section in SECTIONS for metric in section.metrics}
assert len(METRICS) == sum(len(section.metrics) for section in SECTIONS)
