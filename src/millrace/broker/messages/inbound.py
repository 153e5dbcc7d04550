"""How messages come in: the fast path of runs, the careful path of single messages, and capture.

A run that no log keeps is delivered and acknowledged at once. A captured one becomes an `Arrival` in the
intake of its shard and comes back here when its block is committed: only then is it delivered and
acknowledged [rule 1]. The careful path takes what runs cannot carry: retained messages, expiry,
aliases, resent messages.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, chain
from typing import Any

from millrace.broker.entries.sessions import Qos2Received
from millrace.broker.groups.share_group import ShareGroup
from millrace.broker.messages.intake import LEISURE_MS, Arrival, Intake
from millrace.broker.messages.message import Run, expiry_of, payload_is_empty
from millrace.broker.messages.outbound import Outbound
from millrace.broker.sessions.journal import Journal, TakeArrival
from millrace.broker.sessions.session import Session
from millrace.broker.shards.retained import Retained
from millrace.broker.stats import Stats
from millrace.broker.topics.routing import Route, Router
from millrace.kernels import ack_run, acks, packet_ids, publish, scan, skip
from millrace.reasons import Reason

_PUBACK, _PUBREC = 0x40, 0x50
# One acknowledgement without a reason.
_ACK_BYTES = 4

_ACK_REASONS = frozenset(
    (
        Reason.UNSPECIFIED,
        Reason.IMPLEMENTATION_SPECIFIC,
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_NAME_INVALID,
        Reason.PACKET_ID_IN_USE,
        Reason.QUOTA_EXCEEDED,
        Reason.PAYLOAD_FORMAT_INVALID,
    )
)

Key = tuple[bytes, int]
"""Producer and sequence: what tells a message that is sent again from a new one."""

Relay = tuple[str, Run, str]
"""A run for clients of another node: the node, the run, and the key of the group it is for, if any."""

Outcome = tuple[Arrival, int | None]
"""An arrival and the offset at which it stands, None where it could not be stored."""


class Inbound:
    def __init__(self, router: Router, outbound: Outbound, retained: Retained, stats: Stats) -> None:
        self._router = router
        self._outbound = outbound
        self._retained = retained
        self._stats = stats
        # Intakes with arrivals; see `take_waiting`.
        self.waiting: list[Intake] = []
        # How many of these arrivals may wait a moment for more.
        self._leisurely = 0
        # Bytes that arrived and are not committed: beyond a bound the node stops reading publishers.
        self.uncommitted_bytes = 0
        # See `take_relays` and `take_retained`.
        self.relays: list[Relay] = []
        self.retained_here: list[tuple[str, Run]] = []
        # What became of arrivals that somebody waits for; see `Broker.take_outcomes`.
        self.outcomes: list[Outcome] = []
        self._turn = 0
        # Arrivals so far.
        self._arrival_number = 0
        # The highest of all sessions: those that came after it need no look at theirs.
        self.refused_until = 0
        # The broker's; see there.
        self.journal = Journal()

    # ------------------------------------------------------------------------------- for the node

    def take_waiting(self) -> list[Intake]:
        """The intakes with arrivals, once per turn of the loop: the node cuts blocks of what is in them."""
        waiting, self.waiting = self.waiting, []
        self._leisurely = 0
        return waiting

    @property
    def waiting_count(self) -> int:
        count = 0
        for intake in self.waiting:
            count += len(intake.arrivals)
        return count

    def has_urgent(self, count: int) -> bool:
        """Whether, of so many arrivals that wait, one is to be cut into a block at the end of this turn."""
        return count > self._leisurely

    @property
    def is_urgent(self) -> bool:
        """The same of those that wait now."""
        return bool(self.waiting) and self.has_urgent(self.waiting_count)

    def take_relays(self) -> list[Relay]:
        """Runs to be sent to other nodes."""
        relays, self.relays = self.relays, []
        return relays

    def take_retained(self) -> list[tuple[str, Run]]:
        """Retained messages of clients here that no log keeps, of which every node is to know."""
        retained, self.retained_here = self.retained_here, []
        return retained

    # ---------------------------------------------------------------------------------- fast path

    def publish_runs(
        self, session: Session, first: int, route: Route, data: bytes, count: int, now_ms: int, pause_ms: int
    ) -> None:
        """A run from one chunk for one route, without retain and expiry. Sees to its acknowledgement. A
        client that was silent for `pause_ms` before may have to wait for it."""
        session.traffic.received[first >> 1 & 3] += count
        v5 = session.v5
        if first == 0x30:
            lone = route.lone[v5]
            if lone is not None and not lone.blocked:
                lone.out.append(data)
                if not lone.dirty:
                    lone.dirty = True
                    self._outbound.dirty.append(lone)
                self._stats.sent += count
                lone.sent_qos0 += count
                return
        elif first == 0x32 and route.direct is not None:
            outbound = self._outbound
            outbound.deliver_shared(route.direct, Run(data, count, 1, v5), now_ms)
            session.out.append(acks(data, _PUBACK))
            if not session.dirty:
                session.dirty = True
                outbound.dirty.append(session)
            return
        intake = route.intake
        if first == 0x30:
            if intake is not None and intake.captures_all and route.allowed:
                run = Run(data, count, 0, v5)
                self._arrive(intake, Arrival(session, route, self._router.generation, run, None, b""))
                self._leisurely += pause_ms >= LEISURE_MS and intake.gathers
            elif route.simple[v5]:
                self._outbound.forward(route.plain[v5], data, count)
            elif not route.allowed:
                self._stats.denied += count
            else:
                run = Run(data, count, 0, v5)
                self._outbound.deliver(session, _topic(route, data), route, run, now_ms)
                self._relay(route, run)
            return
        if not route.allowed:
            self._stats.denied += count
            self._refuse(session, first, data, Reason.NOT_AUTHORIZED)
            return
        if first == 0x32:
            if intake is not None:
                run = Run(data, count, 1, v5)
                ack = acks(data, _PUBACK)
                self._arrive(intake, Arrival(session, route, self._router.generation, run, None, ack))
                self._leisurely += pause_ms >= LEISURE_MS and intake.gathers
                return
            if route.has_receivers:
                run = Run(data, count, 1, v5)
                self._outbound.deliver(session, _topic(route, data), route, run, now_ms)
                self._relay(route, run)
            self._outbound.put(session, acks(data, _PUBACK))
            return
        self._publish_qos2(session, route, data, count, now_ms)

    def _publish_qos2(self, session: Session, route: Route, data: bytes, count: int, now_ms: int) -> None:
        """A run at QoS 2 that its publisher may publish. Ids that were received already make it slower."""
        intake = route.intake
        if not self._is_fresh(session, data, count):
            self._publish_singly(session, data, count, now_ms)
            return
        run, ack = Run(data, count, 2, session.v5), acks(data, _PUBREC)
        if intake is not None:
            arrival = Arrival(session, route, self._router.generation, run, None, ack)
            if session.is_recorded:
                self._arrive_recorded(intake, arrival)
            else:
                self._arrive(intake, arrival)
            return
        self._outbound.put(session, ack)
        if route.has_receivers:
            self._outbound.deliver(session, _topic(route, data), route, run, now_ms)
            self._relay(route, run)

    @staticmethod
    def _is_fresh(session: Session, data: bytes, count: int) -> bool:
        """QoS 2: whether none of these ids waits for its release. From now on they all do."""
        ids = packet_ids(data)
        received = session.received
        if received is None:
            received = session.received = set()
        if received.isdisjoint(ids):
            before = len(received)
            received.update(ids)
            if len(received) == before + count:
                return True
            received.difference_update(ids)
        return False

    def _publish_singly(self, session: Session, data: bytes, count: int, now_ms: int) -> None:
        """A QoS 2 run with repeats in it: each message by itself, as a repeat waits for the one it repeats,
        wherever that goes."""
        session.traffic.received[2] -= count
        for packet_id, (start, end) in zip(packet_ids(data), publish.packet_bounds(data), strict=True):
            run = Run(data[start:end], 1, 2, session.v5)
            topic = topic_of(run.data)
            if packet_id in (session.received or ()):
                self.repeat(session, topic, run, packet_id)
            else:
                self.accept(session, topic, run, packet_id, now_ms)

    def _arrive_recorded(self, intake: Intake, arrival: Arrival) -> None:
        """QoS 2 of a session with a record: the ids are on disk before the message is, and the message is
        keyed by their tokens, so that a repeat after a crash finds it [rule 8]."""
        session, run = arrival.session, arrival.run
        assert session is not None and run is not None
        self._arrival_number = arrival.arrival_number = self._arrival_number + 1
        if arrival.producer is None:
            arrival.producer = session.producer
            arrival.sequence = session.next_token
        session.next_token += run.count
        ids = packet_ids(run.data)
        if session.logged_ids is None:
            session.logged_ids = set()
        session.logged_ids.update(ids)
        self.journal.add(Qos2Received(session.client_id, tuple(ids)), TakeArrival(intake, arrival, ids))

    def resume_arrival(self, written: TakeArrival) -> None:
        """Its ids are on disk. If the session moved meanwhile, the client sends again to whoever serves it
        now. Back at this node it does not, though perhaps without a record: its id counts as received."""
        session, ids = written.arrival.session, written.ids
        assert session is not None
        if ids is None or session.is_recorded or not (session.received or set()).isdisjoint(ids):
            self._arrive(written.intake, written.arrival)

    def _arrive_after(self, intake: Intake, repeat: Arrival) -> None:
        """A repeat is answered no earlier than the message it repeats. That one may still wait until its id
        is on disk before it comes here; the repeat then waits behind it."""
        session = repeat.session
        assert session is not None
        self._arrival_number = repeat.arrival_number = self._arrival_number + 1
        if session.is_recorded or session.logged_ids:
            self.journal.add(Qos2Received(session.client_id), TakeArrival(intake, repeat))
        else:
            self._arrive(intake, repeat)

    # ------------------------------------------------------------------------------- careful path

    def accept(
        self,
        session: Session,
        topic: str,
        run: Run,
        packet_id: int,
        now_ms: int,
        key: Key | None = None,
        route: Route | None = None,
        is_empty: bool | None = None,
    ) -> bool:
        """One message of a client, seen to in every way, its acknowledgement included. A `key` of the
        client's own makes a repeat known, also over another connection. `is_empty`: of one to retain, whether
        it has no payload, where that is known. False where there is no room and the client cannot be told so
        in MQTT 3.1.1: the connection must go, as in `refused`."""
        route = route or self._route(session, topic)
        first = 0x32 if run.qos == 1 else 0x34
        if not route.allowed:
            self._stats.denied += 1
            if run.qos:
                self._refuse(session, first, run.data, Reason.NOT_AUTHORIZED)
            return True
        if is_empty is None:
            is_empty = run.retain and payload_is_empty(run)
        if run.retain and not is_empty and not self._retained.has_room(topic, run, session.username):
            if run.qos and session.v5:
                self._refuse(session, first, run.data, Reason.QUOTA_EXCEEDED)
            return session.v5 or not run.qos
        if run.qos == 2:
            session.received = session.received or set()
            session.received.add(packet_id)
        ack = acks(run.data, _PUBACK if run.qos == 1 else _PUBREC) if run.qos else b""
        session.traffic.received[run.qos] += 1
        intake = route.intake
        if intake is not None and (run.qos or intake.captures_all):
            arrival = Arrival(session, route, self._router.generation, run, topic, ack)
            if key is not None:
                arrival.producer, arrival.sequence = key
                arrival.is_doubtful = True
            if run.qos == 2 and session.is_recorded:
                self._arrive_recorded(intake, arrival)
            else:
                self._arrive(intake, arrival)
            return True
        self._settle_noted(session, topic, route, run, is_empty, now_ms)
        if ack:
            self._outbound.put(session, ack)
        return True

    def repeat(self, session: Session, topic: str, run: Run, packet_id: int, key: Key | None = None) -> None:
        """A QoS 2 message that is here already is answered again, but no earlier than the first time."""
        route = self._route(session, topic)
        ack = ack_run(_PUBREC, packet_id, 1)
        if session.uncertain and packet_id in session.uncertain and route.intake is not None:
            # From before a restart: its shard knows by the token whether it got there.
            arrival = Arrival(session, route, self._router.generation, run, topic, ack)
            token = session.uncertain.pop(packet_id)
            arrival.producer, arrival.sequence = key or (session.producer, token)
            arrival.is_doubtful = True
            # In the order in which they came ([MQTT-4.6.0-3]), others may wait for their ids to be written.
            self._arrive_after(route.intake, arrival)
            return
        if route.intake is not None:
            arrival = Arrival(session, route, self._router.generation, None, topic, ack)
            self._arrive_after(route.intake, arrival)
        else:
            self._outbound.put(session, ack)

    def publish(self, publisher: Session | None, topic: str, run: Run, now_ms: int) -> Reason:
        """One message past every log: the broker's own, or one that is not captured. Not acknowledged."""
        if publisher is not None:
            route = self._route(publisher, topic)
            if not route.allowed:
                self._stats.denied += 1
                return Reason.NOT_AUTHORIZED
            publisher.traffic.received[run.qos] += run.count
        else:
            route = self._router.route(topic)
        if run.retain and not payload_is_empty(run) and not self._retained.has_room(topic, run):
            return Reason.QUOTA_EXCEEDED
        self._settle(publisher, topic, route, run, now_ms)
        return Reason.SUCCESS if route.has_receivers else Reason.NO_MATCHING_SUBSCRIBERS

    def enter(self, topic: str, run: Run, now_ms: int, ack: Arrival | None = None) -> None:
        """A message of the broker itself (a will, HTTP) by the way its stream asks for."""
        route = self._router.route(topic)
        intake = route.intake
        if intake is not None and (run.qos or intake.captures_all):
            self._arrive(intake, ack or Arrival(None, route, self._router.generation, run, topic, b""))
        else:
            self._settle_noted(None, topic, route, run, run.retain and payload_is_empty(run), now_ms)

    def _settle_noted(
        self, publisher: Session | None, topic: str, route: Route, run: Run, is_empty: bool, now_ms: int
    ) -> None:
        """One that its stream does not capture is delivered from memory; a value to retain is logged
        nevertheless [rule 6]."""
        if route.intake is None or not run.retain:
            self._settle(publisher, topic, route, run, now_ms, is_empty)
            return
        self._retained.show(topic, run, is_empty=is_empty)
        if publisher is not None:
            self._retained.own(topic, publisher.username)
        if route.has_receivers:
            self._hand_on(publisher, topic, route, run, now_ms)
        note = Arrival(None, route, self._router.generation, run, topic, b"")
        note.is_retained_only = note.is_shown = True
        self._arrive(route.intake, note)

    def _settle(
        self,
        publisher: Session | None,
        topic: str,
        route: Route,
        run: Run,
        now_ms: int,
        is_empty: bool | None = None,
    ) -> None:
        if run.retain and not run.shard:
            # What a log keeps is retained by its place there [rule 17], by the shard.
            self._retained.keep(topic, run, is_empty=payload_is_empty(run) if is_empty is None else is_empty)
        if run.retain and publisher is not None:
            self._retained.own(topic, publisher.username)
        self._hand_on(publisher, topic, route, run, now_ms)

    def _hand_on(self, publisher: Session | None, topic: str, route: Route, run: Run, now_ms: int) -> None:
        self._outbound.deliver(publisher, topic, route, run, now_ms)
        if run.shard:
            return
        if run.retain and route.intake is None and not topic.startswith("$"):
            # Those that want it get it with its stamp, like those that only have to know it.
            self.retained_here.append((topic, run))
            self._relay_to_groups(route, run)
        else:
            self._relay(route, run)

    def pass_on(self, publisher: Session | None, topic: str, run: Run, now_ms: int) -> None:
        """Deliver what no log keeps, here and where other nodes have clients that want it. A value to retain
        was noted when it came in: a newer one may be retained by now."""
        self._hand_on(publisher, topic, self._router.delivery_route(topic.encode()), run, now_ms)

    def pass_on_runs(self, parts: list[tuple[Session | None, Run]], now_ms: int) -> None:
        """As `pass_on`, for runs of any topics with their publishers, in order. All have the same QoS and
        version, none is retained or expires. Neighbours go together where nothing depends on their topic,
        their publisher or their being one message."""
        first = parts[0][1]
        data = first.data if len(parts) == 1 else b"".join([run.data for _, run in parts])
        spans = self._delivery_spans(data, first.v5)
        for route, start, end, count in zip(spans[1::5], spans[2::5], spans[3::5], spans[4::5], strict=True):
            if not (route.groups or route.far_groups or route.no_local):
                self.pass_on_joint(route, Run(data[start:end], count, first.qos, first.v5), now_ms)
                continue
            ends = list(accumulate(len(run.data) for _, run in parts))
            at = start
            while at < end:
                publisher, _ = parts[bisect_right(ends, at)]
                packet = data[at : skip(data, 1, at)]
                self.pass_on(publisher, topic_of(packet), Run(packet, 1, first.qos, first.v5), now_ms)
                at += len(packet)

    def _delivery_spans(self, data: bytes, v5: bool) -> list[Any]:
        """As from the scan, to the end of `data`: topics that were not met yet are looked up."""
        found: list[Any] = []
        position, size = 0, len(data)
        while position < size:
            position, spans = scan(data, position, self._router.deliveries, v5, size)
            if position < size:
                self._router.learn_deliveries(data, position)
                end = skip(data, 1, position)
                route = self._router.delivery_route(topic_of(data[position:end]).encode())
                spans += (data[position], route, position, end, 1)
                position = end
            for at in range(0, len(spans), 5):
                if found and found[-4] is spans[at + 1]:
                    found[-2] = spans[at + 3]
                    found[-1] += spans[at + 4]
                else:
                    found += spans[at : at + 5]
        return found

    def pass_on_joint(self, route: Route, run: Run, now_ms: int) -> None:
        """As `pass_on`, for neighbours that all have this route."""
        self._outbound.deliver(None, None, route, run, now_ms)
        self._relay(route, run)

    def _relay(self, route: Route, run: Run) -> None:
        """To other nodes with clients that want it: only what no log brings there [E2]."""
        for peer in route.remotes:
            self.relays.append((peer, run, ""))
        self._relay_to_groups(route, run)

    def _relay_to_groups(self, route: Route, run: Run) -> None:
        for key, peers in route.far_groups:
            # What is not stored: the publisher's node picks the member's [rule 13].
            self._turn += 1
            self.relays.append((peers[self._turn % len(peers)], run, key))

    def relayed_to_group(
        self, group: ShareGroup, data: bytes, qos: int, v5: bool, retain: bool, now_ms: int
    ) -> None:
        """Packets from another node for one member of a group here."""
        count = sum(1 for _ in publish.packet_bounds(data))
        if count == 1:
            # Those that expire come alone.
            self._outbound.deliver_group(group, _single(data, qos, v5, retain, now_ms), now_ms)
        elif count:
            self._outbound.deliver_group(group, Run(data, count, qos, v5, retain), now_ms)

    def relayed(self, data: bytes, qos: int, v5: bool, retain: bool, now_ms: int) -> None:
        """Packets from another node: for the clients of this one and nobody else."""
        position, size = 0, len(data)
        while position < size:
            position, spans = scan(data, position, self._router.deliveries, v5, size)
            for at in range(0, len(spans), 5):
                _, route, start, end, count = spans[at : at + 5]
                self._deliver_relayed(route, Run(data[start:end], count, qos, v5, retain), now_ms)
            if position < size:
                # A topic not met yet, or properties that concern the broker: this one by itself.
                packet = data[position : skip(data, 1, position)]
                position += len(packet)
                run = _single(packet, qos, v5, retain, now_ms)
                self._deliver_relayed(self._router.delivery_route(topic_of(packet).encode()), run, now_ms)

    def relayed_retained(self, topic: str, run: Run, now_ms: int) -> None:
        """One retained message from another node, for the clients of this one."""
        self._deliver_relayed(self._router.delivery_route(topic.encode()), run, now_ms)

    def _deliver_relayed(self, route: Route, run: Run, now_ms: int) -> None:
        topic = topic_of(run.data) if route.no_local else None
        self._outbound.deliver(None, topic, route, run, now_ms, with_groups=False)

    def _route(self, session: Session, topic: str) -> Route:
        table = self._router.table(session.principal)
        return table.get(topic.encode()) or self._router.resolve(session.principal, table, topic)

    # ------------------------------------------------------------------------------------ capture

    def _arrive(self, intake: Intake, arrival: Arrival) -> None:
        if not arrival.arrival_number:
            self._arrival_number = arrival.arrival_number = self._arrival_number + 1
        if not intake.arrivals:
            self.waiting.append(intake)
        intake.arrivals.append(arrival)
        if arrival.run is not None:
            self.uncommitted_bytes += len(arrival.run.data)

    @staticmethod
    def is_overtaking(arrival: Arrival) -> bool:
        """Whether it came before its client had to be sent away because of a message that could not be
        stored, and is in no log yet. The client sends all of it again, in its order: what came behind that
        message must not stand before it (MQTT 4.6), and only an answer may be one to it."""
        session = arrival.session
        return session is not None and bool(arrival.ack) and arrival.arrival_number <= session.refused_until

    def note_ended(self, arrival: Arrival) -> None:
        """Of a value to retain: it is in the log, or will not be."""
        if arrival.is_shown:
            arrival.is_shown = False
            assert arrival.topic is not None
            self._retained.settle(arrival.topic)

    def forget(self, arrival: Arrival) -> None:
        """The message is in the log already: only the answer is left to give."""
        if arrival.run is not None:
            self.uncommitted_bytes -= len(arrival.run.data)
            arrival.run = None

    def arrive_again(self, arrivals: list[Arrival], now_ms: int) -> None:
        """Their shard was sealed before they got there: by the routes of now, packet by packet, and in the
        order in which they came in among what waits there, which may be from other sealed shards as well."""
        moved: dict[Intake, list[Arrival]] = {}
        for one in chain.from_iterable(map(split_messages, sorted(arrivals, key=_arrival_number))):
            if one.run is not None:
                one.topic = topic_of(one.run.data)
                # Its client may have taken it to another node, and that to a log which is sealed since.
                one.is_doubtful |= one.session is not None and one.producer == one.session.producer
            # An answer goes by its topic as well: behind the message it repeats, which may have moved before.
            assert one.topic is not None
            one.route, one.generation = self._router.route(one.topic), self._router.generation
            if one.route.intake is None:
                # The stream that kept this topic was changed to keep nothing.
                self.committed([one], 0, 0, now_ms)
            else:
                moved.setdefault(one.route.intake, []).append(one)
        for intake, some in moved.items():
            if not intake.arrivals:
                self.waiting.append(intake)
            intake.arrivals = sorted([*some, *intake.arrivals], key=_arrival_number)

    def committed(self, arrivals: list[Arrival], shard: int, offset: int, now_ms: int) -> None:
        """These arrivals are committed at `offset` onward, in order: deliver and acknowledge them."""
        generation = self._router.generation
        for arrival in arrivals:
            run = arrival.run
            if run is not None:
                self.uncommitted_bytes -= len(run.data)
                if arrival.is_retained_only:
                    if not shard:
                        assert arrival.topic is not None
                        self._retained.keep(arrival.topic, run, is_empty=payload_is_empty(run))
                    self.note_ended(arrival)
                    continue
                run.shard = shard
                run.offset = offset
                offset += run.count
                if arrival.is_input:
                    pass
                elif arrival.topic is not None:
                    is_good = arrival.generation == generation
                    route = arrival.route if is_good else self._router.route(arrival.topic)
                    self._settle(arrival.session, arrival.topic, route, run, now_ms)
                elif arrival.generation == generation:
                    route = arrival.route
                    if route.has_receivers:
                        self._outbound.deliver(arrival.session, _topic(route, run.data), route, run, now_ms)
                else:
                    self._deliver_again_routed(arrival, run, now_ms)
            session = arrival.session
            if arrival.ack and session is not None and session.epoch == arrival.epoch:
                self._outbound.put(session, arrival.ack)
            if arrival.waiter is not None:
                self.outcomes.append((arrival, offset - (run.count if run is not None else 0)))

    def stored(self, arrivals: list[Arrival], shard: int, offset: int, now_ms: int) -> None:
        """These stand in a leaderless log from `offset` on: for the plain subscribers here. Groups and what
        is retained are for whoever keeps that log, and `answered` follows when enough nodes have them."""
        for arrival in arrivals:
            run = arrival.run
            if run is None:
                continue
            run.shard = shard
            run.offset = offset
            offset += run.count
            if arrival.generation != self._router.generation:
                self._deliver_again_routed(arrival, run, now_ms, with_groups=False)
                continue
            topic = arrival.topic or _topic(arrival.route, run.data)
            self._outbound.deliver(arrival.session, topic, arrival.route, run, now_ms, with_groups=False)

    def answered(self, arrivals: list[Arrival], offset: int) -> None:
        """What was `stored` from `offset` on is acknowledged."""
        for arrival in arrivals:
            run, session = arrival.run, arrival.session
            if arrival.ack and session is not None and session.epoch == arrival.epoch:
                self._outbound.put(session, arrival.ack)
            if arrival.waiter is not None:
                self.outcomes.append((arrival, offset))
            if run is not None:
                self.uncommitted_bytes -= len(run.data)
                offset += run.count

    def _deliver_again_routed(
        self, arrival: Arrival, run: Run, now_ms: int, *, with_groups: bool = True
    ) -> None:
        """Subscriptions changed between arrival and commit: packet by packet, by the routes of now."""
        for position, (start, end) in enumerate(publish.packet_bounds(run.data)):
            one = Run(run.data[start:end], 1, run.qos, run.v5)
            one.shard, one.offset = run.shard, run.offset + position
            topic = topic_of(one.data)
            route = self._router.route(topic)
            self._outbound.deliver(arrival.session, topic, route, one, now_ms, with_groups=with_groups)

    def refused(self, arrivals: list[Arrival], reason: Reason) -> list[Session]:
        """These could not be logged. Returns the sessions whose clients cannot be told so: the node closes
        their connections, because a false acknowledgement is the one thing they must not get. What else came
        from them until now is not to be logged either; see `is_overtaking`."""
        mute: dict[Session, None] = {}
        for arrival in arrivals:
            run, session = arrival.run, arrival.session
            if run is not None:
                self.uncommitted_bytes -= len(run.data)
            self.note_ended(arrival)
            self._stats.publishes_refused[reason.name] += 1 if run is None else run.count
            arrival.reason = reason
            if arrival.waiter is not None:
                self.outcomes.append((arrival, None))
            if session is None or not arrival.ack:
                continue
            is_here = session.epoch == arrival.epoch
            if is_here and (
                not session.v5 or _may_be_stored(session, arrival) or self.is_overtaking(arrival)
            ):
                mute[session] = None
            is_told = is_here and session not in mute
            if not is_told:
                session.refused_until = self.refused_until = self._arrival_number
            if run is not None and run.qos == 2 and session.received:
                self._unreceive(session, arrival, packet_ids(run.data), is_told=is_told)
            if is_told:
                self._tell_refused(session, arrival.ack, reason)
        return list(mute)

    @staticmethod
    def _unreceive(session: Session, arrival: Arrival, ids: list[int], *, is_told: bool) -> None:
        """QoS 2 that was not stored must not pass for stored when it is sent again."""
        assert session.received is not None
        if is_told or arrival.producer is None or not session.is_recorded:
            # To a client that is told, the id is free again (MQTT 5, 4.3.3).
            session.received.difference_update(ids)
            (session.logged_ids or set()).difference_update(ids)
            return
        # This may have been a repeat already, of one that an earlier run of this program stored: the next one
        # has the same token.
        tokens = dict(zip(ids, range(arrival.sequence, arrival.sequence + len(ids)), strict=True))
        session.uncertain = {**(session.uncertain or {}), **tokens}

    def _refuse(self, session: Session, first: int, data: bytes, reason: Reason) -> None:
        """MQTT 5 is told; 3.1.1 cannot be, and gets an acknowledgement ([MQTT-3.3.5-2])."""
        kind = _PUBACK if first == 0x32 else _PUBREC
        if not session.v5:
            self._outbound.put(session, acks(data, kind))
            if kind == _PUBREC:
                session.received = (session.received or set()) | set(packet_ids(data))
            return
        self._tell_refused(session, acks(data, kind), reason)

    def _tell_refused(self, session: Session, ack: bytes, reason: Reason) -> None:
        """In place of these acknowledgements, of MQTT 5."""
        # PUBACK and PUBREC know fewer reasons than other packets (MQTT 5, 3.4.2.1, 3.5.2.1).
        code = bytes((reason if reason in _ACK_REASONS else Reason.IMPLEMENTATION_SPECIFIC,))
        for at in range(0, len(ack), _ACK_BYTES):
            self._outbound.put(session, bytes((ack[0], 3)) + ack[at + 2 : at + _ACK_BYTES] + code)


