"""A shard whose messages go by deadlines: the frame schedule on a node.

The group of the shard decides who is primary, under which epoch and lease; messages do not enter its log. The
primary takes a message, acknowledges it (PROTOCOLS.md 23: accepted, not replicated), and works off copies to
the backup and dispatches to subscribers, earliest deadline first, a bounded number per turn of the loop. A
node that is not primary passes what its clients publish on and acknowledges when the primary has it. Nothing
is stored: who is away misses what is dispatched meanwhile. Words between nodes are gathered and leave
together once per turn of the loop: a frame for every message costs as much as the message.

What takes longer than its bound is reported: the dispatch of each topic class, the way to the backup, and the
failover itself (PROTOCOLS.md 24).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec

from millrace.broker.filters import matches
from millrace.broker.inbound import topic_of
from millrace.broker.intake import Arrival
from millrace.broker.message import Run
from millrace.broker.producers import Verdict
from millrace.broker.routing import Route
from millrace.errors import MalformedPacket
from millrace.kernels import skip
from millrace.node.primary_backup import PairGroup, bounds_of, terms_of
from millrace.node.shard import Shard
from millrace.replication.frame import Deadlines, Job, JobKind, Schedule, deadlines
from millrace.replication.frame_pair import FrameBackup, FramePrimary
from millrace.types import Reason

log = logging.getLogger("millrace.frame")

_COPY, _DISCARD, _OFFER, _TAKEN, _ECHO = range(5)
_JOBS_MAX = 100_000
_COPIES_MAX = 100_000
_JOBS_PER_TURN = 128
_OFFERS_MAX = 10_000
_RETRY_S = 0.02
_OFFER_AGAIN_S = 1.0
_TOPICS_MAX = 100_000
# Every so many copies one is answered, to know how long the way is.
_ECHO_EVERY = 32
_ALERT_S = 10.0

Row = TypeVar("Row")
Wire = tuple[str, bytes, int, bool, bool, bytes, int]
"""Topic, packet, QoS, version 5, retain, producer, sequence."""
_ENCODER = msgspec.msgpack.Encoder()
_COPY_DECODER = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, bool, Wire]]])
_DISCARD_DECODER = msgspec.msgpack.Decoder(tuple[int, list[int]])
_ECHO_DECODER = msgspec.msgpack.Decoder(tuple[int, int])
_OFFER_DECODER = msgspec.msgpack.Decoder(list[tuple[int, Wire]])
_TAKEN_DECODER = msgspec.msgpack.Decoder(list[tuple[int, bool]])
# What one frame carries; one message may be larger.
_BATCH_MAX = 256
_BATCH_BYTES_MAX = 256 * 1024


class Measured:
    """The last thousand of a latency, and whether its p99 is above its bound."""

    __slots__ = ("_recent", "bound_ms", "late", "name", "total")

    def __init__(self, name: str, bound_ms: float) -> None:
        self.name = name
        self.bound_ms = bound_ms
        self.total = 0
        self.late = 0
        self._recent: deque[float] = deque(maxlen=1_000)

    def add(self, took_ms: float) -> None:
        self.total += 1
        self.late += took_ms > self.bound_ms
        self._recent.append(took_ms)

    @property
    def p99_ms(self) -> float:
        ordered = sorted(self._recent)
        return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0

    @property
    def is_above(self) -> bool:
        return self.p99_ms > self.bound_ms

    def shown(self) -> dict[str, Any]:
        return {
            "what": self.name,
            "p99_ms": round(self.p99_ms, 3),
            "bound_ms": self.bound_ms,
            "late": self.late,
            "of": self.total,
            "alert": self.is_above,
        }


class _Class:
    __slots__ = ("filter", "measured", "wanted")

    def __init__(self, filter: str, wanted: Deadlines) -> None:
        self.filter = filter
        self.wanted = wanted
        self.measured = Measured(f"dispatch {filter}", wanted.dispatch_ms)


class _Held:
    """A message between its arrival and its dispatch."""

    __slots__ = ("arrived_s", "cls", "key", "run", "session", "topic")

    def __init__(
        self, topic: str, run: Run, cls: _Class, session: Any, key: tuple[bytes, int], arrived_s: float
    ) -> None:
        self.topic = topic
        self.run = run
        self.cls = cls
        self.session = session
        self.key = key
        self.arrived_s = arrived_s

    def wire(self) -> Wire:
        run = self.run
        return (self.topic, run.data, run.qos, run.v5, run.retain, *self.key)


class FrameShard(Shard):
    def __init__(self, *args: Any, send: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._send = send
        self._loop = asyncio.get_running_loop()
        spec = self.stream.spec.primary_backup
        bounds = bounds_of(spec)
        self._classes = [_Class(one.filter, deadlines(terms_of(one), bounds)) for one in spec.topics]
        self._by_topic: dict[str, _Class | None] = {}
        self._primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=_JOBS_MAX)
        self._backup = FrameBackup(copies_max=_COPIES_MAX)
        self._epoch = 0
        self._held: dict[int, _Held] = {}
        self._is_working = False
        # Messages accepted since jobs were last worked off; each is two jobs at most.
        self._accepted = 0
        self._is_waiting = False
        # What this node passed on to the primary and has no answer for: number -> arrival, wire, when.
        self._offers: dict[int, tuple[Arrival | None, Wire, float]] = {}
        self._next_offer = 0
        # What leaves at the end of the turn: offers by number, copies by number, numbers to discard.
        self._to_offer: list[int] = []
        self._to_copy: dict[int, tuple[int, bool, Wire]] = {}
        self._to_discard: list[int] = []
        # Dispatched in this turn and not handed over yet: neighbours with one route.
        self._joint: list[Run] = []
        self._joint_route: Route | None = None
        self._echo_s: dict[int, float] = {}
        self._way = Measured("to the backup", spec.backup_ms)
        self._failover = Measured("failover", spec.x_ms)
        self._heard_s = self._loop.time()
        self._alert_s = 0.0
        self.recovered = 0
        """Messages that were dispatched from copies after a promotion."""

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
        try:
            self._take_in(arrivals)
        finally:
            self._send_offers()

    def _take_in(self, arrivals: list[Arrival]) -> None:
        for position, arrival in enumerate(arrivals):
            if self._pair.may_accept:
                self._take(arrival)
            elif not self._pair.is_leader and self._pair.is_serving:
                self._pass_on(arrival)
            else:
                # Nobody is primary right now: a bounded wait, as the intake bounds what is read.
                self.intake.arrivals = arrivals[position:]
                if not self._is_waiting:
                    self._is_waiting = True
                    self._loop.call_later(_RETRY_S, self._again)
                return

    def _again(self) -> None:
        self._is_waiting = False
        if self.intake.arrivals and self.intake not in self._broker.inbound.waiting:
            self._broker.inbound.waiting.append(self.intake)
            self._wake()

    def _take(self, arrival: Arrival) -> None:
        """As primary: queue every message of the run, then acknowledge the run."""
        for topic, run, key in self._messages(arrival):
            if key[0] and self.producers.judge(*key) is not Verdict.NEW:
                continue
            reason = self._accept(topic, run, key, arrival.session)
            if reason is not None:
                self.refuse([arrival], reason)
                return
        self._acknowledge(arrival)

    def _messages(self, arrival: Arrival) -> "list[tuple[str, Run, tuple[bytes, int]]]":
        run = arrival.run
        if run is None:
            return []
        found, end = [], 0
        for position in range(run.count):
            start, end = end, skip(run.data, 1, end)
            one = run if run.count == 1 else Run(run.data[start:end], 1, run.qos, run.v5, run.retain)
            key = (arrival.producer or b"", arrival.sequence + position)
            found.append((arrival.topic or topic_of(one.data), one, key))
        return found

    def _accept(self, topic: str, run: Run, key: tuple[bytes, int], session: Any) -> Reason | None:
        cls = self._class_of(topic)
        if cls is None:
            return Reason.IMPLEMENTATION_SPECIFIC
        now_s = self._loop.time()
        has_backup = not self._pair.is_counting_alone
        number = self._primary.arrive(cls.wanted, int(now_s * 1_000_000), has_backup=has_backup)
        if number is None:
            self._alert("overloaded: %d messages were refused", self._primary.overloaded)
            return Reason.SERVER_BUSY
        if key[0]:
            self.producers.store(*key)
        self._held[number] = _Held(topic, run, cls, session, key, now_s)
        self._accepted += 1
        self._start_work()
        return None

    def _class_of(self, topic: str) -> _Class | None:
        """None: no class was admitted for it, so nothing can be promised, and it is refused."""
        if topic not in self._by_topic:
            if len(self._by_topic) >= _TOPICS_MAX:
                self._by_topic.clear()
            found = next((one for one in self._classes if matches(one.filter, topic)), None)
            self._by_topic[topic] = found
        return self._by_topic[topic]

    def _acknowledge(self, arrival: Arrival) -> None:
        broker, session = self._broker, arrival.session
        if arrival.run is not None:
            broker.inbound.uncommitted_bytes -= len(arrival.run.data)
        if arrival.ack and session is not None and session.epoch == arrival.epoch:
            broker.outbound.put(session, arrival.ack)
        if arrival.done is not None:
            arrival.done(0)
        self._wake()

    # ---------------------------------------------------------------------------------------- jobs

    def _start_work(self) -> None:
        if not self._is_working:
            self._is_working = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """Some jobs, then the sockets again: what arrives meanwhile may be due earlier."""
        primary, now_ms = self._primary, self._now_ms()
        # Not fewer than one turn may bring: a turn that takes in more than it works off starves the dispatch.
        budget, self._accepted = _JOBS_PER_TURN + 2 * self._accepted, 0
        for _ in range(budget):
            job = primary.take()
            if job is None:
                self._is_working = False
                break
            held = self._held[job.number]
            if job.kind is JobKind.REPLICATE:
                self._copy(job, held)
                primary.done(job)
                continue
            del self._held[job.number]
            self._dispatch(held, now_ms)
            discard = primary.done(job)
            # A copy that has not left yet need not leave.
            if discard is not None and self._to_copy.pop(discard.number, None) is None:
                self._to_discard.append(discard.number)
        else:
            self._loop.call_soon(self._work)
        self._pass_joint(now_ms)
        self._tell_backup()
        self._wake()

    def _dispatch(self, held: _Held, now_ms: int) -> None:
        """Neighbours with the same receivers leave as one run, at the end of the turn at the latest."""
        inbound, run = self._broker.inbound, held.run
        route = inbound.joint_route(held.topic, run)
        if route is not self._joint_route or not self._joint or not _is_alike(self._joint[0], run):
            self._pass_joint(now_ms)
            self._joint_route = route
        if route is None:
            inbound.pass_on(held.session, held.topic, run, now_ms)
        else:
            self._joint.append(run)
        measured = held.cls.measured
        measured.add((self._loop.time() - held.arrived_s) * 1000)
        if measured.total % 1_000 == 0 and measured.is_above:
            self._alert("%s takes %.1f ms, its bound is %g ms", *self._named(measured))

    def _pass_joint(self, now_ms: int) -> None:
        runs, self._joint = self._joint, []
        if runs and self._joint_route is not None:
            first = runs[0]
            data, count = b"".join(run.data for run in runs), sum(run.count for run in runs)
            run = first if len(runs) == 1 else Run(data, count, first.qos, first.v5)
            self._broker.inbound.pass_on_joint(self._joint_route, run, now_ms)
        self._joint_route = None

    def _copy(self, job: Job, held: _Held) -> None:
        wants_echo = self._primary.copies % _ECHO_EVERY == 0
        self._to_copy[job.number] = job.number, wants_echo, held.wire()

    def _tell_backup(self) -> None:
        """Copies first: a discard that came before its copy must be remembered there."""
        copies, self._to_copy = self._to_copy, {}
        discards, self._to_discard = self._to_discard, []
        backup = self._pair.partner
        if backup is None:
            return
        for batch in _batches(copies.values(), lambda copy: len(copy[2][1])):
            if not self._send(backup, self.number, _frame(_COPY, (self._epoch, batch))):
                return
            for number, wants_echo, _ in batch:
                if wants_echo:
                    self._echo_s[number] = self._loop.time()
                    if len(self._echo_s) > 100:
                        del self._echo_s[next(iter(self._echo_s))]
        if discards:
            self._send(backup, self.number, _frame(_DISCARD, (self._epoch, discards)))

    @staticmethod
    def _named(measured: Measured) -> tuple[str, float, float]:
        return measured.name, measured.p99_ms, measured.bound_ms

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
        now_s = self._loop.time()
        stored = self._backup.promote()
        if self._backup.epoch:
            self._failover.add((now_s - self._heard_s) * 1000)
        if self._failover.is_above:
            self._alert("%s takes %.1f ms, its bound is %g ms", *self._named(self._failover))
        for body in stored:
            topic, packet, qos, v5, retain, producer, sequence = _decode_wire(body)
            self.recovered += 1
            self._broker.inbound.pass_on(None, topic, Run(packet, 1, qos, v5, retain), self._now_ms())
            if producer:
                self.producers.store(producer, sequence)
        for number in list(self._offers):
            self._take_offer(number)
        if stored:
            log.warning("stream %s: dispatched %d stored messages", self.stream.spec.name, len(stored))
        self._wake()

    def on_frame(self, sender: str, body: bytes) -> None:
        """What another node says about this shard; MalformedPacket closes its link."""
        try:
            op, data = body[0], memoryview(body)[1:]
            if op == _COPY:
                epoch, copies = _COPY_DECODER.decode(data)
                self._heard_s = self._loop.time()
                for number, wants_echo, wire in copies:
                    self._backup.on_copy(epoch, number, _ENCODER.encode(wire))
                    if wants_echo:
                        self._send(sender, self.number, _frame(_ECHO, (epoch, number)))
            elif op == _DISCARD:
                self._heard_s = self._loop.time()
                epoch, numbers = _DISCARD_DECODER.decode(data)
                for number in numbers:
                    self._backup.on_discard(epoch, number)
            elif op == _OFFER:
                self._on_offers(sender, _OFFER_DECODER.decode(data))
            elif op == _TAKEN:
                for number, is_taken in _TAKEN_DECODER.decode(data):
                    self._on_taken(number, is_taken)
            elif op == _ECHO:
                self._on_echo(_ECHO_DECODER.decode(data)[1])
            else:
                raise MalformedPacket(f"a word of an unknown kind {op} about a frame schedule")
        except (msgspec.DecodeError, IndexError) as error:
            raise MalformedPacket(f"a word about a frame schedule that cannot be read: {error}") from None

    def _on_echo(self, number: int) -> None:
        sent_s = self._echo_s.pop(number, None)
        if sent_s is not None:
            self._way.add((self._loop.time() - sent_s) * 500)
            if self._way.total % 100 == 0 and self._way.is_above:
                self._alert("%s takes %.1f ms, its bound is %g ms", *self._named(self._way))

    # --------------------------------------------------------------------------------- passing on

    def _pass_on(self, arrival: Arrival) -> None:
        """At a node that is not primary: every message becomes an offer; the last answers the publisher."""
        messages = self._messages(arrival)
        if len(self._offers) + len(messages) > _OFFERS_MAX:
            self.refuse([arrival], Reason.SERVER_BUSY)
            return
        if not messages:
            self._acknowledge(arrival)
        for position, (topic, run, key) in enumerate(messages):
            self._next_offer += 1
            if not key[0]:
                # Repeated until it is answered, so the primary must know it again. A replica that begins
                # anew counts anew, hence the origin: its numbers were used by the one before it.
                key = (b"frame/%x" % self.group.origin, self._next_offer)
            wire: Wire = (topic, run.data, run.qos, run.v5, run.retain, *key)
            is_last = position == len(messages) - 1
            self._offers[self._next_offer] = (arrival if is_last else None, wire, self._loop.time())
            self._to_offer.append(self._next_offer)

    def _send_offers(self) -> None:
        numbers, self._to_offer = self._to_offer, []
        leader = self._pair.leader
        if not numbers or leader is None:
            return  # they are offered again
        rows = [(number, self._offers[number][1]) for number in numbers if number in self._offers]
        for batch in _batches(rows, lambda row: len(row[1][1])):
            self._send(leader, self.number, _frame(_OFFER, batch))

    def _on_offers(self, sender: str, offers: list[tuple[int, Wire]]) -> None:
        """As primary. Offers are repeated until they are answered, so they are known by their keys."""
        if self._pair.may_accept:
            answers = [(number, self._take_offered(wire)) for number, wire in offers]
            self._send(sender, self.number, _frame(_TAKEN, answers))

    def _take_offered(self, wire: Wire) -> bool:
        topic, packet, qos, v5, retain, producer, sequence = wire
        if self.producers.judge(producer, sequence) is not Verdict.NEW:
            return True
        return self._accept(topic, Run(packet, 1, qos, v5, retain), (producer, sequence), None) is None

    def _on_taken(self, number: int, is_taken: bool) -> None:
        arrival, _, _ = self._offers.pop(number, (None, None, 0.0))
        if arrival is not None and is_taken:
            self._acknowledge(arrival)
        elif arrival is not None:
            self.refuse([arrival], Reason.SERVER_BUSY)

    def tick(self) -> None:
        """Once in a while: offers that nobody answered go again, to whoever is primary now."""
        now_s = self._loop.time()
        for number, (arrival, wire, offered_s) in list(self._offers.items()):
            if now_s - offered_s >= _OFFER_AGAIN_S:
                if self._pair.may_accept:
                    self._take_offer(number)
                else:
                    self._offers[number] = (arrival, wire, now_s)
                    self._to_offer.append(number)
        self._send_offers()

    def _take_offer(self, number: int) -> None:
        """This node is primary now: what it offered to another it takes itself."""
        self._on_taken(number, self._take_offered(self._offers[number][1]))

    def end(self) -> list[Arrival]:
        offered = [arrival for arrival, _, _ in self._offers.values() if arrival is not None]
        self._offers.clear()
        return [*offered, *super().end()]

    # -------------------------------------------------------------------------------------- status

    def shown(self) -> dict[str, Any]:
        rows = [one.measured.shown() for one in self._classes]
        return {
            "measured": [*rows, self._way.shown(), self._failover.shown()],
            "overloaded": self._primary.overloaded,
            "queued": len(self._primary),
            "copies": self._primary.copies,
            "stored": len(self._backup),
            "recovered": self.recovered,
        }


def _is_alike(one: Run, other: Run) -> bool:
    return one.qos == other.qos and one.v5 == other.v5


def _batches(rows: Iterable[Row], bytes_of: Callable[[Row], int]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size_bytes = 0
    for row in rows:
        batch.append(row)
        size_bytes += bytes_of(row)
        if len(batch) >= _BATCH_MAX or size_bytes >= _BATCH_BYTES_MAX:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _frame(op: int, body: Any) -> bytes:
    return bytes((op,)) + _ENCODER.encode(body)


_WIRE_DECODER = msgspec.msgpack.Decoder(Wire)


def _decode_wire(body: bytes) -> Wire:
    wire: Wire = _WIRE_DECODER.decode(body)
    return wire
