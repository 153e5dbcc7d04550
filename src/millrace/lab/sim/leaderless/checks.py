"""What a leaderless stream promises, checked from outside: by what disks held and what clients saw.

- One content: an entry of a log is the same wherever and whenever it is stored, and logs have no gaps.
- Acknowledged means on as many disks as the level says, at that moment, and is never lost afterwards.
- A message is removed only when every group is done with it.
- A group gives a message to one member at a time, and not again once it is acknowledged, while nodes reach
  each other, however slow; a node that was cut off takes no more work by what it knew before. Across faults
  every message is acknowledged by every group at least once.
- Nodes that talk again never give what one of them knew to be done.
- A node that answered for a division goes by none before it.
- After healing all nodes hold the same logs and the same groups, clients and marks, and go by one division.
"""

from collections.abc import Sequence
from typing import Any

from millrace.lab.sim.leaderless.host import Host, Member
from millrace.lab.sim.leaderless.plan import LeaderlessPlan
from millrace.lab.sim.violation import Violation
from millrace.replication.leaderless.messages import (
    NEVER,
    Acknowledged,
    Generation,
    Level,
    LogEntry,
    Origin,
    PersistLog,
    Span,
)
from millrace.replication.leaderless.state import LeaderlessGroup, Ranges

Block = tuple[int, bytes]
Place = tuple[Origin, int]


