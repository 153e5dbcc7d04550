"""Reads the node when Prometheus asks. Nothing is counted here, and only the ages of groups are kept."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeVar

from millrace.broker.machine import Broker
from millrace.broker.meta import state as meta
from millrace.broker.stats import QOS_LEVELS
from millrace.broker.streams.stream import Stream
from millrace.kernels import ACCELERATED
from millrace.limits import METRIC_SERIES_MAX
from millrace.node.admin import figures
from millrace.node.admin.node_admin import Admin
from millrace.node.admin.overview import names_of
from millrace.node.config import Config
from millrace.node.doors.mqtt_door import MqttDoor
from millrace.node.engine import Engine
from millrace.node.metrics import table as m
from millrace.node.metrics.group_ages import GroupAges
from millrace.node.metrics.table import Metric
from millrace.node.metrics.text import Sample
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.reasons import Reason
from millrace.storage.disk import DiskFull
from millrace.tracing.export import DROP_REASONS
from millrace.version import __version__

_PIPELINE_STATES = ("starting", "running", "waiting", "stopped", "failed")
# After so many groups others get their turn.
_GROUPS_AT_ONCE = 50

Key = TypeVar("Key", int, str)
Value = TypeVar("Value")


class MeasuredNode(Protocol):
    """The node that is read: `millrace.node.server.Server` is one."""

    config: Config
    engine: Engine
    admin: Admin
    door: MqttDoor

    def wall_us(self) -> int: ...

    def uptime_s(self) -> int: ...


class MetricsReader:
    """One per node, which may still be starting when it is made."""

    def __init__(self, node: MeasuredNode) -> None:
        self._node = node
        self._started_s: int | None = None
        self._ages: GroupAges | None = None
        self._left_out = 0

    async def samples(self) -> list[Sample]:
        """Everything of this moment."""
        self._left_out = 0
        found = [*self._process(), *self._doors()]
        if self._node.engine.replicas.is_open and self._node.admin.readiness.is_started:
            found += self._replication()
            found += self._storage()
            found += self._writers()
            found += self._peers()
            found += await self._groups()
        found += self._pipelines()
        found.append(Sample(m.LEFT_OUT, (), self._left_out))
        return found

    def _first(self, items: Mapping[Key, Value]) -> list[tuple[Key, Value]]:
        """As many as are shown, in the order of their keys; the others are not even looked at."""
        self._left_out += max(0, len(items) - METRIC_SERIES_MAX)
        return sorted(items.items(), key=lambda item: item[0])[:METRIC_SERIES_MAX]

    # ------------------------------------------------------------------------------- node and doors

    def _process(self) -> Iterator[Sample]:
        yield Sample(m.BUILD_INFO, (__version__, "c" if ACCELERATED else "python"), 1)
        yield Sample(m.READY, (), float(not self._node.admin.readiness.waits_for))
        if self._started_s is None:
            self._started_s = self._node.wall_us() // 1_000_000 - self._node.uptime_s()
        yield Sample(m.START_TIME, (), self._started_s)
        yield Sample(m.CPU, (), figures.cpu_s())
        yield Sample(m.MEMORY, (), figures.memory_bytes())
        yield Sample(m.LOOP_LAG, (), self._node.admin.lag_times)
        traces = self._node.engine.traces
        yield Sample(m.SPANS_SENT, (), traces.exporter.sent if traces else 0)
        for reason in DROP_REASONS:
            yield Sample(m.SPANS_DROPPED, (reason,), traces.exporter.dropped[reason] if traces else 0)

    def _doors(self) -> Iterator[Sample]:
        broker = self._node.door.broker
        stats = broker.stats
        sent = self._sent_by_door()
        for name, door in sorted(stats.doors.items()):
            for qos in range(QOS_LEVELS):
                yield Sample(m.RECEIVED, (name, str(qos)), door.received[qos])
                yield Sample(m.SENT, (name, str(qos)), sent[name][qos])
            yield Sample(m.RECEIVED_BYTES, (name,), door.bytes_received)
            yield Sample(m.SENT_BYTES, (name,), door.bytes_sent)
            yield Sample(m.CONNECTIONS, (name,), door.open)
            yield Sample(m.CONNECTED, (name,), door.connects)
        yield Sample(m.READ, (), stats.read)
        yield Sample(m.STAGED_ROWS, (), stats.staged)
        yield Sample(m.SESSIONS, (), len(broker.sessions))
        yield Sample(m.SESSION_RECORDS, (), len(self._node.engine.sessions.store.records))
        yield Sample(m.SUBSCRIPTIONS, (), broker.subscription_count)
        yield Sample(m.RETAINED, (), len(broker.retained))
        yield Sample(m.RETAINED_BYTES, (), broker.retained.bytes_held)
        yield Sample(m.PUBLISH_ACK, (), stats.publish_ack)
        yield Sample(m.DENIED, (), stats.denied)
        yield Sample(m.PROTOCOL_ERRORS, (), stats.protocol_errors)
        yield Sample(m.EXPIRED, (), stats.expired)
        yield Sample(m.TRIMMED, (), stats.trimmed)
        yield Sample(m.UNCOMMITTED, (), broker.inbound.uncommitted_bytes)
        yield Sample(m.OUTPUT_HELD, (), self._node.door.output.held_bytes)
        links = self._node.engine.replicas.links
        yield from _refusals(broker, 0 if links is None else links.refused)

    def _sent_by_door(self) -> dict[str, list[int]]:
        """What each door was sent: by connections that ended, and by those that are there."""
        sent = {name: list(door.sent) for name, door in self._node.door.broker.stats.doors.items()}
        for connection in self._node.door.connections:
            session = connection.session
            if session is not None and session.connection is connection:
                of_door = sent[session.traffic.door]
                of_door[0] += session.sent_qos0
                of_door[1] += session.sent_qos1
                of_door[2] += session.sent_qos2
        return sent

    # ---------------------------------------------------------------------------------- replication

    def _labels(self, number: int, shards: dict[int, Stream]) -> tuple[str, str]:
        if number == meta.META_GROUP:
            return "$cluster", str(number)
        if number == meta.SESSION_GROUP:
            return "$sessions", str(number)
        return shards[number].spec.name if number in shards else "", str(number)

    def _here(self) -> Iterator[tuple[tuple[str, str], ReplicationGroup]]:
        """Replication groups with their labels, no more than are shown."""
        shards = self._node.engine.definitions.state.shards()
        for number, group in self._first(self._node.engine.replicas.groups):
            yield self._labels(number, shards), group

    def _replication(self) -> Iterator[Sample]:
        names = names_of(self._node.engine)
        for labels, group in self._here():
            status = group.status()
            yield Sample(m.IS_LEADER, labels, float(group.is_leader))
            yield Sample(m.HAS_LEADER, labels, float(group.is_serving))
            yield Sample(m.TERM, labels, status.term)
            yield Sample(m.COMMIT, labels, status.commit)
            yield Sample(m.APPLY, labels, status.applied)
            yield Sample(m.LAST, labels, status.last)
            yield Sample(m.ELECTIONS, labels, group.elections)
            yield Sample(m.LEADER_CHANGES, labels, group.leader_changes)
            yield Sample(m.PENDING, labels, group.pending_count)
            for peer in status.peers if group.is_leader else ():
                if peer.replica != group.replica:
                    name = names.get(peer.replica, peer.replica)
                    lag = max(0, status.last - peer.match)
                    yield Sample(m.FOLLOWER_LAG, (*labels, name), lag)

    # ------------------------------------------------------------------------------------- storage

    def _storage(self) -> Iterator[Sample]:
        engine = self._node.engine
        damaged = 0
        for labels, group in self._here():
            log = group.replica_log.log
            damaged += bool(log.damages)
            yield Sample(m.LOG_BYTES, labels, log.size_bytes)
            yield Sample(m.SEGMENTS, labels, len(log.segments()))
        for number, shard in self._first(engine.shards):
            labels = shard.stream.spec.name, str(number)
            yield Sample(m.FIRST_OFFSET, labels, shard.first_offset)
            yield Sample(m.NEXT_OFFSET, labels, shard.next_offset)
        for stream in engine.leaderless.streams.values():
            name = stream.files.stream.spec.name
            for one in stream.files.logs.values():
                labels = name, str(one.number)
                yield Sample(m.LOG_BYTES, labels, one.replica_log.log.size_bytes)
                yield Sample(m.SEGMENTS, labels, len(one.replica_log.log.segments()))
                yield Sample(m.FIRST_OFFSET, labels, one.first_offset)
                yield Sample(m.NEXT_OFFSET, labels, one.next_offset)
        yield Sample(m.SYNC, (), engine.replicas.syncer.sync_times)
        yield Sample(m.FREE, (), self._free_bytes())
        yield Sample(m.FREE_MIN, (), self._node.config.storage.free_bytes_min)
        yield Sample(m.REFUSING, (), float(engine.space.is_refusing))
        yield Sample(m.DAMAGED, (), damaged)

    def _free_bytes(self) -> int:
        try:
            return self._node.engine.replicas.directory.free_bytes()
        except DiskFull:
            return 0

    # --------------------------------------------------------------------------------------- groups

    async def _groups(self) -> list[Sample]:
        """Counted in the shards that this node leads, so that all nodes together count each once."""
        groups = self._node.engine.groups
        found: list[Sample] = []
        if self._ages is None:
            self._ages = GroupAges(self._node.engine.reading, self._node.wall_us)
        self._ages.begin()
        for at, (name, group) in enumerate(self._first(groups.by_name)):
            if at % _GROUPS_AT_ONCE == _GROUPS_AT_ONCE - 1:
                await asyncio.sleep(0)
            found.append(Sample(m.GROUP_MEMBERS, (name,), groups.members_here(name)))
            leaderless = groups.leaderless_depth(group)
            if leaderless:
                found.append(Sample(m.GROUP_LEADERLESS, (name,), leaderless))
            led = [shard for shard in groups.shards_of(group) if shard.group.is_leader]
            if not led:
                continue
            depth, in_flight = groups.depth(group, led)
            found.append(Sample(m.GROUP_DEPTH, (name,), depth))
            found.append(Sample(m.GROUP_IN_FLIGHT, (name,), in_flight))
            age_s = await self._ages.oldest_s(group, led)
            if age_s is not None:
                found.append(Sample(m.GROUP_AGE, (name,), age_s))
        return found

    # ------------------------------------------------------------------------ writers and pipelines

    def _writers(self) -> Iterator[Sample]:
        engine = self._node.engine
        yield Sample(m.WRITERS, (), len(engine.definitions.state.writers.writers))
        for number, shard in self._first(engine.shards):
            labels = shard.stream.spec.name, str(number)
            yield Sample(m.STAGED_BYTES, labels, shard.staging.state.size_bytes)
            yield Sample(m.STAGED_ATTEMPTS, labels, len(shard.staging.state.attempts))

    def _pipelines(self) -> Iterator[Sample]:
        for report in self._node.engine.pipelines.rows():
            name = report["name"]
            for state in _PIPELINE_STATES:
                yield Sample(m.PIPELINE_STATE, (name, state), float(report["state"] == state))
            yield Sample(m.PIPELINE_REPORT, (name,), report["time_us"] / 1_000_000)
            yield Sample(m.PIPELINE_RESTARTS, (name,), report["restarts"])
            queries: dict[str, Any] = {query["name"]: query for query in report["queries"]}
            for query in queries.values():
                labels = name, query["name"]
                yield Sample(m.PIPELINE_ROWS, labels, query["rows"])
                yield Sample(m.PIPELINE_RATE, labels, query["rows_per_s"])
                if query["lag"] is not None:
                    yield Sample(m.PIPELINE_LAG, labels, query["lag"])
                if query["offset"] is not None:
                    yield Sample(m.PIPELINE_OFFSET, labels, query["offset"])
                if query["batch_ms"] is not None:
                    yield Sample(m.PIPELINE_BATCH, labels, query["batch_ms"] / 1_000)
                yield Sample(m.PIPELINE_RETRIES, labels, query["retries"])
            is_mine = report.get("node") == self._node.config.node.id
            yield Sample(m.PIPELINE_OWNED, (name,), float(is_mine))
            yield Sample(m.PIPELINE_EPOCH, (name,), report.get("epoch", 0))

    # ---------------------------------------------------------------------------------------- peers

    def _peers(self) -> Iterator[Sample]:
        links = self._node.engine.replicas.links
        if links is None:
            return
        mine = self._node.engine.replicas.replica
        for replica, name in sorted(names_of(self._node.engine).items()):
            if replica == mine:
                continue
            traffic = links.traffic(replica)
            yield Sample(m.PEER_UP, (name,), float(links.is_heard(replica)))
            yield Sample(m.PEER_RECEIVED, (name,), traffic.bytes_received)
            yield Sample(m.PEER_SENT, (name,), traffic.bytes_sent)
            yield Sample(m.PEER_LINKS, (name,), traffic.opened)
            rtt_s = self._node.admin.rtt_s(replica)
            if rtt_s is not None:
                yield Sample(m.PEER_RTT, (name,), rtt_s)
        yield Sample(m.PEER_DROPPED, (), links.dropped)


def _refusals(broker: Broker, links_refused: int) -> Iterator[Sample]:
    """Who or what was not let in or not delivered, and which bounds were reached by that."""
    stats = broker.stats
    connects, publishes = stats.connects_refused, stats.publishes_refused
    yield from _by_reason(m.CONNECTS_REFUSED, {**connects, "DESCRIPTORS": stats.sockets_refused})
    yield from _by_reason(m.PUBLISHES_REFUSED, publishes)
    dropped = {
        "slow_client": stats.dropped_qos0,
        "queue_full": stats.dropped_queue,
        "link_full": stats.dropped_relay,
        "too_large": stats.dropped_too_large,
    }
    yield from _by_reason(m.DROPPED, dropped)
    reached = {
        "descriptors": stats.sockets_refused,
        "clients": connects[Reason.QUOTA_EXCEEDED.name] + connects[Reason.SERVER_BUSY.name],
        "client_queue": stats.dropped_queue,
        "client_output": stats.dropped_qos0,
        "client_packet": stats.dropped_too_large,
        "peer_link": stats.dropped_relay,
        "unproved_links": links_refused,
        "disk": publishes[Reason.QUOTA_EXCEEDED.name],
        "log_busy": publishes[Reason.SERVER_BUSY.name],
        **broker.limits_reached.counts,
    }
    yield from _by_reason(m.LIMITS_REACHED, reached)


def _by_reason(metric: Metric, counts: dict[str, int]) -> Iterator[Sample]:
    for name, count in sorted(counts.items()):
        yield Sample(metric, (name.lower(),), count)
