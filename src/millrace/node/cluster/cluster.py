"""Many nodes that are one broker: forming, joining, and bringing every group to where it belongs.

What is wanted stands in the meta group's state (`broker/meta/members.py`), the same on every node. Each node
then does its part: it keeps links to all members, opens the groups it takes part in, and where it leads a
group it moves the group's configuration toward what is wanted, one replica at a time. The leader of the meta
group also decides what is wanted when nodes come and go. A node that is merely silent is reported, never
removed."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from millrace.broker.entries.meta import DrainMember, InitCluster, PutMember, RemoveMember
from millrace.broker.meta import state as meta
from millrace.broker.meta.members import Member, Members
from millrace.broker.streams.stream import Stream
from millrace.errors import ConfigError, LocalError
from millrace.node.cluster.peers_file import read_level, read_peers, write_level, write_peers
from millrace.node.cluster.placement import Placement
from millrace.node.cluster.removal import Removal
from millrace.node.cluster.silence import Silence
from millrace.node.config import Address, Config
from millrace.node.groups.work_division import NodeWorkDivision
from millrace.node.pairs.pair_keeper import PairKeeper
from millrace.node.peers.messages import (
    AskMembership,
    Identity,
    Join,
    Joined,
    Membership,
    NodeMessage,
    PairSwitched,
    SwitchPair,
)
from millrace.node.replicas import waiting
from millrace.node.replicas.replicas import Replicas
from millrace.node.sessions.session_group import SessionGroup
from millrace.node.streams.definitions import Definitions
from millrace.node.streams.opening import Opening
from millrace.replication.contract import ReplicaId
from millrace.storage.disk import DiskFull
from millrace.version import LEVEL, LEVEL_MIN

log = logging.getLogger("millrace.cluster")

Answer = TypeVar("Answer")

_REVIEW_S = 0.25
_REVIEW_ALONE_S = 1.0
# A review looks at every group: with a thousand of them it comes once a second.
_REVIEW_GROUP_S = 0.00075
_JOIN_S = 60.0
_JOIN_QUIET_S = 2.0
_JOIN_PAUSE_S = 0.3
# A node that comes back tries the addresses of the configuration so often, unless it is served before.
_SEEK_PAUSE_S = 2.0
# How long a node that was dialed may take to say who it is.
_IDENTITY_S = 2.0
# Leaders are spread over the nodes once the cluster has been as it is for so long, and its leader has led for
# a while: after a failure nobody is moved twice. While a node is away nothing is calm for a good while.
_CALM_S = 10.0
_CALM_WITHOUT_ALL_S = 60.0
_LED_S = 5.0


class Cluster:
    """One node's part in the cluster."""

    def __init__(
        self,
        config: Config,
        replicas: Replicas,
        definitions: Definitions,
        opening: Opening,
        sessions: SessionGroup,
        pairs: PairKeeper,
        work: NodeWorkDivision,
        silence: Silence,
        placement: Placement,
        wall_us: Callable[[], int],
    ) -> None:
        self._config = config
        self._replicas = replicas
        self._definitions = definitions
        self._opening = opening
        self._sessions = sessions
        self._pairs = pairs
        self._work = work
        self._silence = silence
        self._placement = placement
        self._wall_us = wall_us
        self.removal = Removal(replicas, definitions)
        self._ports: Callable[[], dict[str, int]] = dict
        self._has_been_member = False
        self.joining = ""
        """For people: where this node asks to be taken in, and why it is not yet. Empty otherwise."""
        self._review_task: asyncio.Task[None] | None = None
        self._peers_written: dict[str, str] = {}
        self._level_written = 0
        self._unfit_told = ""
        # Of the other members, when this node last said its own.
        self._levels_heard: dict[str, int] = {}
        self._saying: asyncio.Task[None] | None = None
        self._scene: tuple[object, ...] = ()
        self._calm_since_s = 0.0
        # Group -> since when this node leads it.
        self._led_since_s: dict[int, float] = {}

    @property
    def members(self) -> Members:
        return self._definitions.state.members

    # ------------------------------------------------------------------------------------- forming

    async def begin(self, ports: Callable[[], dict[str, int]]) -> None:
        """Open the meta group: as its first node, as one that comes back, or as a newcomer that joins.

        All nodes may have the same list of addresses to join. The one whose own address comes first in it
        forms the cluster, once all the others have said that they belong to none.
        """
        self._ports = ports
        replicas = self._replicas
        replicas.why_not_linked = self._why_not_linked
        replicas.messenger.answer(Join, self._on_join)
        replicas.messenger.answer(AskMembership, self._on_ask_membership)
        replicas.messenger.answer(SwitchPair, self._on_switch)
        self._check_level()
        known = self._read_peers()
        replicas.has_peers = len(known) > 1
        seeds = [word.strip() for word in self._config.cluster.join.split(",") if word.strip()]
        self._has_been_member = replicas.exists(meta.META_GROUP) and bool(known or not seeds)
        if self._has_been_member:
            # A first start may have been cut short before it wrote down who founds; what is written stays.
            self._definitions.open(() if known else (replicas.replica,))
            self._want(known)
            await self._come_back(_addresses(seeds))
        elif seeds:
            # Also where an earlier attempt was cut short: whoever was taken in knows its peers.
            if replicas.links is None:
                raise ConfigError("to join a cluster a node needs --peer HOST:PORT")
            addresses, own = _addresses(seeds), Address.parse(self._myself().peer)
            others = [address for address in addresses if address != own]
            if addresses[0] == own and await self._may_form(others):
                self._definitions.open((replicas.replica,))
                await self._definitions.serving()
            else:
                self._definitions.open(())
                await self._join(others)
        else:
            self._definitions.open((replicas.replica,))
            await self._definitions.serving()
        await self._formed()
        replicas.cluster_id = self.members.cluster

    async def _formed(self) -> None:
        """Wait until the cluster is known here. Only a leader has applied everything that came before it, so
        only a leader may conclude that there is none yet, and make one."""
        while not self.members.cluster:
            if not self._definitions.group.is_leader:
                await self._definitions.next_change()
                continue
            replicas = self._replicas
            cluster = replicas.directory.identity.hex()[:16]
            await self._definitions.command(InitCluster(cluster, self._myself()))
            log.info("formed cluster %s", cluster)

    def take_in(self) -> None:
        """From now on take members into the groups led here. This node may wait for a group of which it is
        one voter and a newcomer the other, while the newcomer waits to be taken into the meta group."""
        self._repeat(self._approach)

    def run(self) -> None:
        """From now on keep everything where it belongs."""
        self._repeat(self._review)

    async def stop(self) -> None:
        for task in (self._review_task, self._saying):
            if task is not None:
                task.cancel()

    async def _come_back(self, seeds: list[Address]) -> None:
        """Wait until the meta group is served. The other nodes may all be elsewhere than they were, and then
        nobody finds anybody by what was written down: the addresses of the configuration are tried too."""
        seeking = asyncio.create_task(self._seek(seeds))
        try:
            await waiting.served(self._definitions.group)
        finally:
            seeking.cancel()
            await asyncio.gather(seeking, return_exceptions=True)

    async def _seek(self, seeds: list[Address]) -> None:
        links = self._replicas.links
        # Who answered there: a second link with one that is linked would replace the first.
        found: dict[Address, str] = {}
        while links is not None and seeds:
            await asyncio.sleep(_SEEK_PAUSE_S)
            for address in seeds:
                replica = found.get(address, "")
                if replica == self._replicas.replica or links.is_linked(replica):
                    continue
                with suppress(OSError, TimeoutError):
                    link = await links.connect(address)
                    await asyncio.wait_for(link.settled.wait(), _IDENTITY_S)
                    if link.identity is not None:
                        found[address] = link.identity.replica

    async def _may_form(self, others: list[Address]) -> bool:
        """Wait until all of them are known to belong to no cluster; false as soon as one does. A node that
        lost its data must not form a second cluster while those of the first are down."""
        deadline_s = asyncio.get_running_loop().time() + _JOIN_S
        while asyncio.get_running_loop().time() < deadline_s:
            reason = ""
            for address in others:
                try:
                    answer = await self._ask(address, AskMembership(), Membership)
                except (OSError, LocalError) as error:
                    reason = f"{address}: {error}"
                else:
                    if answer.belongs:
                        return False
            self.joining = ""
            if not reason:
                return True
            self.joining = f"forming a cluster, once all of its nodes have answered: {reason}"
            await asyncio.sleep(_JOIN_PAUSE_S)
        raise ConfigError(f"cannot form a cluster before all of its nodes have answered: {reason}")

    async def _join(self, addresses: list[Address]) -> None:
        """Ask any member to be taken in; it passes the request on to the leader [A5]."""
        began_s = asyncio.get_running_loop().time()
        deadline_s = began_s + _JOIN_S
        reason = told = "nobody answered"
        self.joining = f"joining the cluster at {', '.join(map(str, addresses))}"
        while asyncio.get_running_loop().time() < deadline_s:
            for address in addresses:
                try:
                    reply = await self._ask(address, Join(self._myself()), Joined)
                except (OSError, LocalError) as error:
                    reason = f"{address}: {error}"
                    # Nodes that are started together need not wait for each other in silence, nor cry.
                    is_late = asyncio.get_running_loop().time() > began_s + _JOIN_QUIET_S
                    if reason != told and is_late:
                        told = reason
                        log.warning("cannot join at %s, trying again: %s", address, error)
                    self.joining = f"joining the cluster at {reason}"
                    continue
                self._replicas.cluster_id = reply.cluster
                self._want(reply.members)
                await self._definitions.serving()
                await self._taken_in(deadline_s)
                log.info("joined cluster %s", reply.cluster)
                self.joining = ""
                return
            await asyncio.sleep(_JOIN_PAUSE_S)
        raise ConfigError(f"could not join: {reason}")

    async def _ask(self, address: Address, request: NodeMessage, kind: type[Answer]) -> Answer:
        links = self._replicas.links
        assert links is not None
        link = await links.connect(address)
        with suppress(TimeoutError):
            await asyncio.wait_for(link.settled.wait(), _IDENTITY_S)
        if link.identity is None:
            raise LocalError(
                link.refused_for
                or "the node there closed the link; both nodes need the same cluster.secret or secret_file, "
                "and certificates of the same authority in cluster.tls_*"
            )
        return await self._replicas.messenger.request(link.identity.replica, request, kind)

    async def _taken_in(self, deadline_s: float) -> None:
        """Serve only once caught up: our own membership is applied here."""
        try:
            async with asyncio.timeout_at(deadline_s):
                while self._replicas.replica not in self.members.members:
                    await self._definitions.next_change()
        except TimeoutError:
            raise ConfigError("joined, but did not catch up in time") from None

    def _myself(self) -> Member:
        ports = self._ports()
        listeners = self._config.listeners

        def public(name: str, address: Address | None) -> str:
            return "" if address is None or name not in ports else str(Address(address.host, ports[name]))

        return Member(
            replica=self._replicas.replica,
            name=self._config.node.id,
            host=self._config.node.host,
            peer=self._replicas.peer_address,
            level=LEVEL,
            mqtt=public("mqtt", listeners.mqtt),
            http=public("http", listeners.http),
            runs_pipelines=self._config.pipelines.run,
        )

    def _why_not_linked(self, identity: Identity) -> str:
        """Why a node may not link with this one; nothing where it may."""
        mine = self._replicas.cluster_id or self.members.cluster
        if not mine or not identity.cluster or identity.cluster == mine:
            return ""
        return (
            f"it has data of cluster {identity.cluster}, and this node has data of cluster {mine}. To take "
            "one of the two into the cluster of the other, stop it, remove its data directory, and start "
            "it with cluster.join. Its messages are lost then"
        )

    # -------------------------------------------------------------------------------------- review

    def _repeat(self, review: Callable[[], Awaitable[None]]) -> None:
        """In place of what was repeated before."""

        async def for_ever() -> None:
            while True:
                try:
                    await review()
                except LocalError as error:
                    log.debug("review: %s", error)
                except Exception:
                    # Without reviews nothing is linked, placed or led where it belongs any more.
                    log.exception("a review ended in the middle")
                await self._pause()

        if self._review_task is not None:
            self._review_task.cancel()
        self._review_task = asyncio.get_running_loop().create_task(for_ever())

    async def _pause(self) -> None:
        """Until the next review. A node alone has nobody to watch, and one with many groups much to look at:
        these wait longer, unless the definitions change."""
        seen = self._definitions.group.applied
        await asyncio.sleep(_REVIEW_S)
        is_alone = len(self.members.members) == 1
        longer_s = _REVIEW_ALONE_S - _REVIEW_S if is_alone else 0
        longer_s += _REVIEW_GROUP_S * len(self._replicas.groups)
        if self._definitions.group.applied == seen:
            with suppress(TimeoutError):
                async with asyncio.timeout(longer_s):
                    await self._definitions.next_change()

    async def _review(self) -> None:
        members = self.members
        counted = self._counted()
        self.removal.look(counted)
        mine = members.members.get(self._replicas.replica)
        if mine is not None and not self.removal.is_removed:
            self._say_again(mine)
        self._write_level()
        leaving = {replica: peer for replica, peer in self._peers_written.items() if replica in counted}
        self._want(leaving | {replica: member.peer for replica, member in members.members.items()})
        self._opening.reconcile()
        self._adopt_sessions()
        self._opening.say_again()
        self._work.divide()
        if self._definitions.group.is_leader:
            await self._placement.place()
            await self._pairs.review()
        self._pairs.appoint()
        await self._approach()
        self._spread_leaders()

    async def _approach(self) -> None:
        """Bring the groups led here one step closer to where they belong."""
        members = self.members
        everybody = tuple(members.members)
        for number, group in list(self._replicas.groups.items()):
            assignment = members.assignments.get(number)
            if assignment is not None and group.is_leader:
                others = tuple(r for r in everybody if r not in assignment.replicas)
                group.approach(assignment.replicas, others)

    def _spread_leaders(self) -> None:
        """Hand groups over to the nodes that should lead them, when nothing else is going on."""
        now_s = asyncio.get_running_loop().time()
        groups = self._replicas.groups
        led = {number for number, group in groups.items() if group.is_leader}
        self._led_since_s = {number: self._led_since_s.get(number, now_s) for number in led}
        members = self.members.members
        scene = (sorted((r, m.is_draining) for r, m in members.items()), sorted(self._silence.since_s))
        if scene != self._scene:
            self._scene, self._calm_since_s = scene, now_s
        calm_s = _CALM_WITHOUT_ALL_S if self._silence.since_s else _CALM_S
        is_calm = now_s - self._calm_since_s >= calm_s
        if len(members) == 1 or not is_calm or not self._placement.is_settled():
            return
        for number, replica in self.members.leaders(self._silence.since_s).items():
            if (
                number in led
                and number not in self._definitions.state.pairs.by_shard
                and replica != self._replicas.replica
                and now_s - self._led_since_s[number] >= _LED_S
                and groups[number].is_caught_up(replica)
            ):
                # Whether it works or not, it is not tried again at once.
                self._led_since_s[number] = now_s
                groups[number].transfer(ReplicaId(replica))
                return

    def _adopt_sessions(self) -> None:
        """The leader of the session group looks after the sessions of nodes that are not to be reached."""
        unreachable = self._silence.look()
        if self._sessions.group.is_leader:
            for replica in unreachable:
                self._sessions.adopt(replica, self._wall_us())

    def _state_of(self, member: Member) -> str:
        return self._silence.word_for(member.replica) or ("draining" if member.is_draining else "up")

    def _has_moved(self, mine: Member) -> bool:
        now = self._myself()
        said = ((now.name, mine.name), (now.peer, mine.peer), (now.mqtt, mine.mqtt), (now.http, mine.http))
        settings = (now.host, now.level, now.runs_pipelines)
        is_other = settings != (mine.host, mine.level, mine.runs_pipelines)
        return is_other or any(new and new != old for new, old in said)

    def _say_again(self, mine: Member) -> None:
        """Who this node is, and where, if that has changed, unless it would be refused. Also where another
        node has come or understands more: nodes before level 4 keep members without their levels, and leave
        that to their successors."""
        heard = {replica: one.level for replica, one in self.members.members.items() if one is not mine}
        if not self._has_moved(mine) and heard.items() <= self._levels_heard.items():
            return
        unfit = self.members.unfit(self._myself())
        if not unfit:
            if self._saying is None or self._saying.done():
                # Not waited for: without a majority there is more to do than this.
                self._saying = asyncio.create_task(self._say(heard))
        elif unfit != self._unfit_told:
            self._unfit_told = unfit
            log.error("%s", unfit)

    async def _say(self, heard: dict[str, int]) -> None:
        try:
            await self._definitions.command(PutMember(self._myself()))
        except LocalError as error:
            # With a later review again.
            log.debug("who this node is could not be said: %s", error)
            return
        self._levels_heard = heard

    # -------------------------------------------------------------------------------------- levels

    def _check_level(self) -> None:
        """What the members of this cluster agreed on may be in its logs."""
        replicas = self._replicas
        if replicas.exists(meta.META_GROUP):
            self._level_written = read_level(replicas.disk, replicas.directory)
        if self._level_written > LEVEL:
            raise ConfigError(
                f"{self._config.node.data} belongs to a cluster that uses level {self._level_written}; this "
                f"release understands level {LEVEL}. Start the release that the other nodes run; nothing was "
                "changed"
            )
        if replicas.links is not None:
            replicas.links.lowest_level = lambda: max(LEVEL_MIN, self._level_written, self.members.level)

    def _write_level(self) -> None:
        level = self.members.level
        if level <= self._level_written or not self.members.cluster:
            return
        try:
            write_level(self._replicas.disk, self._replicas.directory, level)
        except DiskFull as error:
            # With the next review again.
            log.debug("the level of the cluster is not written: %s", error)
            return
        self._level_written = level
        if self._has_been_member:
            log.info("all nodes understand level %d: the cluster uses it from now on", level)

    # --------------------------------------------------------------------------------------- peers

    def _counted(self) -> set[str]:
        """The nodes that a group here counts on, also those that were removed: until its configuration lets
        them go, one of them may lead it, and its vote may be needed."""
        members = {group.config.members for group in self._replicas.groups.values()}
        return {str(replica) for group in members for replica in group}

    def _want(self, peers: dict[str, str]) -> None:
        released_by = self.removal.released_by
        peers = {r: peer for r, peer in peers.items() if _can_be_dialed(peer) and r not in released_by}
        if self._replicas.links is not None:
            self._replicas.links.want({replica: Address.parse(peer) for replica, peer in peers.items()})
        if peers and peers != self._peers_written:
            # Where the others are, for a start at which nobody can be asked.
            try:
                write_peers(self._replicas.disk, self._replicas.directory, peers)
                self._peers_written = peers
            except DiskFull as error:
                # With the next review again, which has more to do than this.
                log.debug("where the other nodes are is not written: %s", error)

    def address_of(self, replica: str) -> str:
        """Where a node was when this one last heard of it; empty for one that it does not know."""
        return self._peers_written.get(replica, "")

    def _read_peers(self) -> dict[str, str]:
        if not self._replicas.exists(meta.META_GROUP):
            return {}
        return read_peers(self._replicas.disk, self._replicas.directory)

    # ------------------------------------------------------------------------------------ requests

    async def _on_ask_membership(self, replica: str, request: AskMembership) -> Membership:
        return Membership(self._has_been_member or bool(self.members.cluster))

    async def _on_join(self, replica: str, request: Join) -> Joined:
        if not (self._has_been_member or self.members.cluster):
            raise LocalError("that node belongs to no cluster yet")
        member = request.member
        if not _can_be_dialed(member.peer):
            raise LocalError(
                f"node {member.name} cannot be reached at {member.peer!r}: that is not HOST:PORT"
            )
        await self._definitions.command(PutMember(member))
        members = {replica: member.peer for replica, member in self.members.members.items()}
        return Joined(self.members.cluster, members)

    async def _on_switch(self, replica: str, request: SwitchPair) -> PairSwitched:
        return await self._pairs.switch(request.shard)

    # ------------------------------------------------------------------------------------ commands

    async def drain(self, name: str, is_draining: bool) -> None:
        member = self.members.by_name(name)
        await self._definitions.command(DrainMember(member.replica, is_draining))

    async def remove(self, name: str) -> None:
        member = self.members.by_name(name)
        await self._definitions.command(RemoveMember(member.replica))

    def status(self) -> dict[str, Any]:
        """Members as this node sees them."""
        leader = self._definitions.group.status().leader
        leads = Counter(str(group.status().leader) for group in self._replicas.groups.values())
        rows = [
            {
                "node": member.name,
                "replica": replica,
                "peer": member.peer,
                "mqtt": member.mqtt,
                "http": member.http,
                "state": self._state_of(member),
                "host": member.host,
                "silent_s": round(self._silence.silent_s(replica), 1),
                "leads_meta": replica == leader,
                "leads": leads[replica],
            }
            for replica, member in sorted(self.members.members.items(), key=lambda item: item[1].name)
        ]
        return {
            "cluster": self.members.cluster,
            "members": rows,
            "is_settled": self.is_settled(),
            "is_spread": self._is_spread(),
        }

    def states(self) -> dict[str, str]:
        """Of each member, by replica: up, draining, suspect or unreachable."""
        return {replica: self._state_of(member) for replica, member in self.members.members.items()}

    def is_settled(self) -> bool:
        """Whether every group is kept by the nodes that should keep it: before that, losing one node may be
        losing a majority."""
        return self._placement.is_settled()

    def _is_spread(self) -> bool:
        """Whether every group is led by the node that should lead it."""
        groups = self._replicas.groups
        wanted = self.members.leaders(self._silence.since_s)
        return all(groups[n].status().leader == replica for n, replica in wanted.items() if n in groups)

    def groups(self) -> list[dict[str, Any]]:
        """Every replication group as this node sees it."""
        names = {replica: member.name for replica, member in self.members.members.items()}
        rows = []
        shards = self._definitions.state.shards()
        for number, group in sorted(self._replicas.groups.items()):
            status = group.status()
            lag = {names.get(p.replica, p.replica): int(status.last - p.match) for p in status.peers}
            rows.append(
                {
                    "group": number,
                    "keeps": keeps(number, shards),
                    "role": status.role,
                    "term": int(status.term),
                    "leader": names.get(status.leader, status.leader) if status.leader else None,
                    "commit": int(status.commit),
                    "applied": int(status.applied),
                    "last": int(status.last),
                    "voters": [names.get(v, v) for v in status.config.voters],
                    "learners": [names.get(v, v) for v in status.config.learners],
                    "lag": lag,
                    "pending": group.pending_count,
                }
            )
        return rows


def _addresses(seeds: list[str]) -> list[Address]:
    try:
        return [Address.parse(seed) for seed in seeds]
    except ValueError as error:
        raise ConfigError(f"cluster.join: {error}") from None


def _can_be_dialed(peer: str) -> bool:
    try:
        Address.parse(peer)
    except ValueError:
        return False
    return True


def keeps(number: int, shards: Mapping[int, Stream]) -> str:
    """What a group is for, in words."""
    if number == meta.META_GROUP:
        return "cluster"
    if number == meta.SESSION_GROUP:
        return "sessions"
    stream = shards.get(number)
    return "shard" if stream is None else f"stream {stream.spec.name}"