class LeaderlessChecks:
    """Implements `Watch`. Hosts and groups are the world's lists, which grow."""

    def __init__(self, plan: LeaderlessPlan, hosts: Sequence[Host], groups: Sequence[str]) -> None:
        self._plan = plan
        self._hosts = hosts
        self._groups = groups
        self._content: dict[Place, LogEntry] = {}
        self._offsets: dict[Place, int] = {}
        self._disks: dict[Place, set[str]] = {}
        """Whoever had the entry on disk at some time."""
        self._at: dict[bytes, Place] = {}
        self._acknowledged: dict[bytes, Place] = {}
        self._holders: dict[tuple[str, Origin, int], tuple[str, Host | None]] = {}
        self._settlers: dict[tuple[str, Origin, int], Host | None] = {}
        self._excused: set[tuple[str, Origin, int]] = set()
        self._marked: dict[str, dict[Origin, Ranges]] = {}
        """What some node knew to be done when all went by one division; nothing was lost since."""
        self.done: dict[str, dict[Origin, Ranges]] = {}
        self._ends: dict[Origin, int] = {}
        self._starts: dict[str, dict[Origin, int] | None] = {}
        self._makers: dict[str, Host] = {}
        """Whoever was asked to make a group and has not answered yet."""
        self._in: dict[tuple[str, str], tuple[bool, bool]] = {}
        self._asked: dict[tuple[str, str], int] = {}
        self._promised: dict[tuple[str, int, str], Generation] = {}
        self._losers: set[str] = set()
        self.is_strict = False
        self.has_lost_a_disk = False
        self.operations = self.given_count = 0

    # ------------------------------------------------------------------------------------------ logs

    def durable(self, host: Host, persist: PersistLog) -> None:
        for position, entry in enumerate(persist.entries):
            place = (persist.origin, persist.first_index + position)
            known = self._content.setdefault(place, entry)
            if known != entry:
                raise Violation("one content", f"{place} is {entry.payload!r} and {known.payload!r}")
            self._disks.setdefault(place, set()).add(host.name)

    def stored(self, host: Host, origin: Origin, first: int, base: int, entries: Sequence[LogEntry]) -> None:
        if not entries:
            raise Violation("order", f"{host.name} stored {origin} from {first} on twice or not at all")
        for position, entry in enumerate(entries):
            place = (origin, first + position)
            if self._content.get(place) != entry:
                raise Violation("order", f"{host.name} holds something else at {place}")
            if self._offsets.setdefault(place, base) != base:
                raise Violation("offsets", f"{place} begins at {base} and at {self._offsets[place]}")
            base += entry.count
        self._ends[origin] = max(self._ends.get(origin, 0), base)

    def lost_disk(self, host: Host) -> None:
        self.has_lost_a_disk = True
        self._losers.add(host.name)

    def may_lose(self, host: Host) -> bool:
        """Whether everything acknowledged is on another disk."""
        for origin, index in self._acknowledged.values():
            others = [h for h in self._hosts if h is not host]
            if not any(_holds(other, origin, index) for other in others):
                return False
        return True

    # ------------------------------------------------------------------------------------ publishers

    def placed(self, origin: Origin, first: int, offset: int, blocks: tuple[Block, ...]) -> None:
        for position, (_, payload) in enumerate(blocks):
            self._at[payload] = (origin, first + position)

    def acknowledged(self, blocks: tuple[Block, ...]) -> None:
        self.operations += 1
        others = len(self._hosts) - 1
        level = self._plan.level
        wanted = {Level.LOCAL: 0, Level.ONE: 1, Level.MAJORITY: (others + 1) // 2, Level.ALL: others}[level]
        for _, payload in blocks:
            place = self._at[payload]
            copies = len(self._disks.get(place, ()))
            if copies < min(wanted, others) + 1:
                raise Violation(
                    "acknowledged too early", f"{place} is on {copies} disks, level {level.value}"
                )
            if level is not Level.LOCAL or self._plan.has_disks:
                self._acknowledged[payload] = place

    # ---------------------------------------------------------------------------------------- groups

    def subscribing(self, consumer: Member, host: Host) -> None:
        """A group that is made now begins where the logs of its maker end."""
        machine = host.machine
        if consumer.group in self._starts or machine is None:
            return
        self._makers[consumer.group] = host
        if host.name in self._losers and not consumer.from_start:
            # It does not know of logs that it once held, and others may have removed what it had received.
            self._starts[consumer.group] = None
            return
        starts: dict[Origin, int] = {}
        if not consumer.from_start:
            starts = {origin: position.offset for origin, position in machine.positions.items()}
        self._starts[consumer.group] = starts

    def subscribed(self, consumer: Member, host: Host, answer: Any) -> None:
        is_sure = isinstance(answer, Acknowledged)
        self._in[consumer.group, consumer.name] = (True, is_sure)
        if self._makers.get(consumer.group) is host:
            del self._makers[consumer.group]
            if not is_sure:
                # Refused: nobody has made it yet.
                del self._starts[consumer.group]

    def crashed(self, host: Host) -> None:
        """What it was asked and had not answered is open: its disk may have the group or not."""
        for group in [group for group, maker in self._makers.items() if maker is host]:
            del self._makers[group]
            self.forget_start(group)

    def asks(self, group: str, client: str) -> int:
        """A client asks to be in or out, perhaps before it was answered elsewhere. Until it is told, either
        outcome is right."""
        self._in.pop((group, client), None)
        asked = self._asked[group, client] = self._asked.get((group, client), 0) + 1
        return asked

    def told(self, group: str, client: str, asked: int, is_in: bool, answer: Any) -> None:
        """What it asked last decides. Another node's slower disk may answer what it asked before that only
        now: stamps order what was asked, and this answer says nothing of where the client is."""
        if asked == self._asked[group, client]:
            self._in[group, client] = (is_in, isinstance(answer, Acknowledged))

    def has_start(self, name: str, group: LeaderlessGroup) -> bool:
        """Whether the group, as somebody knows it, begins where it was made, or before."""
        starts = self._starts.get(name) or {}
        return all(offset <= starts.get(origin, 0) for origin, offset in group.starts.items())

    def forget_start(self, group: str) -> None:
        """Whoever made the group may have lost it: it was made again, who knows where."""
        self._starts[group] = None

    def given(self, consumer: Member, span: Span) -> None:
        self.given_count += 1
        key = (consumer.group, span.origin, span.start)
        holder, host = self._holders.get(key, (None, self._settlers.get(key)))
        if host is not None and host is not consumer.host and host.is_hesitant:
            # Who stood still for long was cut off: what it has in hand, or has said nothing of yet, goes to
            # others. The other way round there is no excuse.
            self._excused.add(key)
        if self.is_strict and key not in self._excused:
            if holder is not None:
                raise Violation("once per group", f"{key} is with {holder} and goes to {consumer.name}")
            if span.start in self._done(consumer.group, span.origin):
                raise Violation("once per group", f"{key} was acknowledged and goes to {consumer.name}")
        if span.start in self._marked.get(consumer.group, {}).get(span.origin, ()):
            raise Violation("given again", f"{key} was marked everywhere and goes to {consumer.name}")
        self._holders[key] = (consumer.name, consumer.host)

    def remember_marks(self) -> None:
        """Nodes that talk with each other never give again what one of them knows to be done."""
        for host in self._hosts:
            for name in self._groups:
                group = host.machine.state.find(name) if host.machine is not None else None
                for origin, marks in group.marks.items() if group is not None else ():
                    known = self._marked.setdefault(name, {}).setdefault(origin, Ranges())
                    for start, end in marks:
                        known.add(start, end)

    def forget_marks(self) -> None:
        self._marked.clear()

    def answered(self, host: Host, group: str, generation: Generation) -> None:
        key = (host.name, host.boot, group)
        self._promised[key] = max(generation, self._promised.get(key, NEVER))

    def divided(self, host: Host, group: str, generation: Generation) -> None:
        """Who answered for a generation goes by none before it."""
        promised = self._promised.get((host.name, host.boot, group), NEVER)
        if generation < promised:
            raise Violation("generations", f"{host.name} answered {promised} and goes by {generation}")
        self._promised[host.name, host.boot, group] = generation

    def released(self, group: str, held: list[Span]) -> None:
        for span in held:
            self._holders.pop((group, span.origin, span.start), None)

    def settled(self, group: str, span: Span) -> None:
        key = (group, span.origin, span.start)
        _, self._settlers[key] = self._holders.pop(key, ("", None))
        self._done(group, span.origin).add(span.start, span.end)

    def _done(self, group: str, origin: Origin) -> Ranges:
        return self.done.setdefault(group, {}).setdefault(origin, Ranges())

    def removed(self, host: Host, origin: Origin, offset: int) -> None:
        for other in self._hosts:
            if other.name not in self._losers and other.disk.end(origin).offset < offset:
                raise Violation(
                    "removal", f"{host.name} removes {origin} below {offset}, {other.name} has not got it"
                )
        for group, starts in self._starts.items():
            if starts is None:
                continue
            low = self._done(group, origin).after(starts.get(origin, 0))
            if low < offset:
                raise Violation(
                    "removal", f"{host.name} removes {origin} below {offset}, {group} is done below {low}"
                )

    # -------------------------------------------------------------------------------------- at the end

    def is_converged(self) -> bool:
        machines = [host.machine for host in self._hosts]
        first = machines[0]
        if first is None or any(machine is None or machine.writes_pending for machine in machines):
            return False
        return all(
            machine is not None
            and machine.positions == first.positions
            and machine.state.digest() == first.state.digest()
            for machine in machines
        )

    def is_divided(self) -> bool:
        """Every group with members goes by one division, which names the nodes that have some."""
        for group in self._groups:
            divisions = [host.machine.work_division.division(group) for host in self._hosts if host.machine]
            with_members = {h.name for h in self._hosts if h.consumers.get(group)}
            if not with_members:
                continue
            # One that restarted and has no members is not asked again: its part is known.
            asked = [division for division in divisions if division.promised != NEVER]
            if not asked or not all(division.is_in_force for division in asked):
                return False
            installed = asked[0].installed
            if installed is None or any(division.installed != installed for division in asked):
                return False
            if set(installed.order) != with_members or set(installed.participants) != {
                host.name for host in self._hosts
            }:
                return False
        return True

    def is_drained(self) -> bool:
        """Every group is done with everything, by its own marks at every node."""
        for host in self._hosts:
            machine = host.machine
            if machine is None:
                return False
            for name in self._groups:
                group = machine.state.find(name)
                if group is None:
                    return False
                if any(machine.low(group, o) < position.offset for o, position in machine.positions.items()):
                    return False
        return True

    def at_the_end(self) -> None:
        hosts = self._hosts
        for payload, (origin, index) in self._acknowledged.items():
            for host in hosts:
                if not _holds(host, origin, index):
                    raise Violation(
                        "acknowledged and lost", f"{payload!r} at {index} of {origin}: {host.name}"
                    )
        self._check_delivered()
        self._check_clients()

    def _check_delivered(self) -> None:
        """Whatever a node holds was acknowledged by a member of every group that began before it."""
        some = self._hosts[0].machine
        assert some is not None
        for group, starts in self._starts.items():
            if starts is None or group not in self._groups:
                continue
            for origin, position in some.positions.items():
                low = self._done(group, origin).after(starts.get(origin, 0))
                if low < position.offset:
                    raise Violation("at least once", f"{group} never saw {low} of {origin}")

    def _check_clients(self) -> None:
        if self.has_lost_a_disk:
            return
        for (group, client), (is_in, is_sure) in sorted(self._in.items()):
            for host in self._hosts:
                assert host.machine is not None
                found = host.machine.state.find(group)
                if is_sure and found is not None and (client in found.client_names()) != is_in:
                    raise Violation("subscriptions", f"{client} in {group}: {not is_in} at {host.name}")


def _holds(host: Host, origin: Origin, index: int) -> bool:
    """On its disk, or removed because everybody was done with it."""
    return index <= host.disk.end(origin).entry
