"""How messages leave: sharing bytes, giving packet ids, respecting each client's window.

Packet ids come from one sequence for the whole broker, so that a QoS 1 run has the same bytes for every
receiver [rule 5]. `serial` counts all ids ever given; an id is safe for a session while its oldest
unanswered one is less than 65,535 behind. A session that kept an answer back longer gets ids picked around
those it still holds.

What cannot be sent now (window full, client away or not reading) waits in the session, bounded; QoS 0 does
not wait, it is dropped and counted [rule 1].
"""

from collections import deque

from millrace.broker.entries.sessions import Qos2Acknowledged, Qos2Sent
from millrace.broker.groups.group_work import GroupWorkTable
from millrace.broker.groups.joined import LocalConsumerGroup
from millrace.broker.groups.share_group import ShareGroup
from millrace.broker.limits_reached import LimitsReached
from millrace.broker.messages.message import UNHELD, Run, Segment, in_first_order, raise_serials
from millrace.broker.messages.permits import Permits
from millrace.broker.sessions.journal import Journal, SendAnswer, SendMessages
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.shares import Shares
from millrace.broker.stats import Stats
from millrace.broker.topics.filters import matches
from millrace.broker.topics.routing import Receivers, Route, merge
from millrace.kernels import PACKET_ID_MAX, ack_run, reframe
from millrace.kernels.publish import body_start, head, packet_bounds, topic_end
from millrace.limits import Limits
from millrace.reasons import Reason

# What one session may be sent from its queue per loop turn, so that a long queue neither floods the output
# buffer nor starves the others.
_PUMP_BYTES_MAX = 256 * 1024
# The property that sets an alias, and a byte more in each of the two lengths before it.
_ALIAS_BYTES_MAX = 5


