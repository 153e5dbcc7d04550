"""What a live session writes into its record, and how far behind it is when it is made from that again."""

from millrace.broker.entries.sessions import (
    FROM_THE_START,
    CursorsMoved,
    OffsetRange,
    SavedCursor,
    SavedSubscription,
    Subscribed,
    WentAway,
)
from millrace.broker.sessions.journal import Journal
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.session_store import Record
from millrace.types import Subscription


class Recording:
    """Writes operations of sessions that have a record. The caller has made sure that they do."""

    __slots__ = ("_journal", "_log_ends")

    def __init__(self, journal: Journal, log_ends: dict[int, int]) -> None:
        self._journal = journal
        # The committed end of every log; the broker's.
        self._log_ends = log_ends

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

    def subscribed(self, session: Session, subscription: Subscription) -> None:
        """The start in every log is fixed before SUBACK; those opened later are read from 0 [rule 9]. All
        its subscriptions have one position in a log, so that is brought up to now."""
        known = session.cursors or ()
        if known:
            self.cursors_moved(session)
        starts = tuple([(shard, end) for shard, end in self._log_ends.items() if shard not in known])
        if starts or session.cursors is None:
            session.add_cursors([shard for shard, _ in starts])
        self._journal.add(Subscribed(session.client_id, SavedSubscription.of(subscription), starts))

    def cursors_moved(self, session: Session) -> None:
        """Write how far the session is in every log."""
        outstanding: dict[int, list[OffsetRange]] = {}
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
            self._journal.add_unhurried(CursorsMoved(session.client_id, moved))

    @staticmethod
    def restore_cursor(session: Session, record: Record, shard: int, end: int) -> None:
        """Let a session fall behind to where its record says that it is in the log of this shard."""
        cursor = record.cursors.get(shard, FROM_THE_START)
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
