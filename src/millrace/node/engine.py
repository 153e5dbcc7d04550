"""The engine of a node: everything between its doors and its disk, put together.

Each part knows only the parts it needs, handed to it here; nobody reaches for the engine itself but the
server and the doors. `cut` is called once per turn of the loop and proposes what arrived."""

import asyncio
from collections import ChainMap, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Intake
from millrace.broker.meta import state as meta
from millrace.errors import StorageError
from millrace.node.access.cluster_access import ClusterAccess
from millrace.node.cluster import sys_topics
from millrace.node.cluster.cluster import Cluster
from millrace.node.cluster.placement import Placement
from millrace.node.cluster.silence import Silence
from millrace.node.config import Config
from millrace.node.edge.functions import EdgeFunctions
from millrace.node.edge.streams import EdgeStreams
from millrace.node.gathering import Gathering
from millrace.node.groups.consumer_groups import ConsumerGroups
from millrace.node.groups.mqtt_members import MqttGroupMembers
from millrace.node.groups.work_division import NodeWorkDivision
from millrace.node.leaderless.streams import LeaderlessStreams
from millrace.node.logs import snapshots
from millrace.node.logs.log_reader import LogReader
from millrace.node.logs.reading import Reading
from millrace.node.logs.retention import Retention
from millrace.node.logs.space import DiskSpace
from millrace.node.pairs.pair_keeper import PairKeeper
from millrace.node.peers.interest import Interest
from millrace.node.peers.messages import ClientConnected, FetchBlocks, HandedOn, HandOver, RelayedRun
from millrace.node.peers.registry import LEADERLESS_MESSAGES, ROUTED_MESSAGES
from millrace.node.pipelines.keeper import PipelineKeeper
from millrace.node.replicas import waiting
from millrace.node.replicas.backfill import Backfill
from millrace.node.replicas.repair import Repairs
from millrace.node.replicas.replicas import Replicas
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.sessions.handover import Handover
from millrace.node.sessions.presence import Presence
from millrace.node.sessions.session_group import SessionGroup
from millrace.node.shards.shard import Shard
from millrace.node.shards.writers import Writing
from millrace.node.streams.definitions import Definitions
from millrace.node.streams.intakes import Intakes
from millrace.node.streams.opening import Opening
from millrace.node.streams.sealing import Sealing
from millrace.node.surroundings import Surroundings
from millrace.reasons import Reason
from millrace.tracing.export import SpanExporter
from millrace.tracing.publishes import PublishTraces
from millrace.version import Feature

_HAND_OVER_S = 0.5


