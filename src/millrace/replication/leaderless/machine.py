"""Leaderless replication: every node takes messages whatever the partition, and all converge after it.

Its logs are those of Bayou (Petersen and others, "Flexible Update Propagation for Weakly Consistent
Replication", SOSP 1997): one for each origin, version vectors, anti-entropy between any two nodes, and a
state instead of entries where the entries are gone. It departs from Bayou in this:

- There is no order over all logs and nothing is rolled back: messages of different origins need none, and
  what control entries say gives the same state in any order (`state.py`).
- A publisher waits for as many disks as its stream asks for (`levels.py`).
- Consumer groups share the work by the REORG exchange (`work_division.py`), which is not Bayou's. It is the
  requirement D6 with generations and leases added (decisions 008 and 024).

One log for each origin, written by its node alone, so order holds per origin and nobody has to agree on
anything. What a node holds is a version vector: for each log the last entry of an unbroken beginning. A node
streams its own log to every member and says how far it holds the others' in its pulse; whoever finds that
another holds more pulls it, from anybody. So a message that reached one node reaches all, however its origin
fares, and after a partition both sides fill each other up.

Entries leave a node only after they are on its own disk: no peer ever holds more of a log than the log's own
node, and a restart that finds its log whole goes on with it. A start that cannot tell raises the incarnation
[rule 25] and writes another log. A peer that does hold more is proof of the contrary: `Overtaken`.

Groups, their clients and the marks of what they are done with are control entries of the same logs (see
`state.py`), so a mark is as safe as a message and travels the same way. Who delivers what is decided by
sessions (see `work_division.py`). A message goes for good when it is below every group's mark and every
hold, and every member is known to hold it: somebody who has not received it may yet make a group that wants
it, and by the order of its own log that group is known before its receipt is.
"""

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import assert_never

from millrace.errors import ProtocolError
from millrace.replication.contract import (
    EntryKind,
    LinkClosed,
    LinkOpened,
    PeerMessage,
    Persisted,
    ReplicaId,
    RequestId,
    Send,
    Tick,
)
from millrace.replication.leaderless.contacts import Contacts, Peer
from millrace.replication.leaderless.held_logs import HeldLog, HeldLogs
from millrace.replication.leaderless.levels import Waiting
from millrace.replication.leaderless.messages import (
    NOWHERE,
    Acknowledged,
    Answer,
    Await,
    Begin,
    Connected,
    Entries,
    Given,
    GroupRemoved,
    Have,
    Install,
    LeaderlessBody,
    LeaderlessEffect,
    LeaderlessEvent,
    Level,
    LogEntry,
    Origin,
    OriginLogs,
    Overloaded,
    Overtaken,
    PersistLog,
    Placed,
    Position,
    Positions,
    Publish,
    Pull,
    Pulse,
    Release,
    Remove,
    RemoveGroup,
    Reorg,
    Reorganise,
    SetHolds,
    SetLevel,
    SetMembers,
    Settle,
    Slept,
    Stored,
    Subscribe,
    Superseded,
    Take,
    Unsubscribe,
)
from millrace.replication.leaderless.state import (
    ControlState,
    LeaderlessGroup,
    Ranges,
    inherit,
    make_group,
    mark,
    put_client,
    remove_group,
)
from millrace.replication.leaderless.work_division import LeaderlessWorkDivision


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderlessOptions:
    """Times in ticks."""

    pulse_ticks: int = 4
    silent_ticks: int = 60
    """A peer that was not heard for so long takes no part in the division of work."""
    closed_ticks: int = 20
    """Nor does one to which the link is closed for so long."""
    resend_ticks: int = 20
    pull_ticks: int = 6
    """A log that does not move while a peer holds more of it is pulled, and pulled again."""
    entries_bytes_max: int = 1 << 20
    window_entries: int = 256
    """Sent to a peer and not yet on its disk."""
    persists_pending_max: int = 256
    unacknowledged_bytes_max: int = 64 << 20
    origins_max: int = 4_096


DEFAULT_OPTIONS = LeaderlessOptions()


