"""Primary-backup shards of a node: their groups, their time, and the record of their roles in the meta group.

A pair's group is driven like any other; three things differ. Its ticks follow the stream's check interval,
and a process that was held up steps the ticks it missed before anything else: a lease is not longer because
nobody looked at the clock. What the machine reports becomes a command of the meta group, and what the meta
group records comes back as `Appointed` as soon as it is applied here. And a replica that must start over,
which only two nodes alone can need, is closed, emptied and opened again.

Clients are told, on `$SYS/pairs`, of which shards this node is primary and under which epoch. The word goes
out within the step that changes a role, before anything the node delivers in its new one.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from millrace.broker.entries.meta import META_ENTRIES, ReplaceBackup, ReportPair
from millrace.broker.meta import state as meta
from millrace.broker.meta.pairs import PAIRS_TOPIC, QUORUM_MEMBERS, Pair
from millrace.broker.streams.pair_spec import PairSpec
from millrace.broker.streams.stream import Replication, Stream, StreamSpec
from millrace.broker.topics.filters import overlaps
from millrace.errors import LocalError
from millrace.node.pairs.beat import Beat
from millrace.node.peers.messages import PairSwitched, SwitchPair
from millrace.node.replicas.app import Machine
from millrace.node.replicas.replicas import FrameApp, Replicas
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.streams.definitions import Definitions
from millrace.replication.contract import (
    Appointed,
    EntryKind,
    InitialState,
    PeerBody,
    ReplicaId,
    Report,
    RoleChanged,
    StartOver,
    Tick,
)
from millrace.replication.frame.schedule import LinkBounds, TopicTerms, deadlines
from millrace.replication.pair.machine import PrimaryBackup
from millrace.replication.pair.options import PairOptions
from millrace.replication.raft.options import RaftOptions
from millrace.storage.block import Kind, opaque_block
from millrace.types import Term

if TYPE_CHECKING:
    from millrace.node.shards.shard import Shard

log = logging.getLogger("millrace.pairs")

_TICKS_PER_CHECK = 20
# Enough for the shortest check interval of practice; what a tick and a heartbeat cost is paid all the time.
_TICK_S_MIN = 0.0035
_TICKS_PER_CHECK_MIN = 4
_HEARTBEAT_S_MIN = 0.01
_SWITCH_S = 10.0


def options_of(check_interval_ms: int) -> tuple[PairOptions, float]:
    """The numbers of the machine, and how long its tick is."""
    check_s = check_interval_ms / 1000
    check_ticks = min(_TICKS_PER_CHECK, max(_TICKS_PER_CHECK_MIN, round(check_s / _TICK_S_MIN)))
    tick_s = check_s / check_ticks
    heartbeat_ticks = min(check_ticks, max(check_ticks // 8, round(_HEARTBEAT_S_MIN / tick_s), 1))
    raft = RaftOptions(heartbeat_ticks=heartbeat_ticks, election_ticks=max(60, 3 * check_ticks))
    return PairOptions(check_ticks=check_ticks, raft=raft), tick_s


def admit(spec: PairSpec) -> list[dict[str, Any]]:
    """What each topic class comes to; LocalError names the one that cannot be met, and its number."""
    bounds = bounds_of(spec)
    rows = []
    for one in spec.topics:
        try:
            found = deadlines(terms_of(one), bounds)
        except LocalError as error:
            raise LocalError(f"topic class {one.filter!r} cannot be admitted: {error}") from None
        rows.append({**one.plain(), **asdict(found)})
    return rows


def check_classes(spec: StreamSpec) -> None:
    """LocalError names a topic class that no topic of the stream can belong to: whoever gave it has mistyped
    something, and its deadline would be kept for nobody."""
    for one in spec.primary_backup.topics if spec.filters else ():
        if not any(overlaps(filter, one.filter) for filter in spec.filters):
            told = ", ".join(spec.filters)
            raise LocalError(
                f"topic class {one.filter!r} has no topic of the stream, whose filters are {told}"
            )


def bounds_of(spec: PairSpec) -> LinkBounds:
    return LinkBounds(
        failover_ms=spec.x_ms,
        publisher_ms=spec.publisher_ms,
        subscriber_ms=spec.subscriber_ms,
        backup_ms=spec.backup_ms,
    )


def terms_of(one: Any) -> TopicTerms:
    return TopicTerms(
        period_ms=one.period_ms,
        deadline_ms=one.deadline_ms,
        loss_tolerance=one.loss_tolerance,
        retention=one.retention,
    )


class PairGroup(ReplicationGroup):
    """A group whose machine is a primary-backup pair's."""

    def __init__(self, *args: Any, pair: Appointed, check_interval_ms: int, **kwargs: Any) -> None:
        self._pair = pair
        self._pair_options, tick_s = options_of(check_interval_ms)
        self._loop = asyncio.get_running_loop()
        self._beat = Beat(self._loop.time(), tick_s)
        self._timer: asyncio.TimerHandle | None = None
        self.on_role: Callable[[], None] = _nothing
        self.heard_s: float | None = None
        """When a primary that is another node was heard last."""
        super().__init__(*args, **kwargs)
        self._arm()

    def _make_machine(self, state: InitialState, rng: Random) -> Machine:
        return PrimaryBackup(
            self.replica,
            state=state,
            log=self.replica_log,
            options=self._pair_options,
            rng=rng,
            pair=self._pair,
        )

    def _elect_alone(self) -> None:
        """The first tick decides."""

    @property
    def is_counting_alone(self) -> bool:
        assert isinstance(self._machine, PrimaryBackup)
        return self._machine.is_alone

    @property
    def may_accept(self) -> bool:
        """A primary under a lease: what it takes now, nobody else answers for."""
        assert isinstance(self._machine, PrimaryBackup)
        return self._machine.may_accept

    @property
    def leader(self) -> ReplicaId | None:
        """Who is primary, as far as is known here."""
        return self._machine.leader

    @property
    def epoch(self) -> Term:
        return self._machine.status().term

    @property
    def partner(self) -> ReplicaId | None:
        """The other node of the pair."""
        pair = self._pair
        return pair.backup if pair.primary == self.replica else pair.primary

    def appoint(self, pair: Appointed) -> None:
        if pair != self._pair:
            self._pair = pair
            self.catch_up()
            self.step(pair)

    def on_role_changed(self, change: RoleChanged) -> None:
        self.on_role()
        super().on_role_changed(change)

    # ---------------------------------------------------------------------------------------- time

    def _arm(self) -> None:
        self._timer = self._loop.call_at(self._beat.next_s, self._on_timer)

    def _on_timer(self) -> None:
        if not self.is_closed:
            self.catch_up()
            self._arm()
            self._syncer.start()

    def catch_up(self) -> None:
        """Step the ticks that are due. A primary under a lease counts all the time that passed. Whoever
        judges the other by its silence counts only the time in which it could have heard it: answers may
        lie in the sockets of a process that was held up. Behind a closed link nothing can."""
        options = self._pair_options
        assert isinstance(self._machine, PrimaryBackup)
        is_counting_all = self._machine.is_cut_off or (self._pair.has_quorum and self._machine.is_serving)
        most = 4 * options.promotion_ticks if is_counting_all else max(1, options.timeout_ticks // 2)
        for _ in range(self._beat.take(self._loop.time(), most)):
            self.step(Tick())

    def _step_tick(self) -> None:
        """The pair's own timer does."""

    def _may_sleep(self) -> bool:
        """A pair watches its other side, and its lease, all the time."""
        return False

    @property
    def _is_answered(self) -> bool:
        """A primary that has lost its lease, and whom to ask for the record, takes nothing and settles
        nothing. Nodes that pass on to it are not told: what they see is that nothing comes back."""
        return self.may_accept if self.is_leader else self.is_serving and not self._pending

    def propose(self, *args: Any, **kwargs: Any) -> bool:
        self.catch_up()
        return super().propose(*args, **kwargs)

    def _offer(self) -> None:
        """A primary without a lease refuses everything: preparing it again and again for that would leave no
        time to renew the lease. The next tick offers."""
        if not self.is_leader or self.may_accept:
            super()._offer()

    def on_peer(self, sender: ReplicaId, body: PeerBody) -> None:
        self.catch_up()
        super().on_peer(sender, body)
        if sender == self._machine.leader:
            self.heard_s = self._loop.time()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().close()


class PairKeeper:
    """All pairs of a node."""

    def __init__(
        self, definitions: Definitions, replicas: Replicas, publish_sys: Callable[[dict[str, str]], None]
    ) -> None:
        self._definitions = definitions
        self._replicas = replicas
        self.reopen_empty: Callable[[int, int, int], None] = _not_opened_here
        """Begins a shard again with nothing. Set by the node."""
        self._publish_sys = publish_sys
        self._said: tuple[object, ...] = ()
        # Shards of which this node is primary alone, and that was said.
        self._bare: set[int] = set()
        self._is_due = False
        self._reports: dict[int, Report] = {}
        self.started_over = 0
        """Replicas that were emptied because a higher epoch had another history."""

    # -------------------------------------------------------------------------------------- groups

    @staticmethod
    def takes(stream: Stream | None) -> bool:
        return stream is not None and stream.spec.replication is Replication.PRIMARY_BACKUP

    def open(self, number: int, app: Any, stream: Stream, founders: tuple[str, ...]) -> ReplicationGroup:
        pair = self._record(number)
        interval_ms = pair.check_interval_ms or stream.spec.primary_backup.check_interval_ms
        make = partial(PairGroup, pair=self._appointed(pair), check_interval_ms=interval_ms)
        group = self._replicas.open(number, app, founders, make)
        group.on_report = self._on_report
        group.on_start_over = self._on_start_over
        assert isinstance(group, PairGroup)
        group.on_role = self._say
        return group

    def _record(self, number: int) -> Pair:
        return self._definitions.state.pairs.by_shard[number]

    def _appointed(self, pair: Pair) -> Appointed:
        voters = self._definitions.group.status().config.voters
        return Appointed(
            version=pair.version,
            epoch=Term(pair.epoch),
            primary=ReplicaId(pair.primary),
            backup=None if pair.backup is None else ReplicaId(pair.backup),
            is_in_sync=pair.is_in_sync,
            has_quorum=len(voters) >= QUORUM_MEMBERS,
            is_seized=pair.is_seized,
        )

    def groups(self) -> dict[int, PairGroup]:
        found = self._replicas.groups
        return {number: group for number, group in found.items() if isinstance(group, PairGroup)}

    # -------------------------------------------------------------------------------------- record

    def meta_changed(self) -> None:
        """The meta group applied something; its own step must end before anything follows from it."""
        if not self._is_due and self._definitions.state.pairs.by_shard:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.appoint)

    def appoint(self) -> None:
        """Tell every pair here what is on record."""
        self._is_due = False
        for number, group in self.groups().items():
            if number in self._definitions.state.pairs.by_shard and not group.is_closed:
                group.appoint(self._appointed(self._record(number)))
                if isinstance(group.app, FrameApp):
                    group.app.tick()
        self._warn()
        self._say()

    def _warn(self) -> None:
        """A pair of one keeps no promise of a pair; its primary says so in its log, once."""
        for number, pair in self._definitions.state.pairs.by_shard.items():
            is_bare = pair.backup is None and pair.primary == self._replicas.replica
            if is_bare and number not in self._bare:
                self._bare.add(number)
                log.warning("%s", _no_backup(number))
            elif not is_bare and number in self._bare:
                self._bare.discard(number)
                log.info("shard %d has a backup now", number)

    def warnings(self, stream: Stream) -> list[str]:
        """For people: what a stream of this kind lacks to be one."""
        pairs = self._definitions.state.pairs.by_shard
        return [_no_backup(n) for n in stream.shards if n in pairs and pairs[n].backup is None]

    def _say(self) -> None:
        """Tell clients of which shards this node is primary, and which topics are theirs, if that is news."""
        groups = sorted(self.groups().items())
        primary = [(number, int(one.epoch)) for number, one in groups if one.is_leader and not one.is_closed]
        table = self._definitions.table
        said = (primary, self._definitions.state.generation)
        if said == self._said or not (primary or self._said):
            return
        self._said = said
        mine = [stream for stream in table.streams.values() if self.takes(stream)]
        rows: list[dict[str, Any]] = [
            {"filters": stream.spec.filters, "shards": stream.shards} for stream in mine
        ]
        filters = [filter for stream in mine for filter in stream.spec.filters]
        # Streams of other kinds that take topics away from these.
        others = [
            other
            for stream in table.streams.values()
            if not self.takes(stream)
            for other in stream.spec.filters
            if any(overlaps(filter, other) for filter in filters)
        ]
        rows.append({"filters": others, "shards": []})
        word = {"cluster": self._definitions.state.members.cluster, "primary": primary, "streams": rows}
        self._publish_sys({PAIRS_TOPIC: json.dumps(word)})

    def _on_report(self, number: int, report: Report) -> None:
        """Called while the pair's effects run: the command leaves in the next turn of the loop."""
        if not self._reports:
            asyncio.get_running_loop().call_soon(self._send_reports)
        self._reports[number] = report

    def _send_reports(self) -> None:
        reports, self._reports = self._reports, {}
        group = self._replicas.groups.get(meta.META_GROUP)
        if group is None or group.is_closed or not group.is_serving:
            return  # it is asked again
        for number, report in reports.items():
            entry = ReportPair(
                number,
                after=report.after,
                epoch=report.epoch,
                primary=report.primary,
                is_in_sync=report.is_in_sync,
                is_seized=report.is_seized,
            )
            block = opaque_block(Kind.CONTROL, META_ENTRIES.encode([entry]))
            group.propose([block], [None], EntryKind.CONTROL)

    async def review(self) -> None:
        """As leader of the meta group: every pair has a backup if there is a node for it."""
        members = self._definitions.state.members
        for number, pair in list(self._definitions.state.pairs.by_shard.items()):
            assignment = members.assignments.get(number)
            if assignment is None or pair.backup in assignment.replicas:
                continue
            others = [name for name in assignment.replicas if name != pair.primary]
            wanted = others[0] if others else None
            if wanted != pair.backup:
                await self._definitions.command(ReplaceBackup(number, pair.version, wanted))

    # ---------------------------------------------------------------------------------- start over

    def _on_start_over(self, number: int, effect: StartOver) -> None:
        log.error(
            "shard %d: %d blocks that this node committed alone are not in the history that won; "
            "they are lost, and the shard is fetched again",
            number,
            effect.lost,
        )
        self.started_over += 1
        damage = effect.damage
        again = partial(self.reopen_empty, number, int(damage.last_index), int(damage.term))
        # Not in the middle of the syncer's own round.
        loop = asyncio.get_running_loop()
        self.groups()[number].stop_then(lambda: _soon(loop, again))

    # ------------------------------------------------------------------------------------ commands

    async def switch(self, number: int) -> PairSwitched:
        """A planned switch-over of one shard; LocalError says why not."""
        group = self.groups().get(number)
        if group is None:
            raise LocalError(f"shard {number} is no primary-backup shard of this cluster")
        if not group.is_leader:
            leader = group.status().leader
            if leader is None or leader == self._replicas.replica:
                raise LocalError(f"shard {number} has no primary right now; try again")
            return await self._replicas.messenger.request(leader, SwitchPair(number), PairSwitched)
        if group.is_counting_alone:
            raise LocalError(f"the backup of shard {number} is not in sync; try again")
        group.transfer(None)
        try:
            async with asyncio.timeout(_SWITCH_S):
                while group.is_leader or group.status().leader in (None, group.replica):
                    await group.role_changed.next()
        except TimeoutError:
            raise LocalError(f"shard {number} was not switched over within {_SWITCH_S:.0f} s") from None
        status = group.status()
        return PairSwitched(number, int(status.term), str(status.leader))

    def shown(self, shard: "Shard") -> dict[str, Any]:
        """For people: who is what, as this node sees it."""
        pair = self._definitions.state.pairs.by_shard.get(shard.number)
        names = {r: m.name for r, m in self._definitions.state.members.members.items()}
        status = shard.group.status()
        primary = str(status.leader) if status.leader else pair.primary if pair else ""
        backup = None
        if pair is not None:
            backup = pair.backup if pair.primary == primary else pair.primary
        return {
            "primary": names.get(primary, primary),
            "backup": names.get(backup or "", backup),
            "in_sync": pair.is_in_sync if pair is not None else None,
            **(shard.shown() if isinstance(shard, FrameApp) else {}),
        }


def _no_backup(number: int) -> str:
    return f"shard {number} has no backup: what is lost with its node is lost; add a node to the cluster"


def _nothing() -> None:
    """Until the keeper of pairs listens."""


def _not_opened_here(number: int, last_index: int, term: int) -> None:
    """Until the node opens shards."""


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon(call)
