"""A cluster where nothing happens by itself: every tick, message, sync and crash is a line of a story.

Messages wait in `mail` until they are delivered or dropped; writes wait until they are synced, at once by
default. Election time-outs are given per replica. The checkers of `Cluster` stay on.
"""

import random
from collections.abc import Iterable
from typing import TypeAlias

from millrace.driver.effects import Runner
from millrace.replication.contract import (
    ChangeKind,
    Commit,
    Entry,
    EntryKind,
    HardState,
    PeerBody,
    PeerMessage,
    Repaired,
    ReplicaId,
    Reply,
    RoleChanged,
    Tick,
)
from millrace.replication.raft.messages import Append, AppendReject, AppendReply, VoteReply, VoteRequest
from millrace.replication.raft.options import RaftOptions
from millrace.types import Index, Term
from unit.replication.cluster import SMALL, Cluster, Node, Violation

MESSAGES_MAX = 5000
Letter: TypeAlias = tuple[ReplicaId, ReplicaId, PeerBody]


class FixedTimeout(random.Random):
    """Draws the same election time-out every time."""

    def __init__(self, ticks: int) -> None:
        super().__init__(0)
        self._ticks = ticks

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return self._ticks


class Stage(Cluster):
    def __init__(
        self,
        voters: int,
        *,
        spares: int = 0,
        timeouts: dict[str, int] | None = None,
        options: RaftOptions = SMALL,
    ) -> None:
        self.timeouts = timeouts or {}
        self.mail: list[Letter] = []
        self.held: list[Letter] = []
        self.stalled: set[ReplicaId] = set()
        self.is_tracing = False
        self.lines: list[str] = []
        self.requests: dict[int, str] = {}
        super().__init__(voters, spares=spares, options=options)

    # ---------------------------------------------------------------------------- instead of chance

    def make_rng(self, name: ReplicaId) -> random.Random:
        return FixedTimeout(self.timeouts.get(name, 10 + int(name[1:])))

    def _schedule_tick(self, name: ReplicaId, epoch: int) -> None:
        pass

    def schedule_sync(self, node: Node, epoch: int, number: int) -> None:
        pass

    def send(self, source: ReplicaId, to: ReplicaId, body: PeerBody) -> None:
        self.mail.append((source, to, body))
        if self.is_tracing:
            self.lines.append(f"  {source} -> {to} {describe(body)}")

    def runners(self, node: Node) -> dict[type, Runner]:
        def commit(effect: Commit) -> None:
            self.lines.append(f"{node.name} commits {effect.index}")
            assert node.driver is not None
            node.driver.apply_to(effect.index)

        def repaired(effect: Repaired) -> None:
            self.lines.append(f"{node.name} is repaired")
            node.repaired()

        return {**super().runners(node), Commit: commit, Repaired: repaired}

    def on_role_changed(self, node: Node, change: RoleChanged) -> None:
        serving = ", serving" if change.serving else ""
        self.lines.append(f"{node.name} {change.role} in term {change.term}, leader {change.leader}{serving}")
        super().on_role_changed(node, change)

    def on_reply(self, node: Node, reply: Reply) -> None:
        self.lines.append(f"{node.name} answers {describe(reply.outcome)}")
        super().on_reply(node, reply)

    # ------------------------------------------------------------------------------------- commands

    def tick(self, names: Iterable[ReplicaId], count: int = 1, *, do_sync: bool = True) -> None:
        chosen = list(names)
        for _ in range(count):
            for name in chosen:
                if self.nodes[name].is_up:
                    self.step(name, Tick())
            if do_sync:
                self.sync()

    def sync(self, name: ReplicaId | None = None) -> None:
        """Finish writes: of one replica, or of all whose disk is not stalled."""
        for node in self.nodes.values():
            if node.name == name or (name is None and node.name not in self.stalled):
                while node.is_up and node.writes:
                    self._synced(node, node.epoch, node.writes[0][0].number)

    def finish(self, name: ReplicaId) -> None:
        """Finish the oldest write of a stalled disk."""
        node = self.nodes[name]
        self._synced(node, node.epoch, node.writes[0][0].number)

    def deliver(
        self,
        source: ReplicaId | None = None,
        to: ReplicaId | None = None,
        kind: str | None = None,
        count: int = MESSAGES_MAX,
        *,
        do_sync: bool = True,
    ) -> int:
        """Deliver what is in the mail now (not what it causes), as far as it matches, oldest first."""
        chosen = self._take(source, to, kind, count)
        for sender, target, body in chosen:
            self._deliver(sender, target, body)
            if do_sync:
                self.sync()
        return len(chosen)

    def drop(self, source: ReplicaId | None, to: ReplicaId | None, kind: str | None) -> None:
        self._take(source, to, kind, MESSAGES_MAX)

    def hold(self, source: ReplicaId | None, to: ReplicaId | None, kind: str | None) -> None:
        self.held += self._take(source, to, kind, MESSAGES_MAX)

    def copy(self, source: ReplicaId | None, to: ReplicaId | None, kind: str | None) -> None:
        mail = list(self.mail)
        self.hold(source, to, kind)
        self.mail = mail

    def release(self) -> None:
        held, self.held = self.held, []
        for source, to, body in held:
            self._deliver(source, to, body)
            self.sync()

    def _take(
        self, source: ReplicaId | None, to: ReplicaId | None, kind: str | None, count: int
    ) -> list[Letter]:
        chosen: list[Letter] = []
        rest: list[Letter] = []
        for letter in self.mail:
            is_chosen = (
                len(chosen) < count
                and source in (None, letter[0])
                and to in (None, letter[1])
                and kind in (None, type(letter[2]).__name__)
            )
            (chosen if is_chosen else rest).append(letter)
        self.mail = rest
        return chosen

    def _deliver(self, source: ReplicaId, to: ReplicaId, body: PeerBody) -> None:
        node = self.nodes[to]
        if node.is_up and (source, to) not in self.cut:
            self.step(to, PeerMessage(sender=source, body=body))

    def quiet(self) -> None:
        """Deliver and sync until nothing is in the mail."""
        for _ in range(MESSAGES_MAX):
            self.sync()
            if not self.mail:
                return
            self.deliver(count=1)
        raise Violation("the replicas never stop talking")

    def rounds(self, count: int) -> None:
        """Time passes in a network that works, as far as it is not cut."""
        for _ in range(count):
            self.tick(list(self.nodes))
            self.quiet()

    def settle(self) -> None:
        self.heal()
        self.held, self.stalled = [], set()
        for name, node in self.nodes.items():
            if not node.is_up:
                self.start(name)
        before = self.acknowledged
        for _ in range(30):
            self.rounds(10)
            leader = self.leader()
            if leader is not None:
                self.propose(leader)
                self.quiet()
            if self.acknowledged > before and self._is_even():
                return
        raise Violation(f"no progress after healing: {self.describe()}")

    def require_leader(self, names: Iterable[ReplicaId]) -> None:
        if not any(self.nodes[name].is_up and self.machine(name).status().serving for name in names):
            raise Violation(f"none of them leads: {self.describe()}")

    def require_agreement(self) -> None:
        statuses = [self.machine(name).status() for name in self.nodes]
        if {(one.last, one.commit) for one in statuses} != {(statuses[0].last, statuses[0].last)}:
            raise Violation(f"they do not agree on all there is: {self.describe()}")

    def lose_writes(self, name: ReplicaId) -> None:
        """Crash, and nothing that was being written reached the disk."""
        node = self.nodes[name]
        node.writes = []
        self.crash(name)

    def elect(self, name: ReplicaId | None = None) -> ReplicaId:
        """Make this replica the leader in a network that works."""
        if name is None:
            return super().elect()
        for _ in range(40):
            if self.nodes[name].machine is not None and self.machine(name).status().serving:
                return name
            self.tick([name])
            self.quiet()
        raise Violation(f"{name} does not become leader")

    def set_log(self, name: ReplicaId, terms: list[int], term: int, vote: ReplicaId | None = None) -> None:
        """Start this replica with a log of these terms (index 1 on) on its disk."""
        node = self.nodes[name]
        if node.is_up:
            self.lose_writes(name)
        node.durable.log = [
            Entry(
                term=Term(each),
                index=Index(position),
                kind=EntryKind.DATA,
                payload=f"{position} of term {each}".encode(),
            )
            for position, each in enumerate(terms, 1)
        ]
        node.durable.hard_state = HardState(term=Term(term), vote=vote)
        self.start(name)

    def logs(self) -> list[str]:
        lines = []
        for node in self.nodes.values():
            if node.machine is None:
                lines.append(f"{node.name} down")
                continue
            status = node.machine.status()
            first = f"(to {node.view.first - 1} in a snapshot) " if node.view.first > 1 else ""
            terms = " ".join(str(entry.term) for entry in node.view.log)
            line = f"{node.name} {status.role} term {status.term} commit {status.commit} log {first}{terms}"
            lines.append(line.rstrip())
        return lines


