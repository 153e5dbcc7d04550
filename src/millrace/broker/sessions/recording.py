"""What a live session writes into its record, and how far behind it is when it is made from that again."""

from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator

from millrace.broker.entries.sessions import (
    FROM_THE_START,
    CursorsMoved,
    OffsetRange,
    SavedCursor,
    SavedSubscription,
    Subscribed,
    Unanswered,
    WentAway,
)
from millrace.broker.messages.message import in_first_order
from millrace.broker.sessions.journal import Journal
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.session_store import Record
from millrace.types import Subscription

# Runs of unanswered messages in a record. Those beyond are read from their logs again where they were sent
# at QoS 1, and come after the others at QoS 2.
_UNANSWERED_RUNS = 1_000


class Recording:
    """Writes operations of sessions that have a record. The caller has made sure that they do."""

    __slots__ = ("_journal", "_log_ends", "names_unanswered")

    def __init__(self, journal: Journal, log_ends: dict[int, int]) -> None:
        self._journal = journal
        # The committed end of every log; the broker's.
        self._log_ends = log_ends
        # Whether all who keep records understand it.
        self.names_unanswered = True

    def went_away(self, session: Session, time_us: int, *, can_wait: bool) -> None:
        """The client is away since `time_us`, by the time of day. `can_wait`: until the next operation that
        is due, or the next checkpoint, as cursors do [rule 8]; nobody waits for it."""
        self.cursors_moved(session)
        plan = session.delayed_will or session.firing_will
        add = self._journal.add_unhurried if can_wait else self._journal.add
        add(
            WentAway(
                session.client_id,
                epoch=session.record_epoch,
                time_us=time_us,
                # DISCONNECT may have changed it (MQTT 5, 3.14.2.2.2).
                expiry_s=session.expiry_s,
                will=None if plan is None else plan.saved(),
            )
        )

    def subscribed(self, session: Session, subscriptions: Iterable[Subscription]) -> None:
        """The start in every log is fixed before SUBACK; those opened later are read from 0 [rule 9]. All
        its subscriptions have one position in a log, so that is brought up to now."""
        known = session.cursors or ()
        if known:
            self.cursors_moved(session)
        starts = tuple([(shard, end) for shard, end in self._log_ends.items() if shard not in known])
        if starts or session.cursors is None:
            session.add_cursors([shard for shard, _ in starts])
        for one in subscriptions:
            self._journal.add(Subscribed(session.client_id, SavedSubscription.of(one), starts))
            starts = ()

    def cursors_moved(self, session: Session) -> None:
        """Write how far the session is in every log."""
        outstanding: dict[int, list[OffsetRange]] = {}
        for run in session.restored or ():
            if run.qos == 1:
                outstanding.setdefault(run.shard, []).append((run.offset, run.count))
        # Those to be sent again after a reconnect wait for room in the window, and are not answered either.
        for segment in (*(session.inflight or ()), *(session.resending or ())):
            if segment.run.shard and segment.qos == 1:
                outstanding.setdefault(segment.run.shard, []).append((segment.offset, segment.count))
        cursors = (session.cursors or frozenset()) | outstanding.keys()
        # A log that is not open here has no end: the place in it stays as it was written.
        live = {shard: end for shard, end in self._log_ends.items() if shard in cursors}
        moved = {
            shard: SavedCursor(position, tuple(sorted(outstanding.get(shard, ()))))
            for shard, position in sorted((live | (session.lag or {})).items())
        }
        if moved:
            # Without any at QoS 1 the record knows the order by itself.
            is_named = bool(outstanding) and self.names_unanswered
            unanswered = _unanswered(session, moved) if is_named else ()
            self._journal.add_unhurried(CursorsMoved(session.client_id, moved, unanswered))

    def unanswered(self, record: Record) -> list[Unanswered]:
        """What is to be sent again under the ids by which the client knows it, in its first order: all at
        QoS 2, and what is in a log here at QoS 1."""
        left = dict(record.sent)
        found: list[Unanswered] = []
        for run in record.unanswered:
            ids = range(run.first_id, run.first_id + run.count)
            if run.qos == 1:
                is_free = record.sent.keys().isdisjoint(ids) and record.released.keys().isdisjoint(ids)
                if is_free and run.shard in self._log_ends:
                    found.append(run)
                continue
            for at, one in enumerate(ids):
                if left.get(one) == (run.shard, run.offset + at):
                    del left[one]
                    _append(found, Unanswered(one, 1, run.shard, run.offset + at, 2))
        for one, (shard, offset) in left.items():
            _append(found, Unanswered(one, 1, shard, offset, 2))
        return found

    def let_go(self, session: Session, record: Record, shard: int) -> None:
        """What the client was sent at QoS 1 from this log is not here yet. Nothing else waits for it: it is
        read from there like what was never sent."""
        kept = [run for run in session.restored or () if run.qos == 2 or run.shard != shard]
        session.restored = kept or None
        for places in (session.lag, session.skip):
            if places is not None:
                places.pop(shard, None)
        self.restore_cursor(session, record, shard, self._log_ends.get(shard, 0))

    @staticmethod
    def restore_cursor(session: Session, record: Record, shard: int, end: int) -> None:
        """Let a session fall behind to where its record says that it is in the log of this shard."""
        saved = record.cursors.get(shard, FROM_THE_START)
        # The others come under the ids that they have.
        cursor = SavedCursor(saved.position, tuple(_without(saved.outstanding, session.restored, shard)))
        low = cursor.low
        done = [(first, first + count) for first, count in record.handled.get(shard, ())]
        if low == end and all(after <= end for _, after in done):
            return
        # A cursor above the end: this replica has yet to apply what the client already has.
        session.fall_behind(shard, low)
        at = low
        for first, count in sorted(cursor.outstanding):
            if first > at:
                done.append((at, first))
            at = max(at, first + count)
        if cursor.position > at:
            done.append((at, cursor.position))
        if done:
            if session.skip is None:
                session.skip = {}
            session.skip[shard] = sorted(done)


def _unanswered(session: Session, shards: Container[int]) -> tuple[Unanswered, ...]:
    """What the client has not answered, of these shards. What it has as a member of a group is not its own
    once it is away."""
    found = [run for run in session.restored or () if run.shard in shards]
    for segment in in_first_order((*(session.inflight or ()), *(session.resending or ()))):
        shard = segment.run.shard
        if shard in shards and segment.group is None:
            _append(found, Unanswered(segment.first_id, segment.count, shard, segment.offset, segment.qos))
    return tuple(found[:_UNANSWERED_RUNS])


def _append(runs: list[Unanswered], run: Unanswered) -> None:
    """Join a run to the last one where it goes on with it."""
    if runs:
        last = runs[-1]
        ends = (last.first_id + last.count, last.end, last.shard, last.qos)
        if ends == (run.first_id, run.offset, run.shard, run.qos):
            runs[-1] = Unanswered(last.first_id, last.count + run.count, last.shard, last.offset, last.qos)
            return
    runs.append(run)


def _without(
    outstanding: Iterable[OffsetRange], restored: Iterable[Unanswered] | None, shard: int
) -> Iterator[OffsetRange]:
    """The ranges that are in none of these runs of the shard."""
    kept = sorted((run.offset, run.end) for run in restored or () if run.shard == shard and run.qos == 1)
    for first, count in outstanding:
        at = bisect_right(kept, first, key=lambda span: span[0]) - 1
        if at < 0 or kept[at][1] < first + count:
            yield first, count
