"""REORG: which node gives a message of a group to one of its members, without anybody in charge.

A *division* of a group is an order of nodes under a generation. A message goes to the node whose place is the
hash of the message modulo their number. A node that finds the division wrong (it got its first member or lost
its last, a node of the division is silent or has restarted, a peer goes by another generation) opens a
session: it asks every node it can talk with; each draws a random number if it has members and stops taking
work; sorting the numbers gives the order. Sessions at the same time resolve by their generations: whoever
answered one ignores those below it, and an initiator that answers a higher one gives up its own.

Nothing is given twice or forgotten while nodes reach each other [rule 26], because an answer tells
what is in the hands of members, which stays there, and how far the answering node's logs reach: nobody takes
work under the new division before it holds every mark that was made under the old one.

A node that is cut off takes no part and goes on by itself: across a partition each side delivers. Slow is not
cut off (see `contacts.py`): nodes that have only just met wait for each other, and a node takes work
only under a lease from every participant, so that nobody who was left out without knowing it (stopped,
starved) goes on by the old division. As soon as nodes that were apart hear each other again they stop, and
divide anew.
"""

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from zlib import crc32

from millrace.limits import LEADERLESS_SCAN_MAX, LEADERLESS_TAKE_MAX
from millrace.replication.contract import ReplicaId, Send
from millrace.replication.leaderless.contacts import Contacts
from millrace.replication.leaderless.held_logs import HeldLogs
from millrace.replication.leaderless.messages import (
    NEVER,
    NOWHERE,
    Answer,
    Divided,
    Generation,
    Holding,
    Install,
    LeaderlessEffect,
    Origin,
    Positions,
    Reorg,
    Span,
    Spans,
    Superseded,
)
from millrace.replication.leaderless.state import ControlState, Ranges

DELAY_TICKS = 3
"""A reason must last so long before a session: several changes at once make one session."""
ASK_AGAIN_TICKS = 4
STUCK_TICKS = 16
"""A session that brought nothing by then is tried again by whoever waits for it."""
ODD_PULSES = 2
"""So often a peer may name another division before that is a reason."""
IDLE_TICKS = 1_200
"""For so long the division of a group that is gone is remembered: every pulse names it."""


def place_of(origin: Origin, offset: int, nodes: int) -> int:
    """Whose turn a message is among so many nodes [D5]."""
    seed = crc32(f"{origin.node}/{origin.incarnation}".encode())
    return crc32(offset.to_bytes(8, "little"), seed) % nodes


class DivisionState(Enum):
    """What a node goes by in one group."""

    UNDIVIDED = "nothing was ever divided"
    ASKING = "a session of this node's own is open"
    PROMISED = "a session was answered, and its result is not here"
    IN_FORCE = "a division is in force"


TRANSITIONS: dict[DivisionState, frozenset[DivisionState]] = {
    DivisionState.UNDIVIDED: frozenset({DivisionState.PROMISED}),
    DivisionState.PROMISED: frozenset({DivisionState.PROMISED, DivisionState.ASKING, DivisionState.IN_FORCE}),
    DivisionState.ASKING: frozenset({DivisionState.PROMISED, DivisionState.IN_FORCE}),
    DivisionState.IN_FORCE: frozenset({DivisionState.PROMISED}),
}
"""A node that opens a session promises itself first, like anybody else who answers. Nothing leads back to
UNDIVIDED: the division of a group that is gone is forgotten whole."""


@dataclass(slots=True)
class Session:
    generation: Generation
    participants: frozenset[str]
    order: tuple[str, ...]
    """Chosen by somebody; empty where the numbers decide."""
    answers: dict[str, Answer] = field(default_factory=dict)
    quiet_ticks: int = 0


@dataclass(slots=True)
class Division:
    """What this node knows and does about one group."""

    state: DivisionState = DivisionState.UNDIVIDED
    connected: int = 0
    promised: Generation = NEVER
    number: int | None = None
    counter_seen: int = 0
    installed: Install | None = None
    is_ready: bool = False
    """It holds all that the installed division needs."""
    session: Session | None = None
    waiting_ticks: int = 0
    idle_ticks: int = 0
    delay_ticks: int | None = None
    odd: dict[str, int] = field(default_factory=dict)
    # Work under the installed division.
    elsewhere: dict[Origin, Ranges] = field(default_factory=dict)
    cursors: dict[Origin, int] = field(default_factory=dict)
    starts: object = None
    """The group's, as the cursors know them."""
    again: list[Span] = field(default_factory=list)
    gone: dict[Origin, int] = field(default_factory=dict)
    """Up to where this node said what is not there any more."""
    in_flight: dict[Origin, Ranges] = field(default_factory=dict)

    def enter(self, state: DivisionState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state.name} cannot become {state.name}"
        self.state = state

    @property
    def is_disputed(self) -> bool:
        """Whether somebody goes by another division."""
        return max(self.odd.values(), default=0) >= ODD_PULSES

    @property
    def is_in_force(self) -> bool:
        return self.state is DivisionState.IN_FORCE