def describe(value: object) -> str:
    """One line for a message or an outcome."""
    match value:
        case VoteRequest():
            kind = "pre-vote" if value.is_pre else "transfer vote" if value.is_transfer else "vote"
            return f"{kind}? term {value.term} last {value.last_index}/{value.last_term}"
        case VoteReply():
            kind = "pre-vote" if value.is_pre else "vote"
            return f"{kind} {'granted' if value.is_granted else 'refused'} term {value.term}"
        case Append():
            entries = " ".join(f"{entry.index}/{entry.term}" for entry in value.entries)
            return (
                f"append term {value.term} after {value.prev_index}/{value.prev_term}"
                f" commit {value.commit} [{entries}]"
            )
        case AppendReply():
            return f"matched {value.matched} term {value.term}"
        case AppendReject():
            return (
                f"rejected after {value.prev_index} hint {value.hint_index}/{value.hint_term}"
                f" term {value.term}"
            )
        case _:
            name = type(value).__name__
            slots = getattr(value, "__struct_fields__", ())
            shown = [(slot, getattr(value, slot)) for slot in slots if slot not in ("data", "snapshot")]
            shown = [(slot, item) for slot, item in shown if item is not False]
            return " ".join([name, *(f"{slot}={_short(item)}" for slot, item in shown)])


def _short(item: object) -> str:
    return str(getattr(item, "value", item))


CHANGES = {
    "learner": ChangeKind.ADD_LEARNER,
    "promote": ChangeKind.PROMOTE,
    "demote": ChangeKind.DEMOTE,
    "remove": ChangeKind.REMOVE,
}