class Outbound:
    def __init__(self, limits: Limits, stats: Stats, shares: Shares, reached: LimitsReached) -> None:
        self._limits = limits
        self._shares, self._reached = shares, reached
        self._in_flight_bytes_max = limits.in_flight_bytes_max
        self._stats = stats
        self._permits = Permits()
        self._next_id = 1
        self._serial = 0
        # Sessions with bytes to write; the node takes the list and leaves an empty one.
        self.dirty: list[Session] = []
        # Sessions that are behind in some log and could take more; the node reads it for them. A dict for
        # its order: a set's would not be the same in every run.
        self.behind: dict[Session, None] = {}
        # Which messages of its logs this node gives to members of groups, and which of them wait there. Set
        # by the node; without it a group here gets them all.
        self.group_work: GroupWorkTable | None = None
        # Logs that take no more: a session reads them to their end before others, those with the smallest
        # number here first [rule 16].
        self.sealed: dict[int, int] = {}
        # Logs from which nothing is delivered yet: older ones of theirs are not complete here.
        self.held: set[int] = set()
        # Both are the broker's; see there.
        self.journal = Journal()
        self.touched: dict[Session, None] = {}

    # ------------------------------------------------------------------------------- runs to routes

    def put(self, session: Session, data: bytes) -> None:
        """Bytes for this client's connection, in order."""
        session.out.append(data)
        if not session.dirty:
            session.dirty = True
            self.dirty.append(session)

    def forward(self, sessions: list[Session], data: bytes, count: int) -> None:
        """QoS 0 packets for clients that take these very bytes."""
        dirty = self.dirty
        reached = len(sessions)
        for session in sessions:
            if session.blocked:
                self._drop_qos0(session, count)
                reached -= 1
                continue
            session.out.append(data)
            session.sent_qos0 += count
            if not session.dirty:
                session.dirty = True
                dirty.append(session)
        self._stats.sent += count * reached

    def deliver(
        self,
        publisher: Session | None,
        topic: str | None,
        route: Route,
        run: Run,
        now_ms: int,
        *,
        with_groups: bool = True,
    ) -> None:
        """Give a run to everyone on its route. `topic` may be None unless the route has no-local members."""
        # A retained QoS 0 message looks different to those who want the flag kept, so none are plain.
        plain = not run.qos and not run.retain
        for receivers in route.rest[run.v5] if plain else route.receivers:
            if receivers.individual:
                for session in receivers.sessions:
                    self._deliver_one(publisher, topic, route, receivers, session, run, now_ms)
            elif run.qos and receivers.qos:
                self.deliver_shared(receivers, run, now_ms)
            else:
                self._deliver_qos0(receivers, run)
        if plain:
            self.forward(route.plain[run.v5], run.data, run.count)
        if with_groups:
            for group in route.groups:
                self.deliver_group(group, run, now_ms)

    def _deliver_qos0(self, receivers: Receivers, run: Run) -> None:
        first = 0x31 if run.retain and receivers.retain_as_published else 0x30
        data = reframe(run.data, run.v5, receivers.v5, first, 0, receivers.extra)
        self.forward(receivers.sessions, data, run.count)

    def deliver_shared(self, receivers: Receivers, run: Run, now_ms: int) -> None:
        """QoS 1 or 2: one rewritten copy with ids from the common sequence for all that can take it now."""
        count = run.count
        qos = run.qos if run.qos < receivers.qos else receivers.qos
        retain = run.retain and receivers.retain_as_published
        extra = receivers.extra
        data: bytes | None = None
        first_id = serial = sent = 0
        dirty = self.dirty
        for session in receivers.sessions:
            if (session.lag or self.held) and self._is_read_later(session, run):
                continue
            inflight = session.inflight
            if (
                session.blocked
                or session.queue
                or session.resending
                or session.restored
                or session.inflight_count + count > session.window
                or session.inflight_bytes > self._in_flight_bytes_max
                or (inflight and self._serial + count - inflight[0].serial > PACKET_ID_MAX)
                or (session.released and self._serial + count - session.released_serial > PACKET_ID_MAX)
            ):
                self.send(session, Segment(run, count, qos, retain, extra), now_ms)
                continue
            if data is None:
                first_id, serial = self._next_id, self._serial
                self._serial = serial + count
                self._next_id = (first_id + count - 1) % PACKET_ID_MAX + 1
                data = reframe(
                    run.data, run.v5, receivers.v5, 0x30 | qos << 1 | (1 if retain else 0), first_id, extra
                )
            # A session that ends with its connection is never sent anything again: only ids are kept.
            held = run if session.expiry_s else UNHELD
            segment = Segment(held, count, qos, retain, extra, first_id, serial)
            segment.cleared_for = session.principal
            if inflight is None:
                inflight = session.inflight = deque()
            if first_id + count - 1 > PACKET_ID_MAX:
                inflight.append(segment.take(PACKET_ID_MAX + 1 - first_id))
                segment.first_id = 1
            inflight.append(segment)
            session.inflight_count += count
            if held is run:
                session.inflight_bytes += len(run.data)
            sent += count
            if qos == 1:
                session.sent_qos1 += count
            else:
                session.sent_qos2 += count
            if session.is_recorded:
                self._emit_recorded(session, segment, first_id, data, now_ms)
                continue
            session.out.append(data)
            if not session.dirty:
                session.dirty = True
                dirty.append(session)
        self._stats.sent += sent

    def _deliver_one(
        self,
        publisher: Session | None,
        topic: str | None,
        route: Route,
        receivers: Receivers,
        session: Session,
        run: Run,
        now_ms: int,
    ) -> None:
        qos, retain, extra = receivers.qos, receivers.retain_as_published, receivers.extra
        if session is publisher and session in route.no_local:
            # [MQTT-3.8.3-3]: subscriptions with no local do not count for its own messages.
            assert topic is not None
            others = self.own_subscriptions(session, topic)
            if not others:
                return
            qos, retain, extra = others
        self.send(session, Segment(run, run.count, min(run.qos, qos), run.retain and retain, extra), now_ms)

    @staticmethod
    def own_subscriptions(session: Session, topic: str) -> tuple[int, bool, bytes] | None:
        """What the session's subscriptions without no local ask of this topic, merged."""
        own = session.subscriptions.items()
        found = [one for filter, one in own if not one.no_local and matches(filter, topic)]
        return merge(found) if found else None

    def deliver_group(self, group: ShareGroup, run: Run, now_ms: int) -> None:
        """Give a run to the group's members here, as far as it is this node's turn [rule 13]."""
        table = self.group_work
        if not run.shard or table is None:
            self.share_out(group, run, now_ms)
            return
        work = table.find(run.shard)
        if work is None:
            # Its log begins again with nothing, once there is room for it.
            return
        base = run.offset
        for first, end in work.turns(group.key, table.node, base, base + run.count):
            is_whole = end - first == run.count
            if run.qos and work.backlog.get(group.key):
                # What comes while others wait in the log waits behind them.
                work.put_off(group.key, table.node, first, end)
            else:
                self.share_out(group, run if is_whole else run.part(first - base, end - base), now_ms)

    def is_put_off(self, segment: Segment) -> bool:
        """Leave these messages of a group in their log for later. False where no log has them."""
        group, run = segment.group, segment.run
        table = self.group_work
        if table is None or not (run.shard and run.qos and isinstance(group, ShareGroup)):
            return False
        work = table.find(run.shard)
        if work is None:
            return False
        work.put_off(group.key, table.node, segment.offset, segment.offset + segment.count)
        return True

    def share_out(self, group: ShareGroup, run: Run, now_ms: int) -> None:
        """Give a run to members of the group, whoever's turn it is."""
        whole = Segment(run, run.count, run.qos, False, b"")
        whole.group = group
        chosen = group.choose(run)
        if not chosen:
            if (
                run.qos
                and group.collects
                and self._has_room(group.queued_messages, group.queued_bytes, whole)
            ):
                group.collect(whole)
            elif not self.is_put_off(whole):
                self._stats.dropped_queue += run.count
            return
        for session, count in chosen:
            part = whole if count == whole.count else whole.take(count)
            self.assign(group, session, part, now_ms)

    def assign(self, group: ShareGroup, session: Session, segment: Segment, now_ms: int) -> None:
        """Hand a group's messages to one of its members, as that member's subscription asks."""
        subscription = group.members[session]
        segment.qos = min(segment.run.qos, subscription.qos)
        segment.retain = segment.run.retain and subscription.retain_as_published
        segment.extra = merge((subscription,))[2] if session.v5 else b""
        self.send(session, segment, now_ms)

    # --------------------------------------------------------------------------- segments to clients

    def send(self, session: Session, segment: Segment, now_ms: int, *, is_cleared: bool = True) -> None:
        """Send a segment now if it can be, else let it wait (QoS 1, 2) or drop it (QoS 0). The caller knows
        that the client may have it; where another node knew that, `is_cleared` is False, and the QoS not 0.
        """
        if segment.qos == 0:
            if self.is_full(session):
                self._drop_qos0(session, segment.count)
            else:
                self._write(session, segment, now_ms)
            return
        if segment.run.shard and segment.group is None:
            self._send_logged(session, segment, now_ms)
            return
        if not (
            # It is leased from a log, and would count as acknowledged; the group takes no more meanwhile.
            isinstance(segment.group, LocalConsumerGroup) or self._may_wait(session, segment)
        ):
            if self.is_put_off(segment):
                return
            session.dropped += segment.count
            self._stats.dropped_queue += segment.count
            return
        segment.cleared_for = session.principal if is_cleared else None
        session.enqueue(segment)
        self.pump(session, now_ms)

    def is_full(self, session: Session) -> bool:
        """Whether nothing more may be written for this client in this turn."""
        return session.blocked or session.out_bytes >= self._limits.output_buffer_bytes_max

    def pump(self, session: Session, now_ms: int) -> None:
        """Send what waits, as far as the window allows."""
        if session.resending:
            self._send_again_some(session, now_ms)
        full = min(self._limits.output_buffer_bytes_max, session.out_bytes + _PUMP_BYTES_MAX)
        queue = session.queue
        while (
            queue
            and not (session.resending or session.restored or session.blocked)
            and session.out_bytes < full
        ):
            room = self._room(session)
            head = queue[0]
            if head.cleared_for is not session.principal:
                self._clear_first_waiting(session, head)
                continue
            if head.run.expires_ms is not None and head.run.expires_ms <= now_ms:
                session.dequeue(head.count)
                self._stats.expired += 1
                continue
            if room <= 0:
                return
            first_id, serial, room = self._allocate_for(session, min(room, head.count))
            segment = session.dequeue(room)
            segment.first_id = first_id
            segment.serial = serial
            for piece in self._write(session, segment, now_ms):
                session.track(piece)
        if (
            session.lag
            and not queue
            and not session.resending
            and not session.blocked
            and self._room(session) > 0
        ):
            self.behind[session] = None

    def send_some(self, session: Session, segment: Segment, now_ms: int) -> bool:
        """Send the first messages of a segment as far as the window goes; True when none is left. The caller
        knows that the client may have them."""
        segment.cleared_for = session.principal
        while not session.blocked and session.out_bytes < self._limits.output_buffer_bytes_max:
            room = self._room(session)
            if room <= 0:
                return False
            first_id, serial, count = self._allocate_for(session, min(room, segment.count))
            piece = segment if count == segment.count else segment.take(count)
            piece.first_id = first_id
            piece.serial = serial
            for sent in self._write(session, piece, now_ms):
                session.track(sent)
            if piece is segment:
                return True
        return False

    def _send_logged(self, session: Session, segment: Segment, now_ms: int) -> None:
        """Send what can be sent now; from the first message that cannot, the session reads the log."""
        run = segment.run
        if (session.lag or self.held) and self._is_read_later(session, run):
            return
        if (
            session.queue
            or session.resending
            or session.restored
            or not self.send_some(session, segment, now_ms)
        ):
            session.fall_behind(run.shard, segment.offset)

    def _is_read_later(self, session: Session, run: Run) -> bool:
        """Whether the session gets this from the log, because it has earlier messages to get first."""
        shard, lag = run.shard, session.lag
        if not shard:
            return False
        if lag and shard in lag:
            return True
        if shard not in self.held and (not lag or self.sealed.keys().isdisjoint(lag)):
            return False
        session.fall_behind(shard, run.offset)
        self.behind[session] = None
        return True

    def resend(self, session: Session, now_ms: int) -> None:
        """After a reconnect: unanswered messages again with DUP, releases again, then what waits (4.4)."""
        if session.inflight or session.resending:
            again = [*(session.inflight or ()), *(session.resending or ())]
            if session.is_recorded:
                again = in_first_order(again)
                raise_serials(again)
            session.resending = deque(again)
        else:
            # An empty one takes more memory than all the rest of a session.
            session.resending = None
        session.inflight = None
        session.inflight_count = session.inflight_bytes = 0
        for segment in session.released or ():
            self.put(session, ack_run(0x62, segment.first_id, segment.count))
            session.inflight_count += segment.count
        if session.restored:
            self.behind[session] = None
        self.pump(session, now_ms)

    def _send_again_some(self, session: Session, now_ms: int) -> None:
        """Unanswered messages after a reconnect, as far as the window lets them ([MQTT-3.3.4-9])."""
        resending = session.resending
        full = min(self._limits.output_buffer_bytes_max, session.out_bytes + _PUMP_BYTES_MAX)
        while resending and not session.blocked and session.out_bytes < full:
            room = self._room(session)
            if room <= 0:
                return
            head = resending[0]
            count, is_allowed = head.count, True
            if head.cleared_for is not session.principal:
                count, is_allowed = self._permits.leading(session.principal, head)
            count = min(count, room)
            piece = resending.popleft() if head.count == count else head.take(count)
            if not is_allowed:
                self._withhold(session, piece)
                continue
            piece.cleared_for = session.principal
            for sent in self._write(session, piece, now_ms, dup=True):
                session.track(sent)

    def _clear_first_waiting(self, session: Session, head: Segment) -> None:
        """The rules may have changed since the first waiting segment was routed: cut off what is still
        allowed, or drop what is not."""
        count, is_allowed = self._permits.leading(session.principal, head)
        if not is_allowed:
            session.dequeue(count)
            self._stats.denied += count
            return
        if count < head.count:
            assert session.queue
            head = head.take(count)
            session.queue.appendleft(head)
        head.cleared_for = session.principal

    def _withhold(self, session: Session, piece: Segment) -> None:
        """Messages that were sent before and that the client may not have any more. At QoS 2 it may have got
        them, and holds their ids then, until it hears PUBREL; whoever did not get them answers that all the
        same ([MQTT-4.3.3-11])."""
        self._stats.denied += piece.count
        if piece.qos == 2:
            self._finish(session, piece.first_id, piece.count, piece.serial)

    def give_up(self, session: Session, packet_id: int) -> None:
        """A message at QoS 2 that was sent before and cannot be had any more. The client may hold its id, and
        would take another message under it for this one."""
        self._finish(session, packet_id, 1, self._serial - PACKET_ID_MAX)

    def _finish(self, session: Session, packet_id: int, count: int, serial: int) -> None:
        session.release(packet_id, count, serial)
        session.inflight_count += count
        release = ack_run(0x62, packet_id, count)
        if session.is_recorded:
            acknowledged = Qos2Acknowledged(session.client_id, packet_id, count)
            self.journal.add(acknowledged, SendAnswer(session, session.epoch, release))
        else:
            self.put(session, release)

    def send_restored(self, session: Session, segments: list[Segment], now_ms: int) -> None:
        """Messages that the client was sent before this node had its session, under the ids by which it knows
        them: before all others."""
        for segment in segments:
            # Old enough that new ids are picked around it.
            segment.serial = self._serial - PACKET_ID_MAX
            # The record has their ids.
            segment.noted_at = segment.serial if segment.qos == 2 else None
        raise_serials(segments)
        session.restored = None
        session.resending = deque((*segments, *(session.resending or ()))) or None
        self.pump(session, now_ms)

    def _write(self, session: Session, segment: Segment, now_ms: int, dup: bool = False) -> list[Segment]:
        """Encode for this client and put it out; returns what was really sent of it."""
        data = segment.encode(session.v5, now_ms, dup)
        if session.packet_bytes_max and len(data) > session.packet_bytes_max:
            if segment.count > 1:
                half = segment.take(segment.count // 2)
                return self._write(session, half, now_ms, dup) + self._write(session, segment, now_ms, dup)
            # [MQTT-3.1.2-25]: too large for this client: dropped as if it had been sent.
            self._stats.dropped_too_large += 1
            return []
        if session.alias_max and not (session.is_recorded and segment.qos == 2 and segment.run.shard):
            # Not for what waits for its ids to be written: others of its topic leave before it.
            data = _aliased(session, data)
        session.out_bytes += len(data)
        if session.is_recorded and segment.qos:
            self._emit_recorded(session, segment, segment.first_id, data, now_ms)
        else:
            self.put(session, data)
        self._stats.sent += segment.count
        if segment.qos == 0:
            session.sent_qos0 += segment.count
        elif segment.qos == 1:
            session.sent_qos1 += segment.count
        else:
            session.sent_qos2 += segment.count
        return [segment]

    def _emit_recorded(
        self, session: Session, segment: Segment, first_id: int, data: bytes, now_ms: int
    ) -> None:
        """To a session with a record: its cursor moves, and QoS 2 leaves only once its ids are on disk."""
        self.touched[session] = None
        run = segment.run
        if segment.qos != 2 or not run.shard or segment.is_noted:
            # Sent again, what is noted leaves in its turn: others at QoS 1 must not come before it.
            self.put(session, data)
            return
        offset, left = segment.offset, segment.count
        # Ids wrap inside a run; each operation names ids without a wrap.
        ahead = segment.first_id - first_id
        if ahead < 0:
            before = PACKET_ID_MAX + 1 - first_id
            self.journal.add(Qos2Sent(session.client_id, first_id, before, run.shard, offset - before))
        sent = Qos2Sent(session.client_id, segment.first_id, left, run.shard, offset)
        self.journal.add(sent, SendMessages(session, session.epoch, segment, data, now_ms))

    def resume_messages(self, written: SendMessages) -> None:
        """Their ids are on disk: they leave, if the client is still connected. Not in the record of a session
        that went to another node before that: then they are somebody else's."""
        session, segment = written.session, written.segment
        if session.is_recorded:
            segment.noted_at = self._serial
        if session.epoch != written.epoch:
            return
        if segment.cleared_for is not session.principal:
            # The rules changed meanwhile: it goes the way of what is sent again, which asks.
            session.give_back((segment,))
            session.resending = session.resending or deque()
            session.resending.append(segment)
            self.pump(session, written.now_ms)
            return
        self.put(session, written.data)

    # ------------------------------------------------------------------------------------ bookkeeping

    def _room(self, session: Session) -> int:
        """How many more messages may be in flight: by the client's window, and none once what is kept to be
        sent again is too much. A message that is larger than that goes out alone."""
        if session.inflight_bytes > self._in_flight_bytes_max:
            return 0
        return session.window - session.inflight_count

    def _may_wait(self, session: Session, segment: Segment) -> bool:
        if not self._has_room(session.queued_messages, session.queued_bytes, segment):
            return False
        bound = self._shares.too_heavy(session.username, session.share, segment.size_bytes)
        if bound is not None:
            self._reached.count(bound)
        return bound is None

    def _has_room(self, messages: int, bytes_held: int, segment: Segment) -> bool:
        return (
            messages + segment.count <= self._limits.queued_messages_max
            and bytes_held + segment.size_bytes <= self._limits.queued_bytes_max
        )

    def _drop_qos0(self, session: Session, count: int) -> None:
        if session.connection is not None:
            session.dropped += count
            self._stats.dropped_qos0 += count

    def _allocate(self, count: int) -> tuple[int, int]:
        """`count` ids in a row (wrapping): the first one and its serial."""
        first_id, serial = self._next_id, self._serial
        self._serial += count
        self._next_id = (first_id + count - 1) % PACKET_ID_MAX + 1
        return first_id, serial

    def _allocate_for(self, session: Session, count: int) -> tuple[int, int, int]:
        """Up to `count` consecutive ids, without wrapping, that this client does not hold."""
        count = min(count, PACKET_ID_MAX + 1 - self._next_id)
        # What was given before this serial may have the same ids.
        oldest = self._serial + count - PACKET_ID_MAX
        inflight, released = session.inflight, session.released
        if (not inflight or inflight[0].serial >= oldest) and (
            not released or session.released_serial >= oldest or session.oldest_released() >= oldest
        ):
            first_id, serial = self._allocate(count)
            return first_id, serial, count
        held = session.in_use()
        while self._next_id in held:
            self._allocate(1)
        free = 1
        while free < count and self._next_id + free <= PACKET_ID_MAX and self._next_id + free not in held:
            free += 1
        first_id, serial = self._allocate(free)
        return first_id, serial, free


def _aliased(session: Session, data: bytes) -> bytes:
    """Replace topics by aliases toward a client that allows them: the first topics get one each."""
    if session.aliases is None:
        session.aliases = {}
    aliases = session.aliases
    out: list[bytes] = []
    for start, end in packet_bounds(data):
        packet = data[start:end]
        body = body_start(packet)
        after = topic_end(packet, body)
        topic = packet[body + 2 : after]
        alias = aliases.get(topic)
        known = alias is not None
        if alias is None:
            room = session.packet_bytes_max - len(packet) if session.packet_bytes_max else _ALIAS_BYTES_MAX
            if len(aliases) >= session.alias_max or room < _ALIAS_BYTES_MAX:
                out.append(packet)
                continue
            alias = aliases[topic] = len(aliases) + 1
        property_bytes = b"\x23" + alias.to_bytes(2, "big")
        packet_id = int.from_bytes(packet[after : after + 2], "big") if packet[0] & 6 else 0
        if known:
            # An empty topic name means the alias alone (3.3.2.3.4).
            rest = b"\0\0" + packet[after:]
            packet = head(packet[0], len(rest)) + rest
        out.append(reframe(packet, True, True, packet[0], packet_id, property_bytes))
    return b"".join(out)


def answer(first: int, packet_id: int, reason: Reason | None) -> bytes:
    """One acknowledgement; MQTT 5 may be told a reason."""
    if reason is None:
        return ack_run(first, packet_id, 1)
    return bytes((first, 3)) + packet_id.to_bytes(2, "big") + bytes((reason,))