def _single(packet: bytes, qos: int, v5: bool, retain: bool, now_ms: int) -> Run:
    """One message of another node's client, with its expiry."""
    run = Run(packet, 1, qos, v5, retain)
    expiry_s = expiry_of(packet) if v5 else None
    if expiry_s is not None:
        run.expires_ms = now_ms + expiry_s * 1000
    return run


def _arrival_number(arrival: Arrival) -> int:
    return arrival.arrival_number


def _may_be_stored(session: Session, arrival: Arrival) -> bool:
    """Whether only the answer to a repeat was refused, whose message may stand in a log, unless that was
    refused too: then its id is free again. Or a repeat from before a restart, which a log may have that is
    not applied here so far."""
    if arrival.run is not None:
        return arrival.is_doubtful and arrival.producer == session.producer
    ack = arrival.ack
    ids = [int.from_bytes(ack[at + 2 : at + _ACK_BYTES], "big") for at in range(0, len(ack), _ACK_BYTES)]
    return ack[0] == _PUBACK or not (session.received or set()).isdisjoint(ids)


def split_messages(arrival: Arrival) -> Iterator[Arrival]:
    """The messages of an arrival one by one, each with its answer and its key."""
    run, ack = arrival.run, arrival.ack
    if run is None or run.count == 1:
        # The same one: whoever waits looks there for where it stands.
        yield arrival
        return
    for position, (start, end) in enumerate(publish.packet_bounds(run.data)):
        packet = run.data[start:end]
        one = Run(packet, 1, run.qos, run.v5, run.retain, run.expires_ms)
        own = acks(packet, ack[0]) if ack else b""
        moved = Arrival(arrival.session, arrival.route, arrival.generation, one, None, own)
        moved.epoch, moved.arrival_number = arrival.epoch, arrival.arrival_number
        moved.producer, moved.sequence = arrival.producer, arrival.sequence + position
        moved.is_doubtful = arrival.is_doubtful
        yield moved


def topic_of(packet: bytes) -> str:
    """The topic of a PUBLISH in the framing of runs."""
    return publish.topic_of(packet).decode()


def _topic(route: Route, data: bytes) -> str | None:
    """Needed only where a receiver does not get its own messages; such routes are of one topic."""
    return topic_of(data) if route.no_local else None
