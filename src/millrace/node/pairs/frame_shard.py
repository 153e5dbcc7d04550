"""A shard whose messages go by deadlines: the frame schedule on a node.

The group of the shard decides who is primary, under which epoch and lease; messages do not enter its log. The
primary takes messages, acknowledges them ([rule 23]: accepted, not replicated), and works off copies to
the backup and dispatches to subscribers, earliest deadline first, a bounded number per turn of the loop. A
node that is not primary passes what its clients publish on and acknowledges when the primary has it. Nothing
is stored: who is away misses what is dispatched meanwhile.

The unit of work is a run: what one turn of the loop brought of one topic class, over all connections, is one
job, one copy and one discard. What is due in one turn is dispatched as one piece.

What takes longer than its bound is reported: the dispatch of each topic class, the way to the backup, and the
failover itself [rule 24].
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from millrace.broker.messages.inbound import split_messages, topic_of
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run, payload_is_empty
from millrace.broker.shards.producers import Verdict
from millrace.limits import FRAME_COPIES_MAX, FRAME_JOBS_MAX
from millrace.node.pairs.frame_classes import FrameClass, FrameClasses, Measured
from millrace.node.pairs.frame_messages import (
    IS_LATER,
    IS_REFUSED,
    IS_TAKEN,
    Copies,
    CopyRow,
    Discards,
    Echo,
    FrameMessage,
    Key,
    OfferAnswers,
    OfferedRuns,
    batches,
    decode_run,
    encode_run,
)
from millrace.node.pairs.frame_offers import OfferedOrder, Offers
from millrace.node.pairs.pair_keeper import PairGroup
from millrace.node.replicas.replicas import FrameApp
from millrace.node.shards.shard import Shard
from millrace.reasons import Reason
from millrace.replication.frame.machine import Frame
from millrace.replication.frame.messages import (
    Arrived,
    Copied,
    Discard,
    Discarded,
    Dispatch,
    Dispatched,
    Promoted,
    Queued,
    Ready,
    Recover,
    Replicate,
    Replicated,
)
from millrace.replication.frame.schedule import Schedule

log = logging.getLogger("millrace.frame")

# Messages that a turn dispatches or copies, beside those that it took in.
_TURN_MESSAGES = 2_048
# A run grows no more once it has so much.
_RUN_MESSAGES = 1_024
_RUN_BYTES = 64 * 1024
_RETRY_S = 0.02
# Without a primary a publisher is refused. As long as an offer to one waits for its answer.
_WAIT_S_MAX = 10.0
# Of so many runs to copy one leaves whatever happens and is answered, to know how long the way is.
_ECHO_EVERY = 32
_ECHOES_MAX = 100
_ALERT_S = 10.0
_NO_KEY: Key = (b"", 0)
_READY = Ready()

Part = tuple[Any, Run]
"""A run of one publisher, and its session."""


class _Gathered:
    """What this turn of the loop brought of one class so far."""

    __slots__ = ("count", "parts", "size_bytes")

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.count = 0
        self.size_bytes = 0


class _Held:
    """Messages of one class between their arrival and their dispatch."""

    __slots__ = ("arrived_s", "cls", "key", "parts")

    def __init__(self, cls: FrameClass, parts: list[Part], key: Key, arrived_s: float) -> None:
        self.cls = cls
        self.parts = parts
        self.key = key
        self.arrived_s = arrived_s

    def encoded(self, now_ms: int) -> bytes:
        run = self.parts[0][1]
        if len(self.parts) > 1:
            data = b"".join([part.data for _, part in self.parts])
            run = Run(data, sum(part.count for _, part in self.parts), run.qos, run.v5)
        return encode_run(run, self.key, now_ms)


_Copy = tuple[Replicate, _Held, bool]
"""A run to copy, and whether an echo is wanted."""


class FrameShard(Shard, FrameApp):
    def __init__(self, *args: Any, send: Any, is_full: Callable[[], bool], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._send = send
        self._is_full = is_full
        self._loop = asyncio.get_running_loop()
        # Deadlines run from the arrival.
        self.intake.gathers = False
        spec = self.stream.spec.primary_backup
        self._classes = FrameClasses(spec)
        self._frame = Frame(schedule=Schedule.FRAME, jobs_max=FRAME_JOBS_MAX, copies_max=FRAME_COPIES_MAX)
        # Messages refused because the queue had no room for what they were gathered with.
        self._turned_away = 0
        self._epoch = 0
        # By the number of the first message of the run.
        self._held: dict[int, _Held] = {}
        # Taken in and not queued yet, all of one QoS and version, and the jobs that it will be.
        self._gathered: dict[FrameClass, _Gathered] = {}
        self._gathered_jobs = 0
        self._is_working = False
        # Values to retain that are not proposed yet: nothing may be while the group steps.
        self._notes: list[Arrival] = []
        # Messages accepted since jobs were last worked off; each is two jobs at most.
        self._accepted = 0
        self._is_waiting = False
        # Since when arrivals wait for a primary.
        self._waiting_s: float | None = None
        self._is_offering_again = False
        self._offers = Offers(self._answer)
        self._offered = OfferedOrder()
        # What leaves at the end of the turn: runs to copy and to discard, by number. What is due leaves
        # before anything is dispatched.
        self._to_copy: dict[int, _Copy] = {}
        self._copies_due: list[_Copy] = []
        self._to_discard: list[int] = []
        # Due in this turn and not handed over yet, all of one QoS and version.
        self._due: list[Part] = []
        self._runs_to_copy = 0
        self._echo_s: dict[int, float] = {}
        self._way = Measured("to the backup", spec.backup_ms)
        self._failover = Measured("failover", spec.x_ms)
        self._alert_s = 0.0
        self.recovered = 0
        """Messages that were dispatched from copies after a promotion."""
        self.uncopied = 0
        """Messages whose copies the link to the backup did not take."""

    @property
    def _pair(self) -> PairGroup:
        assert isinstance(self.group, PairGroup)
        return self.group

    # ----------------------------------------------------------------------------------- arrivals

    def cut(self, wall_us: int, is_full: bool) -> None:
        arrivals, self.intake.arrivals = self.intake.arrivals, []
        if self.intake.is_sealed:
            self._route_again(arrivals)
            return
        self._pair.catch_up()
        if self._pair.may_accept and len(self._offers):
            # What came here before these.
            self._take_offers()
        try:
            self._take_in(arrivals)
        finally:
            self._queue_gathered()
            self._send_offers()
            self._log_notes()

    def _log_notes(self) -> None:
        """What is retained is for all nodes, so it is the one thing that enters the log."""
        notes, self._notes = self._notes, []
        if notes:
            waiting, self.intake.arrivals = self.intake.arrivals, notes
            super().cut(self._wall_us(), is_full=self._is_full())
            self.intake.arrivals = [*waiting, *self.intake.arrivals]

    def _retain(self, run: Run) -> None:
        """As primary, of a message that is dispatched as well: whoever subscribes after that gets it."""
        topic = topic_of(run.data)
        self._broker.retained.show(topic, run, is_empty=payload_is_empty(run))
        note = Arrival(None, None, 0, run, topic, b"")
        note.is_retained_only = note.is_shown = True
        self._broker.inbound.uncommitted_bytes += len(run.data)
        self._notes.append(note)

    def _take_in(self, arrivals: list[Arrival]) -> None:
        for position, arrival in enumerate(arrivals):
            if arrival.is_retained_only:
                # It was delivered already. In its place among those that are retained as well.
                self._notes.append(arrival)
            elif arrival.run is None and self._broker.inbound.is_overtaking(arrival):
                # The message that it answers for may have been refused. (Others go by their deadlines.)
                self.refuse([arrival], Reason.SERVER_BUSY)
            elif self._pair.may_accept:
                self._take(arrival)
            elif not self._pair.is_leader and self._pair.is_serving:
                self._pass_on(arrival)
            else:
                self._wait(arrivals[position:])
                return
        self._waiting_s = None

    def _wait(self, arrivals: list[Arrival]) -> None:
        """Nobody is primary right now: a bounded wait, as the intake bounds what is read."""
        now_s = self._loop.time()
        self._waiting_s = self._waiting_s or now_s
        if now_s - self._waiting_s >= _WAIT_S_MAX:
            self._waiting_s = None
            self.refuse(arrivals, Reason.SERVER_BUSY)
            self._wake()
            return
        # A publisher that was refused above may have left a will here.
        self.intake.arrivals = [*arrivals, *self.intake.arrivals]
        if not self._is_waiting:
            self._is_waiting = True
            self._loop.call_later(_RETRY_S, self._again)

    def _again(self) -> None:
        self._is_waiting = False
        if self.intake.arrivals and self.intake not in self._broker.inbound.waiting:
            self._broker.inbound.waiting.append(self.intake)
            self._wake()

    def _take(self, arrival: Arrival) -> None:
        """As primary: queue the messages of the run, then acknowledge it."""
        run = arrival.run
        if run is not None and _is_plain(arrival, run):
            parts = self._classes.split(run)
            if parts is not None:
                self._gather(arrival, run, parts)
                return
        if run is not None and run.count > 1:
            # Some are of topics without a class, or known, or find no room: each is answered for itself.
            for part in split_messages(arrival):
                self._take(part)
            return
        reason = None if run is None else self._take_one(run, _key(arrival), arrival.session)
        if reason is not None:
            self.refuse([arrival], reason)
        else:
            self._acknowledge(arrival)

    def _take_one(self, run: Run, key: Key, session: Any) -> Reason | None:
        """Why it cannot be taken; None also where it was before, by its key."""
        verdict = self.producers.judge(*key) if key[0] else Verdict.NEW
        if verdict is Verdict.TOO_OLD:
            # Whether it was taken cannot be told [rule 3].
            return Reason.IMPLEMENTATION_SPECIFIC
        return self._accept(run, key, session) if verdict is Verdict.NEW else None

    def _gather(self, arrival: Arrival, run: Run, parts: list[tuple[FrameClass, Run]]) -> None:
        """All of it or, where the queue has no room, nothing."""
        jobs = sum(cls.jobs(part.count) for cls, part in parts)
        if not self._frame.has_room(self._gathered_jobs + jobs):
            self._turned_away += run.count
            self._alert("overloaded: %d messages were refused", self._refused)
            self.refuse([arrival], Reason.SERVER_BUSY)
            return
        for cls, part in parts:
            found = self._gathered.get(cls)
            if found is not None and not _is_alike(found.parts[0][1], part):
                self._queue_gathered()
                found = None
            if found is None:
                found = self._gathered[cls] = _Gathered()
            found.parts.append((arrival.session, part))
            found.count += part.count
            found.size_bytes += len(part.data)
            self._gathered_jobs += cls.jobs(part.count)
            if found.count >= _RUN_MESSAGES or found.size_bytes >= _RUN_BYTES:
                del self._gathered[cls]
                self._gathered_jobs -= cls.jobs(found.count)
                self._queue(cls, found.parts, found.count)
        self._acknowledge(arrival)

    def _queue_gathered(self) -> None:
        gathered, self._gathered = self._gathered, {}
        self._gathered_jobs = 0
        for cls, found in gathered.items():
            self._queue(cls, found.parts, found.count)

    def _queue(self, cls: FrameClass, parts: list[Part], count: int, key: Key = _NO_KEY) -> bool:
        """One job, or two, for messages of one class; False where there is no room for them."""
        now_s = self._loop.time()
        has_backup = not self._pair.is_counting_alone
        arrived = Arrived(
            wanted=cls.wanted, now_us=int(now_s * 1_000_000), count=count, has_backup=has_backup
        )
        (answer,) = self._frame.step(arrived)
        if not isinstance(answer, Queued):
            return False
        self._held[answer.number] = _Held(cls, parts, key, now_s)
        self._accepted += count
        if not self._is_working:
            self._is_working = True
            self._loop.call_soon(self._work)
        return True

    def _accept(self, run: Run, key: Key, session: Any) -> Reason | None:
        """A run that stays by itself: it has a key, or is retained, or expires."""
        cls = self._classes.of(topic_of(run.data))
        if cls is None:
            return Reason.IMPLEMENTATION_SPECIFIC
        if run.retain and self._is_full():
            return Reason.QUOTA_EXCEEDED
        # What came before it is numbered before it.
        self._queue_gathered()
        if not self._queue(cls, [(session, run)], run.count, key):
            self._alert("overloaded: %d messages were refused", self._refused)
            return Reason.SERVER_BUSY
        if key[0]:
            self.producers.store(*key)
        if run.retain:
            self._retain(run)
        return None

    def _acknowledge(self, arrival: Arrival) -> None:
        broker, session = self._broker, arrival.session
        if arrival.run is not None:
            broker.inbound.uncommitted_bytes -= len(arrival.run.data)
        if arrival.ack and session is not None and session.epoch == arrival.epoch:
            broker.outbound.put(session, arrival.ack)
        if arrival.waiter is not None:
            broker.inbound.outcomes.append((arrival, 0))
        self._wake()

    # ---------------------------------------------------------------------------------------- jobs

    def _work(self) -> None:
        """Some jobs, then the sockets again: what arrives meanwhile may be due earlier, and the other node
        asks whether this one is well."""
        frame, now_ms, now_us = self._frame, self._now_ms(), int(self._loop.time() * 1_000_000)
        # Not fewer than one turn may bring: a turn that takes in more than it works off starves the dispatch.
        budget, self._accepted = _TURN_MESSAGES + 2 * self._accepted, 0
        while budget > 0:
            effects = frame.step(_READY)
            if not effects:
                self._is_working = False
                break
            for job in effects:
                if isinstance(job, Replicate):
                    self._put_copy(job, now_us)
                    frame.step(Replicated(number=job.number, count=job.count))
                    budget -= job.count
                elif isinstance(job, Dispatch):
                    self._dispatch(self._held.pop(job.number), job.count, now_ms)
                    self._discard(job)
                    budget -= job.count
        else:
            self._loop.call_soon(self._work)
        self._pass_due(now_ms)
        self._tell_backup()
        self._wake()

    def _discard(self, job: Dispatch) -> None:
        """A dispatched run is discarded at the backup. A copy that has not left yet need not leave."""
        for effect in self._frame.step(Dispatched(number=job.number, count=job.count)):
            if isinstance(effect, Discard) and self._to_copy.pop(effect.number, None) is None:
                self._to_discard.append(effect.number)

    def _put_copy(self, job: Replicate, now_us: int) -> None:
        """A copy is cancelled by a dispatch within its time. One whose time has come leaves first: until the
        dispatch is over nobody else has the messages. So does one of many, to know how long the way is."""
        wants_echo = self._runs_to_copy % _ECHO_EVERY == 0
        self._runs_to_copy += 1
        copy = job, self._held[job.number], wants_echo
        if wants_echo or job.due_us <= now_us:
            self._copies_due.append(copy)
        else:
            self._to_copy[job.number] = copy

    def _dispatch(self, held: _Held, count: int, now_ms: int) -> None:
        """What can be joined leaves as one piece, at the end of the turn at the latest."""
        session, run = held.parts[0]
        if self._due and not _is_alike(self._due[0][1], run):
            self._pass_due(now_ms)
        if run.retain or run.expires_ms is not None:
            self._pass_due(now_ms)
            self._broker.inbound.pass_on(session, topic_of(run.data), run, now_ms)
        else:
            self._due += held.parts
        measured = held.cls.measured
        before = measured.total
        measured.add((self._loop.time() - held.arrived_s) * 1000, count)
        if before // 1_000 != measured.total // 1_000 and measured.is_above:
            self._alert("%s takes %.1f ms, its bound is %g ms", *_named(measured))

    def _pass_due(self, now_ms: int) -> None:
        if self._copies_due:
            copies, self._copies_due = self._copies_due, []
            self._send_copies(copies)
        if self._due:
            due, self._due = self._due, []
            self._broker.inbound.pass_on_runs(due, now_ms)

    def _tell_backup(self) -> None:
        """Copies first: a discard that came before its copy must be remembered there."""
        copies, self._to_copy = self._to_copy, {}
        discards, self._to_discard = self._to_discard, []
        if copies:
            self._send_copies(list(copies.values()))
        backup = self._pair.partner
        if discards and backup is not None:
            self._send(backup, Discards(self._epoch, discards), self.number)

    def _send_copies(self, copies: list[_Copy]) -> None:
        backup, now_ms = self._pair.partner, self._now_ms()
        if backup is None:
            return
        rows = []
        for job, held, wants_echo in copies:
            rows.append(CopyRow(job.number, job.count, wants_echo, held.encoded(now_ms)))
        for batch in batches(rows, lambda row: len(row.run)):
            if not self._send(backup, Copies(self._epoch, batch), self.number):
                self.uncopied += sum(count for _, count, _, _ in batch)
                self._alert("%d messages were not copied: the link is full or closed", self.uncopied)
                continue
            for number, _, wants_echo, _ in batch:
                if wants_echo:
                    self._echo_s[number] = self._loop.time()
                    if len(self._echo_s) > _ECHOES_MAX:
                        del self._echo_s[next(iter(self._echo_s))]

    def _alert(self, text: str, *values: Any) -> None:
        """At most one every few seconds; the counts are in `millrace stream show`."""
        now_s = self._loop.time()
        if now_s - self._alert_s >= _ALERT_S:
            self._alert_s = now_s
            log.warning(f"stream {self.stream.spec.name}: {text}", *values)

    # --------------------------------------------------------------------------------------- roles

    def begin_term(self) -> None:
        """This node is primary from now on: what was stored and not dispatched goes first, in order."""
        super().begin_term()
        self._epoch = int(self._pair.epoch)
        now_s, now_ms = self._loop.time(), self._now_ms()
        (recover,) = self._frame.step(Promoted())
        assert isinstance(recover, Recover)
        stored = recover.runs
        heard_s, self._pair.heard_s = self._pair.heard_s, None
        if heard_s is not None:
            self._failover.add((now_s - heard_s) * 1000)
        if self._failover.is_above:
            self._alert("%s takes %.1f ms, its bound is %g ms", *_named(self._failover))
        recovered = 0
        for body in stored:
            run, key = decode_run(body, now_ms)
            recovered += run.count
            if run.retain:
                self._retain(run)
            if run.retain or run.expires_ms is not None:
                self._broker.inbound.pass_on(None, topic_of(run.data), run, now_ms)
            else:
                self._broker.inbound.pass_on_runs([(None, run)], now_ms)
            if key[0]:
                self.producers.store(*key)
        self.recovered += recovered
        self._take_offers()
        self._again()
        self._loop.call_soon(self._log_notes)
        if stored:
            log.warning("stream %s: dispatched %d stored messages", self.stream.spec.name, recovered)
        self._wake()

    def on_frame_message(self, sender: str, message: FrameMessage) -> None:
        """What another node says about this shard; MalformedPacket closes its link."""
        match message:
            case Copies():
                self._on_copies(sender, message)
            case Discards():
                for number in message.numbers:
                    self._frame.step(Discarded(epoch=message.epoch, number=number))
            case OfferedRuns():
                self._on_offers(sender, message)
            case OfferAnswers():
                for number, answer in message.rows:
                    self._offers.on_answer(number, answer)
                self._offer_again()
            case Echo():
                self._on_echo(message.number)

    def _on_copies(self, sender: str, copies: Copies) -> None:
        epoch = copies.epoch
        for number, count, wants_echo, run in copies.rows:
            self._frame.step(Copied(epoch=epoch, number=number, messages=run, count=count))
            if wants_echo:
                self._send(sender, Echo(epoch, number), self.number)

    def _on_echo(self, number: int) -> None:
        sent_s = self._echo_s.pop(number, None)
        if sent_s is not None:
            self._way.add((self._loop.time() - sent_s) * 500)
            if self._way.total % 100 == 0 and self._way.is_above:
                self._alert("%s takes %.1f ms, its bound is %g ms", *_named(self._way))

    # --------------------------------------------------------------------------------- passing on

    def _pass_on(self, arrival: Arrival) -> None:
        """At a node that is not primary: what is of one class is one offer."""
        run = arrival.run
        if run is None:
            # What it repeats may still wait for the word of the primary.
            if not self._offers.follow(arrival):
                self._acknowledge(arrival)
            return
        parts = self._classes.split(run) if _is_plain(arrival, run) else None
        if parts is not None:
            rows = [(part, _NO_KEY) for _, part in parts]
        elif run.count > 1:
            # Each is answered for itself, as at the primary.
            for one in split_messages(arrival):
                self._pass_on(one)
            return
        elif self._classes.of(topic_of(run.data)) is None:
            self.refuse([arrival], Reason.IMPLEMENTATION_SPECIFIC)
            return
        else:
            rows = [(run, _key(arrival))]
        if self._offers.has_room(run.count):
            self._offers.add(arrival, rows, self.group.origin, self._loop.time())
        else:
            self._alert("overloaded: %d messages were not passed on", self._offers.overloaded)
            self.refuse([arrival], Reason.SERVER_BUSY)

    def _send_offers(self) -> None:
        leader = self._pair.leader
        if leader is None or self._pair.is_leader:
            self._offer_again()
            return
        for message in self._offers.messages(leader, self._now_ms()):
            # One that is lost on the way is repeated by `tick`.
            self._send(leader, message, self.number)

    def _offer_again(self) -> None:
        """Nobody is primary at this moment, or who was asked is not: ask soon."""
        if self._offers.is_due and not self._is_offering_again:
            self._is_offering_again = True
            self._loop.call_later(_RETRY_S, self._offered_again)

    def _offered_again(self) -> None:
        self._is_offering_again = False
        self._offers.give_up(self._loop.time())
        if self._pair.may_accept:
            self._take_offers()
            self._log_notes()
        elif not self._pair.is_closed:
            self._send_offers()

    def _on_offers(self, sender: str, offered: OfferedRuns) -> None:
        """As primary. Offers are repeated until they are answered, so they are known by their keys."""
        now_ms = self._now_ms()

        def take(body: bytes) -> int:
            return self._take_offered(*decode_run(body, now_ms))

        answers = self._offered.take(sender, offered, take)
        # At once: a note that the same node sends behind them is the newer one.
        self._log_notes()
        self._send(sender, OfferAnswers(answers), self.number)

    def _take_offered(self, run: Run, key: Key) -> int:
        if not self._pair.may_accept:
            return IS_LATER
        return IS_REFUSED if self._take_one(run, key, None) is not None else IS_TAKEN

    def _answer(self, arrival: Arrival, is_taken: bool) -> None:
        if is_taken:
            self._acknowledge(arrival)
        else:
            self.refuse([arrival], Reason.SERVER_BUSY)

    def tick(self) -> None:
        """Once in a while: offers that nobody answered go again, to whoever is primary now."""
        self._offers.give_up(self._loop.time())
        if self._pair.may_accept:
            self._take_offers()
            self._log_notes()
        else:
            self._offers.repeat(self._loop.time())
            self._send_offers()

    def _take_offers(self) -> None:
        """This node is primary now: what it offered to another it takes itself."""
        for number, run, key in self._offers.all():
            self._offers.on_answer(number, self._take_offered(run, key))
        self._offer_again()

    def end(self) -> list[Arrival]:
        notes, self._notes = self._notes, []
        return [*self._offers.end(), *notes, *super().end()]

    # -------------------------------------------------------------------------------------- status

    @property
    def _refused(self) -> int:
        return self._frame.overloaded + self._turned_away

    def shown(self) -> dict[str, Any]:
        rows = [one.measured.shown() for one in self._classes.all]
        return {
            "measured": [*rows, self._way.shown(), self._failover.shown()],
            "overloaded": self._refused + self._offers.overloaded,
            "queued": self._frame.queued,
            "copies": self._frame.copies,
            "stored": self._frame.stored,
            "recovered": self.recovered,
            "uncopied": self.uncopied,
            "dropped": self._frame.dropped,
        }


def _is_plain(arrival: Arrival, run: Run) -> bool:
    """Whether nothing tells its messages from others of their class."""
    return arrival.producer is None and not run.retain and run.expires_ms is None


def _is_alike(one: Run, other: Run) -> bool:
    return one.qos == other.qos and one.v5 == other.v5


def _key(arrival: Arrival) -> Key:
    return arrival.producer or b"", arrival.sequence


def _named(measured: Measured) -> tuple[str, float, float]:
    return measured.name, measured.p99_ms, measured.bound_ms