class LeaderlessWorkDivision:
    def __init__(
        self,
        node: ReplicaId,
        *,
        rng: Random,
        state: ControlState,
        logs: HeldLogs,
        contacts: Contacts,
    ) -> None:
        """`state`, `logs` and `contacts` are the machine's own and are only read here."""
        self.node = node
        self._rng = rng
        self._state = state
        self._logs = logs
        self._contacts = contacts
        self.divisions: dict[str, Division] = {}
        self.gone: list[Span] = []
        """Found by the last take: of the group's, and not there any more."""
        self.out: list[LeaderlessEffect] = []

    def division(self, group: str) -> Division:
        found = self.divisions.get(group)
        if found is None:
            found = self.divisions[group] = Division()
        return found

    @property
    def _reachable(self) -> frozenset[str]:
        """Peers that are not cut off."""
        return self._contacts.live | self._contacts.awaited

    def in_force(self) -> tuple[tuple[str, Generation], ...]:
        return tuple(
            (group, division.promised)
            for group, division in sorted(self.divisions.items())
            if division.is_in_force
        )

    # ---------------------------------------------------------------------------------------- time

    def tick(self) -> None:
        for group, division in sorted(self.divisions.items()):
            if self._state.find(group) is None and not division.connected:
                # Nobody has it and nobody is here for it.
                if division.session is None and not any(division.in_flight.values()):
                    division.idle_ticks += 1
                    if division.idle_ticks >= IDLE_TICKS:
                        # As after a restart: whoever knows more says so (`Superseded`).
                        del self.divisions[group]
                    continue
            division.idle_ticks = 0
            if division.session is not None:
                self._retry(group, division, division.session)
            elif not division.is_in_force and division.promised != NEVER:
                division.waiting_ticks += 1
                if division.waiting_ticks > STUCK_TICKS + self._rng.randrange(DELAY_TICKS):
                    self.start(group)
            elif not self._is_wrong(division) and not self._is_hopeless(division):
                division.delay_ticks = None
            elif division.delay_ticks is None:
                division.delay_ticks = self._rng.randrange(DELAY_TICKS)
            elif division.delay_ticks:
                division.delay_ticks -= 1
            else:
                self.start(group, self._chosen_order(division))

    def _chosen_order(self, division: Division) -> tuple[str, ...]:
        """What somebody chose stays while all its nodes are there and nobody goes by another one."""
        installed = division.installed
        if installed is None or not installed.is_manual or division.is_disputed:
            return ()
        return installed.order if self._reachable.issuperset({*installed.order} - {self.node}) else ()

    def _is_wrong(self, division: Division) -> bool:
        installed = division.installed
        if installed is None:
            return division.connected > 0
        is_in = self.node in installed.order
        if not installed.is_manual and is_in != (division.connected > 0):
            return True
        if division.again and not is_in:
            return True
        if division.is_disputed or self._is_somebody_back(installed):
            return True
        involved = {*installed.order, *installed.participants} - {self.node}
        return not involved <= self._reachable

    def _is_somebody_back(self, installed: Install) -> bool:
        """Whether a node that had no part in the division can be talked with: it may have done some of it."""
        return not self._contacts.live.issubset(installed.participants)

    def _is_hopeless(self, division: Division) -> bool:
        """Whether this node waits for entries that were lost with whoever had them."""
        installed = division.installed
        if installed is None or self.node not in installed.order or self.look(division):
            division.waiting_ticks = 0
            return False
        held = dict(self._logs.positions())
        missing = [(o, p.entry) for o, p in installed.needs if held.get(o, NOWHERE).entry < p.entry]
        is_lost = not all(self._contacts.is_held(origin, entry) for origin, entry in missing)
        division.waiting_ticks = division.waiting_ticks + 1 if is_lost else 0
        # A pulse may be a little older than an answer.
        return division.waiting_ticks > STUCK_TICKS

    def on_pulse(self, peer: str, named: dict[str, Generation]) -> None:
        """A peer that can be talked with says which divisions are in force there. One that takes part and
        names none has restarted: what it had in its hands it has no longer."""
        for group, division in self.divisions.items():
            installed = division.installed
            if installed is None or not division.is_in_force:
                division.odd.pop(peer, None)
                continue
            theirs = named.get(group)
            is_involved = peer in installed.order or any(peer == name for name, _ in installed.holdings)
            if theirs is None:
                is_odd = is_involved
            else:
                division.counter_seen = max(division.counter_seen, theirs.counter)
                is_odd = theirs != installed.generation
                if is_odd and (theirs > installed.generation or peer not in installed.participants):
                    # Both would give the same messages: nothing more before they have divided anew. (A lower
                    # one of somebody who answered for this one is an old word.)
                    division.odd[peer] = ODD_PULSES
            if is_odd:
                division.odd[peer] = division.odd.get(peer, 0) + 1
            else:
                division.odd.pop(peer, None)

    # ------------------------------------------------------------------------------------ sessions

    def start(self, group: str, order: tuple[str, ...] = ()) -> None:
        """Open a session with everybody but those that are cut off. One that is merely slow is asked, and
        waited for until it answers or has been silent for too long: it may be taking work."""
        division = self.division(group)
        counter = max(division.promised.counter, division.counter_seen) + 1
        generation = Generation(counter, self.node)
        participants = self._reachable | {self.node}
        self._promise(division, generation)
        division.enter(DivisionState.ASKING)
        division.session = session = Session(generation, participants, order)
        session.answers[self.node] = self._answer(group, division)
        self._ask(group, session)
        self._finish(group, division)

    def _promise(self, division: Division, generation: Generation) -> None:
        """From here on no work is taken before the session's result."""
        assert generation > division.promised, "an older generation was promised"
        division.enter(DivisionState.PROMISED)
        division.promised = generation
        division.counter_seen = max(division.counter_seen, generation.counter)
        division.number = self._rng.getrandbits(32) if division.connected else None
        division.session = None
        division.delay_ticks = None
        division.waiting_ticks = division.idle_ticks = 0
        division.odd.clear()
        division.is_ready = False

    def _ask(self, group: str, session: Session) -> None:
        for name in sorted(session.participants - session.answers.keys()):
            self.out.append(Send(to=ReplicaId(name), body=Reorg(group=group, generation=session.generation)))

    def _retry(self, group: str, division: Division, session: Session) -> None:
        session.quiet_ticks += 1
        missing = session.participants - session.answers.keys()
        if not missing <= self._reachable or session.quiet_ticks > STUCK_TICKS:
            self.start(group, session.order)
        elif session.quiet_ticks % ASK_AGAIN_TICKS == 0:
            self._ask(group, session)

    def _answer(self, group: str, division: Division) -> Answer:
        return Answer(
            group=group,
            generation=division.promised,
            number=division.number,
            in_flight=self._in_hands(division),
            positions=self._logs.positions(),
        )

    @staticmethod
    def _in_hands(division: Division) -> Holding:
        """What members here have and have not acknowledged."""
        return tuple(
            (origin, tuple(ranges)) for origin, ranges in sorted(division.in_flight.items()) if ranges
        )

    def on_reorg(self, sender: ReplicaId, body: Reorg) -> None:
        division = self.division(body.group)
        # One that is in force here is over: its initiator has restarted and counts from the beginning.
        if body.generation < division.promised or (
            body.generation == division.promised and division.is_in_force
        ):
            self.out.append(Send(to=sender, body=Superseded(group=body.group, generation=division.promised)))
            return
        if body.generation > division.promised:
            self._promise(division, body.generation)
        self.out.append(Send(to=sender, body=self._answer(body.group, division)))

    def on_superseded(self, body: Superseded) -> None:
        division = self.division(body.group)
        division.counter_seen = max(division.counter_seen, body.generation.counter)
        session = division.session
        if session is not None and session.generation <= body.generation:
            self.start(body.group, session.order)

    def on_answer(self, sender: ReplicaId, body: Answer) -> None:
        division = self.division(body.group)
        session = division.session
        if session is None or session.generation != body.generation or sender not in session.participants:
            return
        session.answers[sender] = body
        self._finish(body.group, division)

    def _finish(self, group: str, division: Division) -> None:
        """With every answer there, the numbers decide."""
        session = division.session
        assert session is not None
        if session.participants - session.answers.keys():
            return
        drawn = [(a.number, name) for name, a in session.answers.items() if a.number is not None]
        needs: Positions = {}
        for answer in session.answers.values():
            for origin, position in answer.positions:
                needs[origin] = max(needs.get(origin, position), position)
        install = Install(
            group=group,
            generation=session.generation,
            order=session.order or tuple(name for _, name in sorted(drawn)),
            is_manual=bool(session.order),
            participants=tuple(sorted(session.participants)),
            holdings=tuple(
                (name, answer.in_flight)
                for name, answer in sorted(session.answers.items())
                if answer.in_flight
            ),
            needs=tuple(sorted(needs.items())),
        )
        division.session = None
        for name in sorted(session.participants - {self.node}):
            self.out.append(Send(to=ReplicaId(name), body=install))
        self._install(division, install)

    def on_install(self, body: Install) -> None:
        division = self.division(body.group)
        installed = division.installed
        is_known = installed is not None and installed.generation == body.generation
        if body.generation != division.promised or is_known:
            return
        self._install(division, body)

    def _install(self, division: Division, install: Install) -> None:
        assert install.generation == division.promised, "another division than the one promised"
        division.enter(DivisionState.IN_FORCE)
        division.installed = install
        division.waiting_ticks = 0
        division.odd.clear()
        division.cursors.clear()
        division.again.clear()
        division.elsewhere = {}
        for name, holding in install.holdings:
            for origin, ranges in holding:
                mine = division.in_flight.get(origin, Ranges())
                for start, end in ranges:
                    if name != self.node:
                        division.elsewhere.setdefault(origin, Ranges()).add(start, end)
                        continue
                    # What came back since the answer is still this node's to give.
                    division.again += [
                        Span(origin, offset, offset + 1) for offset in range(start, end) if offset not in mine
                    ]
        division.is_ready = False
        self.look(division)
        self.out.append(Divided(group=install.group, generation=install.generation, order=install.order))

    def look(self, division: Division) -> bool:
        """Whether this node may take work now."""
        installed = division.installed
        if installed is None or self.node not in installed.order:
            return False
        if not self._may_go_by(division):
            return False
        if division.is_disputed or self._is_somebody_back(installed):
            return False
        if not self._has_leases(installed):
            return False
        if not division.is_ready:
            division.is_ready = self._holds_needs(installed)
        return division.is_ready

    @staticmethod
    def _may_go_by(division: Division) -> bool:
        """Not once a session was answered, before its result is here."""
        return division.is_in_force

    def _has_leases(self, installed: Install) -> bool:
        """From everybody who took part: nobody of them has left this node out yet."""
        return self._contacts.leased.issuperset(installed.participants)

    def _holds_needs(self, installed: Install) -> bool:
        """Are all marks here that were made under the divisions before?"""
        held = dict(self._logs.positions())
        return all(held.get(origin, NOWHERE).entry >= position.entry for origin, position in installed.needs)

    # ---------------------------------------------------------------------------------------- work

    def take(self, key: str, count: int) -> Spans:
        """Messages for members here, at most `count`."""
        division = self.division(key)
        group = self._state.find(key)
        if group is None or not division.connected or not self.look(division):
            return ()
        if division.starts is not group.starts:
            # Somebody else made the group earlier in some log: what was passed over there is its own too, and
            # what is not there any more must be said of that part as well.
            division.starts = group.starts
            division.cursors.clear()
            division.gone.clear()
        count, self.gone = min(count, LEADERLESS_TAKE_MAX), []
        taken: dict[Origin, Ranges] = {}
        again, division.again = division.again, []
        for span in again:
            for offset in range(span.start, span.end):
                if not count:
                    division.again.append(Span(span.origin, offset, span.end))
                    break
                if offset >= group.low(span.origin) and offset not in group.done(span.origin):
                    self._hand_out(division, taken, span.origin, offset)
                    count -= 1
        assert division.installed is not None
        order = division.installed.order
        place, scanned = order.index(self.node), 0
        for origin, _ in self._logs.positions():
            first, end = self._logs.extent(origin)
            done, busy = group.done(origin), division.in_flight.setdefault(origin, Ranges())
            held = division.elsewhere.get(origin, Ranges())
            low = group.low(origin)
            if low < first and division.gone.get(origin, 0) < first:
                # Removed before this node knew of the group: nobody who delivers could ever give it.
                division.gone[origin] = first
                self.gone.append(Span(origin, low, first))
            offset = max(division.cursors.get(origin, 0), low, first)
            while offset < end and count and scanned < LEADERLESS_SCAN_MAX:
                scanned += 1
                if offset in done:
                    offset = done.after(offset)
                    continue
                if (
                    place_of(origin, offset, len(order)) == place
                    and offset not in busy
                    and offset not in held
                ):
                    self._hand_out(division, taken, origin, offset)
                    count -= 1
                offset += 1
            division.cursors[origin] = offset
        return tuple(
            Span(origin, start, end) for origin, ranges in sorted(taken.items()) for start, end in ranges
        )

    @staticmethod
    def _hand_out(division: Division, taken: dict[Origin, Ranges], origin: Origin, offset: int) -> None:
        taken.setdefault(origin, Ranges()).add(offset, offset + 1)
        division.in_flight.setdefault(origin, Ranges()).add(offset, offset + 1)

    def release(self, group: str, spans: Spans) -> None:
        """Back from a member that is gone: to another one here, or by the next division."""
        division = self.division(group)
        for span in spans:
            busy = division.in_flight.get(span.origin)
            if busy is not None:
                busy.discard(span.start, span.end)
                division.again.append(span)

    def forget(self, group: str) -> None:
        """The group is gone, and with it what its members hold."""
        division = self.divisions.get(group)
        if division is not None:
            division.in_flight.clear()
            division.again.clear()
            division.cursors.clear()