class Leaderless:
    def __init__(
        self,
        node: ReplicaId,
        *,
        origin: Origin,
        boot: int,
        members: tuple[ReplicaId, ...],
        logs: OriginLogs,
        state: bytes | None,
        rng: Random,
        level: Level = Level.MAJORITY,
        options: LeaderlessOptions = DEFAULT_OPTIONS,
    ) -> None:
        """`state` is what the last `to_bytes` or `PersistLog.state` on disk says; `boot` is another number at
        every start."""
        self.node = node
        self.origin = origin
        self.members = members
        self._boot = boot
        self._view = logs
        self._options = options
        self._contacts = Contacts(
            node, boot, members, silent_ticks=options.silent_ticks, closed_ticks=options.closed_ticks
        )
        self._peers = self._contacts.peers
        self._number = self._persisted = 0
        self.state = ControlState()
        extents = logs.extents()
        ends = {known: end for known, (_, end) in extents.items()}
        covered = self.state.restore(state, ends) if state is not None else {}
        self._logs = HeldLogs(logs, origins_max=options.origins_max)
        for known, (begin, end) in sorted(extents.items()):
            self._replay(known, max(begin.entry, covered.get(known, NOWHERE).entry), end.entry)
        self.state.ended.clear()
        self._logs.setdefault(origin, HeldLog(NOWHERE))
        self.work_division = LeaderlessWorkDivision(
            node, rng=rng, state=self.state, logs=self._logs, contacts=self._contacts
        )
        self._waiting = Waiting(origin, self._peers, level)
        self._local: deque[tuple[int, RequestId]] = deque()
        self._out: list[LeaderlessEffect] = []
        self._after: list[LeaderlessEffect] = []
        self._persist: PersistLog | None = None
        # Of what was learnt so much stands in the own log up to this entry, not on disk yet.
        self._saying: tuple[int, int] | None = None

    def _replay(self, origin: Origin, after: int, last: int) -> None:
        """Control entries that the saved state does not cover."""
        while after < last:
            _, found = self._view.entries(origin, after + 1, last, self._options.entries_bytes_max)
            if not found:
                raise ProtocolError(f"entries of {origin} after {after} cannot be read")
            for entry in found:
                if entry.kind is EntryKind.CONTROL:
                    self.state.apply(entry.payload)
            after += len(found)

    # ----------------------------------------------------------------------------------------- step

    def step(self, event: LeaderlessEvent) -> list[LeaderlessEffect]:
        """Take one event; run the effects in list order, what stands after a `PersistLog` once it is on disk.
        Raises `RemoteError` for a message that no correct peer sends: nothing is written then, and nobody is
        told anything."""
        self._out, self._after, self._persist = [], [], None
        self.work_division.out = self._out
        match event:
            case Tick():
                self._on_tick()
            case PeerMessage():
                self._on_peer(event.sender, event.body)
            case Persisted():
                self._on_persisted(event.number)
            case LinkOpened():
                self._on_link_opened(event.peer)
            case LinkClosed():
                self._contacts.link_closed(event.peer)
            case Publish():
                self._on_publish(event)
            case Await():
                self._on_await(event)
            case Subscribe():
                self._on_subscribe(event)
            case Unsubscribe():
                self._on_unsubscribe(event)
            case RemoveGroup():
                self._on_remove_group(event)
            case Connected():
                self.work_division.division(event.group).connected = event.members
            case Take():
                self._on_take(event)
            case Settle():
                self._on_settle(event)
            case Release():
                self.work_division.release(event.group, event.spans)
            case SetMembers():
                self._on_set_members(event.members)
            case SetHolds():
                self._remove(dict(event.holds))
            case SetLevel():
                self._waiting.level = event.level
                self._acknowledge()
            case Slept():
                self._contacts.slept(event.ticks)
            case Reorganise():
                self.work_division.start(event.group, event.order)
            case _:
                assert_never(event)
        if self._persist is not None:
            return [*self._out, self._persist, *self._after]
        return self._out

    # ----------------------------------------------------------------------------------------- views

    @property
    def positions(self) -> Positions:
        """What this disk holds of every log."""
        return dict(self._logs.positions())

    def to_bytes(self) -> bytes:
        """The control state for a restart; what is in the logs behind it is applied again."""
        return self.state.to_bytes(self.positions, self.state.learnt)

    @property
    def is_everywhere(self) -> bool:
        """Whether every member that is not cut off holds all of this node's own log."""
        log = self._logs[self.origin]
        near = self._contacts.live | self._contacts.awaited
        return log.durable == log.last and all(self._peers[n].acked >= log.last.entry for n in near)

    @property
    def writes_pending(self) -> int:
        return self._number - self._persisted

    # ------------------------------------------------------------------------------------------ time

    def _on_tick(self) -> None:
        self._contacts.tick()
        options = self._options
        if self._contacts.now % options.pulse_ticks == 0:
            pulse = self._pulse()
            for name in self._peers:
                self._out.append(Send(to=ReplicaId(name), body=pulse))
        for name, peer in self._peers.items():
            if peer.sent > peer.acked and self._contacts.now - peer.progress_tick >= options.resend_ticks:
                peer.sent, peer.progress_tick = peer.acked, self._contacts.now
            self._stream(name, peer)
        self.work_division.tick()
        if self.state.learnt and self._saying is None and not self._is_disk_behind:
            self._say_learnt()

    def _say_learnt(self) -> None:
        """What was learnt from a state instead of a log, said in the own one: the state may tell of entries
        that were nowhere but on one disk and went with it, and nodes would differ for ever about them."""
        payloads: list[bytes] = []
        size = 0
        for payload in self.state.learnt[: self._options.window_entries]:
            size += len(payload)
            if payloads and size > self._options.entries_bytes_max:
                break
            payloads.append(payload)
        self._append(
            tuple(LogEntry(kind=EntryKind.CONTROL, count=0, payload=payload) for payload in payloads)
        )
        self._saying = (len(payloads), self._logs[self.origin].last.entry)

    def _pulse(self) -> Pulse:
        return Pulse(
            boot=self._boot,
            number=self._contacts.elapsed,
            positions=self._logs.positions(),
            hears=self._contacts.heard_now(),
            work_division=self.work_division.in_force(),
        )

    def _on_link_opened(self, name: ReplicaId) -> None:
        peer = self._peers.get(name)
        if peer is not None:
            # What was on its way over the old link is lost.
            peer.sent = peer.acked
            self._contacts.link_opened(peer)
            self._out.append(Send(to=name, body=self._pulse()))

    def _on_set_members(self, members: tuple[ReplicaId, ...]) -> None:
        self.members = members
        self._contacts.set_members(members)
        self._acknowledge()

    # ----------------------------------------------------------------------------------- own entries

    @property
    def _is_disk_behind(self) -> bool:
        return self.writes_pending >= self._options.persists_pending_max

    @property
    def _is_overloaded(self) -> bool:
        """For publishers: who comes and goes does not wait for a level, which a node that is cut off may not
        reach for long."""
        return self._is_disk_behind or self._waiting.size_bytes > self._options.unacknowledged_bytes_max

    def _append(self, entries: tuple[LogEntry, ...]) -> Position:
        """Put entries at the end of the own log; the position before them."""
        log = self._logs[self.origin]
        before = log.last
        self._write(self.origin, log, entries)
        return before

    def _write(self, origin: Origin, log: HeldLog, entries: tuple[LogEntry, ...]) -> None:
        assert self._persist is None, "one write in a step"
        first = log.last.entry + 1
        log.last = Position(
            log.last.entry + len(entries), log.last.offset + sum(entry.count for entry in entries)
        )
        self._number += 1
        log.tail.append((self._number, log.last, entries))
        self._persist = PersistLog(number=self._number, origin=origin, first_index=first, entries=entries)

    def _on_publish(self, event: Publish) -> None:
        if self._is_overloaded:
            self._out.append(Overloaded(request=event.request))
            return
        entries = tuple(
            LogEntry(kind=EntryKind.DATA, count=count, payload=payload) for count, payload in event.blocks
        )
        before = self._append(entries)
        size = sum(len(entry.payload) for entry in entries)
        self._waiting.publish(event.request, before.entry + len(entries), size)
        self._out.append(
            Placed(
                request=event.request,
                origin=self.origin,
                first_index=before.entry + 1,
                offset=before.offset,
            )
        )

    def _on_await(self, event: Await) -> None:
        if self._is_overloaded:
            self._out.append(Overloaded(request=event.request))
            return
        self._waiting.repeat(event.request, self._logs[self.origin].last.entry, self._logs.positions())
        self._acknowledge()

    def _control(self, request: RequestId, *payloads: bytes) -> None:
        entries = tuple(LogEntry(kind=EntryKind.CONTROL, count=0, payload=payload) for payload in payloads)
        if entries:
            self._append(entries)
            self._local.append((self._logs[self.origin].last.entry, request))
        else:
            self._out.append(Acknowledged(request=request))

    def _on_subscribe(self, event: Subscribe) -> None:
        if self._is_disk_behind or not self.state.has_room(event.group, event.client):
            self._out.append(Overloaded(request=event.request))
            return
        known = self.state.groups.get(event.group)
        life = self.state.life_of(event.group)
        operations: list[bytes] = []
        if known is None or not known.is_present:
            if event.saved_position:
                operations += inherit(event.group, life, event.filters, event.saved_position)
            else:
                starts = {} if event.from_start else self.positions
                operations.append(make_group(event.group, life, event.filters, starts))
        if event.client:
            # Also where it is in already: its going out elsewhere may be on its way.
            stamp = self.state.next_stamp(self.node, event.wall_us)
            operations.append(put_client(event.group, life, event.client, True, stamp))
        self._control(event.request, *operations)

    def _on_unsubscribe(self, event: Unsubscribe) -> None:
        if self._is_disk_behind:
            self._out.append(Overloaded(request=event.request))
            return
        # Also where nobody here knows that it was in: the word of another node may be on its way.
        group = self.state.groups.get(event.group)
        life = self.state.life_of(event.group)
        stamp = self.state.next_stamp(self.node, event.wall_us)
        operations = [put_client(event.group, life, event.client, False, stamp)]
        is_empty = group is not None and not set(group.client_names()) - {event.client}
        if event.is_last_out and is_empty and group is not None and group.is_present:
            life = self.state.next_stamp(self.node, event.wall_us)
            operations.append(remove_group(event.group, life))
        self._control(event.request, *operations)

    def _on_remove_group(self, event: RemoveGroup) -> None:
        if self._is_disk_behind:
            self._out.append(Overloaded(request=event.request))
        elif self.state.find(event.group) is None:
            self._out.append(Acknowledged(request=event.request))
        else:
            self._control(
                event.request, remove_group(event.group, self.state.next_stamp(self.node, event.wall_us))
            )

    def _on_take(self, event: Take) -> None:
        spans = self.work_division.take(event.group, event.count)
        self._out.append(Given(group=event.group, spans=spans))
        if self.work_division.gone:
            # Those who still have it would wait for this group for ever.
            gone, self.work_division.gone = tuple(self.work_division.gone), []
            self._on_settle(Settle(group=event.group, spans=gone))

    def _on_settle(self, event: Settle) -> None:
        """Marks are taken even under load: they are what makes it less."""
        group = self.state.find(event.group)
        if group is None:
            return
        done: dict[Origin, Ranges] = {}
        for span in event.spans:
            done.setdefault(span.origin, Ranges()).add(span.start, span.end)
        if done:
            payload = mark(event.group, group.life, done)
            self._append((LogEntry(kind=EntryKind.CONTROL, count=0, payload=payload),))

    # ------------------------------------------------------------------------------------- the disk

    def _on_persisted(self, number: int) -> None:
        self._persisted = max(self._persisted, number)
        for origin, log in sorted(self._logs.items()):
            while log.tail and log.tail[0][0] <= number:
                _, end, entries = log.tail.popleft()
                is_begin = not entries
                log.durable = end
                log.moved_tick = self._contacts.now
                self._logs.moved()
                for entry in entries:
                    if entry.kind is EntryKind.CONTROL:
                        self._apply(origin, entry.payload)
                if not is_begin:
                    self._out.append(Stored(origin=origin, index=end.entry))
                if origin == self.origin:
                    self._stream_fresh(end, entries)
                    if self._saying is not None and self._saying[1] <= end.entry:
                        del self.state.learnt[: self._saying[0]]
                        self._saying = None
                else:
                    self._pull_on(origin, log)
        self._acknowledge()

    def _apply(self, origin: Origin, payload: bytes) -> None:
        key = self.state.apply(payload)
        self._say_lapsed()
        group = self.state.find(key) if key is not None else None
        division = self.work_division.divisions.get(key) if key is not None else None
        if group is not None and division is not None and origin.node == self.node:
            for log_origin, busy in division.in_flight.items():
                marks = group.marks.get(log_origin)
                if marks and busy:
                    for start, end in list(busy):
                        _discard_done(busy, marks, start, end)

    def _say_lapsed(self) -> None:
        """Groups that are gone by what was just learnt: also one whose members here are all away."""
        ended, self.state.ended = self.state.ended, {}
        for key, group in ended.items():
            if self.state.find(key) is None:
                self.work_division.forget(key)
                self._out.append(GroupRemoved(group=key, saved_position=group.saved_position()))

    def _acknowledge(self) -> None:
        durable = self._logs[self.origin].durable.entry
        while self._local and self._local[0][0] <= durable:
            self._out.append(Acknowledged(request=self._local.popleft()[1]))
        for request in self._waiting.reached(durable):
            self._out.append(Acknowledged(request=request))

    # ------------------------------------------------------------------------------- to other nodes

    def _stream_fresh(self, end: Position, entries: tuple[LogEntry, ...]) -> None:
        """Own entries that have just become durable, to the peers that have all before them."""
        first = end.entry - len(entries) + 1
        base = end.offset - sum(entry.count for entry in entries)
        body = Entries(origin=self.origin, first_index=first, base_offset=base, entries=entries)
        for name, peer in self._peers.items():
            if peer.sent == first - 1 and self._has_room(peer):
                if peer.sent == peer.acked:
                    peer.progress_tick = self._contacts.now
                peer.sent = end.entry
                self._out.append(Send(to=ReplicaId(name), body=body))

    def _has_room(self, peer: Peer) -> bool:
        return self._contacts.is_heard(peer) and peer.sent - peer.acked < self._options.window_entries

    def _stream(self, name: str, peer: Peer) -> None:
        """Own entries that a peer lacks, from the log."""
        durable = self._logs[self.origin].durable.entry
        if peer.sent >= durable or not self._has_room(peer):
            return
        if peer.sent == peer.acked:
            peer.progress_tick = self._contacts.now
        begin = self._view.begin(self.origin)
        if peer.sent < begin.entry:
            state = self.state.to_bytes(self.positions)
            self._out.append(
                Send(to=ReplicaId(name), body=Begin(origin=self.origin, begin=begin, state=state))
            )
            peer.sent = begin.entry
            return
        sent = self._send_entries(ReplicaId(name), self.origin, peer.sent + 1, durable)
        peer.sent += sent

    def _send_entries(self, to: ReplicaId, origin: Origin, first: int, last: int) -> int:
        last = min(last, first + self._options.window_entries - 1)
        base, found = self._view.entries(origin, first, last, self._options.entries_bytes_max)
        if found:
            body = Entries(origin=origin, first_index=first, base_offset=base, entries=tuple(found))
            self._out.append(Send(to=to, body=body))
        return len(found)

    def _pull_on(self, origin: Origin, log: HeldLog) -> None:
        """After entries that were pulled: the next ones, where somebody holds them. A log that its own node
        streams needs none of this."""
        if log.pulled_tick is None or log.tail:
            return
        for name in sorted(self._contacts.live):
            held = (self._peers[name].positions or {}).get(origin, NOWHERE)
            if held.entry > log.last.entry:
                log.pulled_tick = self._contacts.now
                body = Pull(origin=origin, first_index=log.last.entry + 1)
                self._out.append(Send(to=ReplicaId(name), body=body))
                return
        log.pulled_tick = None

    # ----------------------------------------------------------------------------- from other nodes

    def _on_peer(self, sender: ReplicaId, body: object) -> None:
        if not isinstance(body, LeaderlessBody):
            raise ProtocolError(f"{type(body).__name__} is no message between leaderless replicas")
        peer = self._peers.get(sender)
        if peer is None:
            # Not a member yet, or no longer: it asks again once both know.
            return
        match body:
            case Pulse():
                self._on_pulse(sender, peer, body)
            case Entries():
                self._on_entries(sender, body)
            case Have():
                self._on_have(sender, peer, body)
            case Pull():
                self._on_pull(sender, body)
            case Begin():
                self._on_begin(sender, body)
            case Reorg():
                self.work_division.on_reorg(sender, body)
            case Answer():
                self.work_division.on_answer(sender, body)
            case Install():
                self.work_division.on_install(body)
            case Superseded():
                self.work_division.on_superseded(body)
            case _:
                assert_never(body)

    def _on_pulse(self, sender: ReplicaId, peer: Peer, body: Pulse) -> None:
        if peer.boot == body.boot and body.number < peer.pulse:
            return
        peer.pulse = body.number
        positions = dict(body.positions)
        mine = positions.get(self.origin, NOWHERE).entry
        if mine > self._logs[self.origin].last.entry:
            self._out.append(Overtaken(by=sender))
            return
        if peer.boot != body.boot:
            # It may have lost what it had.
            peer.boot, peer.acked, peer.sent = body.boot, mine, mine
            peer.mutual = peer.confirmed = 0
        elif mine > peer.acked:
            self._progress(peer, mine)
        peer.positions = positions
        self._contacts.heard(peer, body)
        if peer.hears_me:
            self.work_division.on_pulse(sender, dict(body.work_division))
        for origin, position in body.positions:
            if origin != self.origin:
                self._compare(sender, origin, position)
        self._acknowledge()

    def _compare(self, sender: ReplicaId, origin: Origin, position: Position) -> None:
        """Anti-entropy: what a peer holds and this node does not is pulled, unless it is on its way."""
        log = self._logs.known(origin, self._contacts.now)
        if position.entry <= log.last.entry:
            return
        is_still = self._contacts.now - log.moved_tick >= self._options.pull_ticks
        is_waiting = (
            log.pulled_tick is not None and self._contacts.now - log.pulled_tick < self._options.pull_ticks
        )
        if (is_still or origin.node not in self._contacts.live) and not is_waiting:
            log.pulled_tick = self._contacts.now
            self._out.append(Send(to=sender, body=Pull(origin=origin, first_index=log.last.entry + 1)))

    def _on_entries(self, sender: ReplicaId, body: Entries) -> None:
        if body.origin == self.origin:
            if body.first_index + len(body.entries) - 1 > self._logs[self.origin].last.entry:
                self._out.append(Overtaken(by=sender))
            return
        log = self._logs.known(body.origin, self._contacts.now)
        entries, last = body.entries, log.last
        if body.first_index > last.entry + 1:
            if log.pulled_tick is None or self._contacts.now - log.pulled_tick >= self._options.pull_ticks:
                log.pulled_tick = self._contacts.now
                self._out.append(Send(to=sender, body=Pull(origin=body.origin, first_index=last.entry + 1)))
            return
        known = last.entry + 1 - body.first_index
        fresh = entries[known:]
        if not fresh:
            self._out.append(Send(to=sender, body=Have(origin=body.origin, position=log.durable)))
            return
        if body.base_offset + sum(entry.count for entry in entries[:known]) != last.offset:
            raise ProtocolError(
                f"entries of {body.origin} after {last.entry} do not continue at {last.offset}"
            )
        if self._is_disk_behind:
            # It comes again: nobody was told that it is here.
            return
        self._write(body.origin, log, fresh)
        self._confirm(sender, body.origin, log.last)

    def _confirm(self, sender: ReplicaId, origin: Origin, position: Position) -> None:
        """Say that this log is here up to there, once the disk has it."""
        self._after.append(Send(to=sender, body=Have(origin=origin, position=position)))

    def _on_have(self, sender: ReplicaId, peer: Peer, body: Have) -> None:
        if body.origin != self.origin:
            return
        if body.position.entry > self._logs[self.origin].last.entry:
            self._out.append(Overtaken(by=sender))
            return
        if body.position.entry > peer.acked:
            self._progress(peer, body.position.entry)
            self._acknowledge()
        self._stream(sender, peer)

    def _progress(self, peer: Peer, index: int) -> None:
        peer.acked = index
        peer.sent = max(peer.sent, index)
        peer.progress_tick = self._contacts.now

    def _on_pull(self, sender: ReplicaId, body: Pull) -> None:
        log = self._logs.get(body.origin)
        if log is None or body.first_index > log.durable.entry:
            return
        begin = self._view.begin(body.origin)
        if body.first_index <= begin.entry:
            state = self.state.to_bytes(self.positions)
            self._out.append(Send(to=sender, body=Begin(origin=body.origin, begin=begin, state=state)))
        else:
            self._send_entries(sender, body.origin, body.first_index, log.durable.entry)

    def _on_begin(self, sender: ReplicaId, body: Begin) -> None:
        """What this node lacks of a log was removed: everybody who wanted it is done with it."""
        if body.origin == self.origin:
            return
        log = self._logs.setdefault(body.origin, HeldLog(NOWHERE))
        if body.begin.entry <= log.last.entry or log.tail:
            return
        self.state.merge(body.state)
        self._say_lapsed()
        self._number += 1
        log.last = body.begin
        log.tail.append((self._number, body.begin, ()))
        self._persist = PersistLog(
            number=self._number,
            origin=body.origin,
            first_index=body.begin.entry + 1,
            begin=body.begin,
            state=self.state.to_bytes({**self.positions, body.origin: body.begin}, self.state.learnt),
        )
        self._confirm(sender, body.origin, body.begin)

    # -------------------------------------------------------------------------------------- removal

    def _remove(self, holds: dict[Origin, int]) -> None:
        """Let go of what nobody wants any more [D4]."""
        groups = [group for _, group in self.state.present()]
        if not groups:
            return
        received = self._received()
        for origin, log in sorted(self._logs.items()):
            floor = min(self._done_below(groups, origin), log.durable.offset)
            floor = min(floor, holds.get(origin, floor))
            floor = self._received_by_all(received, origin, floor)
            if floor > self._logs.extent(origin)[0]:
                log.removed = floor
                self._out.append(Remove(origin=origin, offset=floor))

    def _done_below(self, groups: list[LeaderlessGroup], origin: Origin) -> int:
        """Every group is done with what lies below."""
        return min(self.low(group, origin) for group in groups)

    def _received_by_all(self, received: list[Positions], origin: Origin, offset: int) -> int:
        """How far of `offset` every member is known to hold a log."""
        return min(offset, *(positions.get(origin, NOWHERE).offset for positions in received), offset)

    def low(self, group: LeaderlessGroup, origin: Origin) -> int:
        """The group is done with everything below, or it is gone: a group may be made by a node that never
        knew a log of which others have removed the beginning."""
        low, first = group.low(origin), self._logs.extent(origin)[0]
        return low if low >= first else group.done(origin).after(first)

    def _received(self) -> list[Positions]:
        """What each member is known to hold; nothing where its word does not count yet.

        Its word counts once its own entries up to then are here: a group that it made before is known then.
        So must be what it holds of logs that nobody writes any more: it may be the only one that has them,
        and in them may stand a group that a node made before it lost its disk."""
        newest: dict[str, int] = {}
        for origin in self._logs:
            newest[origin.node] = max(origin.incarnation, newest.get(origin.node, 0))
        found: list[Positions] = []
        for peer in self._peers.values():
            positions = peer.positions or {}
            for origin, position in positions.items():
                writer = self._peers.get(origin.node)
                is_over = origin != self.origin and (
                    writer is None or origin.incarnation < newest.get(origin.node, 0)
                )
                if (writer is peer or is_over) and self._logs.durable(origin).entry < position.entry:
                    positions = {}
                    break
            found.append(positions)
        return found


def _discard_done(busy: Ranges, done: Ranges, start: int, end: int) -> None:
    """Take out of `busy` what of start..end is in `done`."""
    at = start
    while at < end:
        after = done.after(at)
        if after > at:
            busy.discard(at, min(after, end))
            at = after
        else:
            at = done.next_start(at)