class Engine:
    """`start` and `stop` once each."""

    def __init__(
        self,
        config: Config,
        broker: Broker,
        *,
        random: Random,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
        on_failure: Callable[[StorageError], None],
        surroundings: Surroundings,
    ) -> None:
        self._config = config
        self._broker = broker
        self._random = random
        self._now_ms = now_ms
        self._wall_us = wall_us = surroundings.wall_us
        self._wake = wake
        self._gathering = Gathering(
            wake, asyncio.get_running_loop().call_later, is_always=surroundings.gathers_always
        )
        self._pool = surroundings.make_readers()
        self.shards: dict[int, Shard] = {}
        self._closed: dict[int, Shard] = {}
        self.replicas = Replicas(config, random, on_failure, surroundings)
        self.definitions = Definitions(self.replicas)
        self.access = ClusterAccess(config, self.definitions, broker)
        self.space = DiskSpace(self.replicas, config.storage.free_bytes_min)
        self.repairs = Repairs(self.replicas)
        self.backfill = Backfill(self.replicas, self._kept_from)
        self.reading = Reading(self._pool, self.repairs.repaired)
        self.interest = Interest(broker, now_ms=now_ms, wake=wake)
        self.sessions = SessionGroup(broker, now_ms, wake)
        self.handover = Handover(
            broker, self.replicas, is_on=config.cluster.takeover, now_ms=now_ms, wake=wake
        )
        self.sessions.before_release = self.handover.released
        self.presence = Presence(
            broker, self.replicas, lambda: self.definitions.state.members.members, wall_us
        )
        self.pairs = PairKeeper(self.definitions, self.replicas, self._publish_sys)
        self.leaderless = LeaderlessStreams(
            self.definitions,
            self.replicas,
            self.sessions,
            broker,
            self.reading,
            random=random,
            now_ms=now_ms,
            wall_us=wall_us,
            wake=wake,
        )
        self._sealing = Sealing(self.definitions, self.shards, self.leaderless, broker, now_ms)
        self.leaderless.on_new_log = self._sealing.hold_back
        self.intakes = Intakes(self.shards, self._closed, self.leaderless)
        self._build_groups(config)
        self._build_cluster(config)
        self._connect()
        self.traces = self._build_traces(config)
        self.opening.traces = self.leaderless.traces = self.traces

    def _build_groups(self, config: Config) -> None:
        """Who reads the logs: sessions that are behind, groups, retention, writers, edge functions."""
        broker, now_ms, wall_us, wake = self._broker, self._now_ms, self._wall_us, self._wake
        logs = ChainMap[int, Any](self.shards, self.leaderless.logs)
        self.reader = LogReader(broker, logs, self._pool, now_ms, wall_us, wake, self.repairs.repaired)
        self.groups = ConsumerGroups(
            self.definitions,
            self.shards,
            self.reading,
            self.space,
            self.leaderless,
            self.intakes,
            broker,
            now_ms=now_ms,
            wall_us=wall_us,
            wake=wake,
        )
        self.members = MqttGroupMembers(self.groups, broker, now_ms=now_ms, wall_us=wall_us, wake=wake)
        self.retention = Retention(self.shards, wall_us, self.groups.held_from, self._state_groups)
        self.writing = Writing(self.definitions, self.shards, self.space, self._pool, wall_us)
        functions = EdgeFunctions(config.edge.modules, config.edge.workers, config.edge.timeout_ms / 1000)
        self.edges = EdgeStreams(self.shards, self.reading, self.space, self.groups, functions)

    def _build_cluster(self, config: Config) -> None:
        """What opens shards as the definitions say, and keeps everything where it belongs."""
        broker, now_ms, wall_us, wake = self._broker, self._now_ms, self._wall_us, self._wake
        self._silence = Silence(self.replicas, self._watched)
        self.opening = Opening(
            self.replicas,
            self.definitions,
            self.shards,
            self._closed,
            broker=broker,
            sessions=self.sessions,
            leaderless=self.leaderless,
            pairs=self.pairs,
            interest=self.interest,
            intakes=self.intakes,
            sealing=self._sealing,
            retention=self.retention,
            space=self.space,
            members=self.members,
            silent=self._silence.since_s,
            now_ms=now_ms,
            wall_us=wall_us,
            wake=wake,
        )
        self.placement = Placement(
            self.replicas, self.definitions, self._silence, config.cluster.replace_after_s
        )
        self.work = NodeWorkDivision(
            self.definitions,
            self.shards,
            self.reading,
            self.sessions,
            self._silence,
            broker,
            now_ms=now_ms,
            wall_us=wall_us,
            wake=wake,
        )
        self.cluster = Cluster(
            config,
            self.replicas,
            self.definitions,
            self.opening,
            self.sessions,
            self.pairs,
            self.work,
            self._silence,
            self.placement,
            wall_us,
        )

        self.pipelines = PipelineKeeper(
            config, self.definitions, self.replicas, self._silence, self._publish_sys, wall_us
        )

    def _build_traces(self, config: Config) -> PublishTraces | None:
        """None where nobody wants any."""
        wanted, name = config.tracing, config.node.id
        if not wanted.endpoint:
            return None
        return PublishTraces(
            SpanExporter(wanted.endpoint, wanted.service, name),
            self._broker.router,
            node=name,
            one_in=wanted.one_in,
            per_second_max=wanted.per_second_max,
            wall_us=self._wall_us,
        )

    def _connect(self) -> None:
        """What the replicas, the definitions and the links tell the other parts."""
        replicas = self.replicas
        replicas.on_link_open = self._link_opened
        replicas.on_link_closed = self._link_closed
        replicas.on_tick = self._tick
        replicas.before_close = self.leaderless.close
        messenger = replicas.messenger
        messenger.on(ROUTED_MESSAGES.values(), self.interest.on_peer)
        messenger.on((RelayedRun,), self.interest.on_relayed)
        messenger.on(LEADERLESS_MESSAGES.values(), self.leaderless.on_peer)
        messenger.on((ClientConnected,), self.presence.on_connected)
        messenger.on((HandedOn,), self.handover.on_rest)
        messenger.answer(HandOver, self.handover.on_request)
        messenger.answer(FetchBlocks, self.repairs.on_fetch)
        self.definitions.on_change += [
            lambda result: self.pairs.meta_changed(),
            lambda result: self.writing.on_change(),
        ]
        self.definitions.on_restore.append(self.writing.on_change)
        self.definitions.on_change.append(lambda result: self._use_features())
        self.definitions.on_restore.append(self._use_features)
        self._use_features()
        self.opening.on_staged = self.writing.on_staged

    def _use_features(self) -> None:
        """What the members understand may have changed."""
        members = self.definitions.state.members
        self._broker.recording.names_unanswered = members.understand(Feature.UNANSWERED_IN_RECORDS)

    def _watched(self) -> Iterator[str]:
        """Whose silence matters: members, and whoever left sessions and their wills behind when it was
        removed or replaced. Those wait as long as others do, for this node may not know of a new member
        yet."""
        yield from self.definitions.state.members.members
        yield from self.sessions.store.owners

    # --------------------------------------------------------------------------- start and stop

    async def start(self, ports: Callable[[], dict[str, int]]) -> None:
        """Open the data directory and every log in it; returns once this node can take messages."""
        await self.replicas.start()
        await self.cluster.removal.unless_released(self._serve(ports))

    async def _serve(self, ports: Callable[[], dict[str, int]]) -> None:
        self._open_interest()
        await self.cluster.begin(ports)
        self.cluster.take_in()
        await self.access.begin()
        for spec in self._config.stream_specs():
            known = self.definitions.table.streams.get(spec.name)
            if known is None or known.spec != spec:
                await self.opening.put(spec, create=False)
        await self.opening.open_all()
        self.opening.begun()
        for shard in list(self.shards.values()):
            await waiting.served(shard.group)
        await waiting.served(self.sessions.group)
        await self.sessions.caught_up()
        broker = self._broker
        broker.wall_us = self._wall_us()
        broker.node = self.replicas.replica
        broker.records = self.sessions
        broker.router.intakes = self.intakes
        broker.router.forget_all()
        self.opening.move_retained()
        self.sessions.begin()
        self.cluster.run()
        self.writing.start()
        self.pipelines.start()

    async def stop(self) -> None:
        """Take snapshots, so that the next start is quick, and let go of the files."""
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)
        if not self.replicas.is_open:
            return
        if self._broker.inbound.waiting:
            self._cut_arrivals(self._wall_us())
        await self.pipelines.stop()
        await self.writing.stop()
        await self.edges.stop()
        await self.members.stop()
        await self.groups.stop()
        await self.work.stop()
        await self.leaderless.stop()
        await self.repairs.stop()
        await self.backfill.stop()
        await self.cluster.stop()
        await self._hand_over()
        if self._broker.journal.is_on:
            self._broker.checkpoint()
            self.sessions.cut()
        is_full = self.replicas.syncer.is_full
        await asyncio.gather(*(waiting.applied(group, is_full) for group in self.replicas.groups.values()))
        await self.replicas.stop()
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _hand_over(self) -> None:
        """A planned stop makes nobody wait for an election: another replica leads before this one goes."""
        led = [g for g in self.replicas.groups.values() if g.is_leader and not g.is_alone]
        for group in led:
            group.transfer(None)
        with suppress(TimeoutError):
            async with asyncio.timeout(_HAND_OVER_S):
                for group in led:
                    while group.is_leader:
                        await group.role_changed.next()

    def _kept_from(self, number: int) -> int | None:
        """The messages of a framed stream go past its log."""
        shard = self.shards.get(number)
        return None if shard is None or shard.stream.spec.is_framed else shard.start_offset

    def _state_groups(self) -> list[ReplicationGroup]:
        groups = self.replicas.groups
        return [groups[n] for n in (meta.META_GROUP, meta.SESSION_GROUP) if n in groups]

    def _publish_sys(self, values: dict[str, str]) -> None:
        sys_topics.publish(self._broker, values, self._now_ms())
        self._wake()

    # --------------------------------------------------------------------------------------- links

    def _link_opened(self, peer: str) -> None:
        self.interest.link_opened(peer)
        self.leaderless.link_opened(peer)

    def _link_closed(self, peer: str) -> None:
        self.interest.link_closed(peer)
        self.leaderless.link_closed(peer)

    def _tick(self) -> bool:
        """Whether time matters to anybody here."""
        self.interest.tick()
        self.leaderless.tick()
        if self._sealing.too_early:
            # What they wait for may be over with the time, or with a snapshot.
            self._wake()
        links = self.replicas.links
        has_others = links is not None and any(links.wanted())
        return has_others or bool(self.leaderless.streams or self._sealing.too_early)

    def when_shared(self, keys: list[str], then: Callable[[], None]) -> None:
        """Call back once every log that takes their messages knows that these groups have a member here."""
        self.leaderless.when_shared(keys, lambda: self.work.when_shared(keys, then))

    def _open_interest(self) -> None:
        links, messenger = self.replicas.links, self.replicas.messenger
        self.interest.open(self.replicas.replica, messenger, random=self._random, wall_us=self._wall_us)
        for peer in links.peers() if links is not None else ():
            self.interest.link_opened(peer)

    # ------------------------------------------------------------------------------------ traffic

    def cut(self) -> None:
        """Propose what arrived. Called once per turn of the loop."""
        broker = self._broker
        if broker.outbound.held:
            self._sealing.hold_back()
        if broker.inbound.waiting or self._sealing.too_early or broker.journal.is_due:
            wall_us = self._wall_us()
            count = broker.inbound.waiting_count
            is_urgent = broker.inbound.has_urgent(count) or self._sealing.too_early or broker.journal.is_due
            if not self._gathering.holds(count, wall_us, is_urgent=bool(is_urgent)):
                self._cut_arrivals(wall_us)
        if self.reader.has_work:
            self.reader.serve_behind()
        self.work.check_divided()
        if broker.joined_need_feeding:
            self.members.flush()
        inbound = broker.inbound
        if broker.interest_changes or inbound.relays or inbound.retained_here:
            self.interest.flush()
        if inbound.outcomes:
            self.groups.publishing.answer(broker.take_outcomes())

    def _cut_arrivals(self, wall_us: int) -> None:
        broker, sealing = self._broker, self._sealing
        self.sessions.cut()
        arrived = broker.inbound.take_waiting()
        if broker.outbound.sealed or sealing.too_early or any(i.is_sealed for i in arrived):
            arrived = sealing.in_time(arrived, is_out_of_space=self.opening.is_out_of_space)
        left = deque(arrived)
        try:
            while left:
                self._cut_one(left.popleft(), wall_us)
        finally:
            # A fault in one log: the others' come again, as only the first arrival queues an intake.
            broker.inbound.waiting[:0] = left
        # At once: what is synced in place is committed, and answered, in this very turn.
        self.replicas.syncer.start()

    def _cut_one(self, intake: Intake, wall_us: int) -> None:
        shard = self.shards.get(intake.shard)
        if shard is not None and not intake.is_sealed and shard.awaits_others():
            # A repeat is with them, and a log which may have it is not applied to its end.
            self._sealing.too_early.append(intake)
            return
        taker = self.leaderless.streams.get(intake.shard) or shard
        if taker is not None:
            taker.cut(wall_us, self.space.is_refusing)
            return
        arrivals, intake.arrivals = intake.arrivals, []
        if intake.shard in self._closed:
            self._closed[intake.shard].refuse(arrivals, Reason.QUOTA_EXCEEDED)
        else:
            # Its stream was deleted while they waited.
            self._broker.inbound.arrive_again(arrivals, self._now_ms())

    def tick(self) -> None:
        """Chores that are due about once a second."""
        self.space.check()
        snapshots.take_due(self.shards.values())
        self.retention.tick()
        self.repairs.tick()
        self.backfill.tick()
        self.groups.tick()
        self.members.tick()
        self.edges.tick()

    # ------------------------------------------------------------------------------------- status

    def status(self) -> list[dict[str, Any]]:
        return [
            {
                "stream": shard.stream.spec.name,
                "shard": number,
                "first_offset": shard.first_offset,
                "next_offset": shard.next_offset,
                "bytes": shard.group.replica_log.log.size_bytes,
                "staged_bytes": shard.staging.state.size_bytes,
                "staged_attempts": len(shard.staging.state.attempts),
                "sealed": shard.intake.is_sealed,
                "role": status.role,
                "term": status.term,
            }
            for number, shard in sorted(self.shards.items())
            for status in (shard.group.status(),)
        ] + self.leaderless.status()
