"""What is due while clients are away: the end of their sessions, and wills that are delayed.

There may be a million sessions whose clients are away, and nearly all of them end days later, so an end takes
no object of its own: sessions that end together are in one list, and a session that ends in an hour or later
does so at the end of a second.
"""

import heapq
from collections.abc import Iterator

from millrace.broker.sessions.session import Session, WillPlan
from millrace.broker.sessions.session_store import Record
from millrace.limits import SESSION_EXPIRY_S_NEVER

# Ends and wills that may be out of date before it is worth to look for them.
_SPARE = 64
_ROUNDED_MS_LEAST, _SECOND_MS = 3_600_000, 1000

Due = tuple[Session, WillPlan | None]
"""A session whose will is due, or that ends."""


class Timers:
    __slots__ = ("_end_count", "_end_times", "_ends", "_order", "_wills")

    def __init__(self) -> None:
        # By the time at which they end, that time itself, so that each of a thousand sessions need not have a
        # number of its own, and the sessions; those times; and how many sessions there are in all.
        self._ends: dict[int, tuple[int, list[Session]]] = {}
        self._end_times: list[int] = []
        self._end_count = 0
        # (due, order, epoch of the session, session, its will).
        self._wills: list[tuple[int, int, int, Session, WillPlan]] = []
        self._order = 0

    def __len__(self) -> int:
        return self._end_count + len(self._wills)

    def end_in(self, session: Session, wait_ms: int, now_ms: int, sessions: int) -> None:
        """Let the session end, unless its client is back before. `sessions`: how many the broker has."""
        if self._end_count > 2 * sessions + _SPARE:
            # The others are of earlier lives.
            self._forget_ends()
        due_ms = now_ms + wait_ms
        if wait_ms >= _ROUNDED_MS_LEAST:
            due_ms += -due_ms % _SECOND_MS
        found = self._ends.get(due_ms)
        if found is None:
            found = self._ends[due_ms] = due_ms, []
            heapq.heappush(self._end_times, due_ms)
        session.ends_ms, ending = found
        ending.append(session)
        self._end_count += 1

    def publish_in(self, session: Session, plan: WillPlan, wait_ms: int, now_ms: int, sessions: int) -> None:
        """Let the will be published, unless the client is back before."""
        if len(self._wills) > 2 * sessions + _SPARE:
            self._wills = [timer for timer in self._wills if timer[2] == timer[3].epoch]
            heapq.heapify(self._wills)
        self._order += 1
        heapq.heappush(self._wills, (now_ms + wait_ms, self._order, session.epoch, session, plan))

    def resume(self, session: Session, record: Record, wall_us: int, now_ms: int, sessions: int) -> None:
        """After a restart: what its record says is due, by the time of day at which its client went."""
        away_us = wall_us if record.away_us is None else record.away_us
        away_ms = (wall_us - away_us) // 1000
        if record.will is not None:
            plan = session.delayed_will = WillPlan.restored(record.will)
            delay_ms = min(plan.delay_s, record.expiry_s) * 1000
            self.publish_in(session, plan, max(0, delay_ms - away_ms), now_ms, sessions)
        if session.expiry_s != SESSION_EXPIRY_S_NEVER:
            self.end_in(session, max(0, session.expiry_s * 1000 - away_ms), now_ms, sessions)

    def due(self, now_ms: int) -> Iterator[Due]:
        """What is due by now, each taken out as it is told."""
        while self._wills and self._wills[0][0] <= now_ms:
            _, _, epoch, session, plan = heapq.heappop(self._wills)
            if session.epoch == epoch and session.delayed_will is plan:
                yield session, plan
        while self._end_times and self._end_times[0] <= now_ms:
            due_ms, ending = self._ends[self._end_times[0]]
            # One by one: a fault at one of them must not keep the others for ever.
            while ending:
                session = ending.pop()
                self._end_count -= 1
                if session.ends_ms == due_ms:
                    yield session, None
            heapq.heappop(self._end_times)
            del self._ends[due_ms]

    def next_ms(self) -> int | None:
        """When something is due next, if ever."""
        return min([*self._end_times[:1], *(due_ms for due_ms, *_ in self._wills[:1])], default=None)

    def _forget_ends(self) -> None:
        before, self._ends = self._ends, {}
        for due_ms, ending in before.values():
            kept = [session for session in dict.fromkeys(ending) if session.ends_ms == due_ms]
            if kept:
                self._ends[due_ms] = due_ms, kept
        self._end_times = sorted(self._ends)
        self._end_count = sum(len(ending) for _, ending in self._ends.values())
