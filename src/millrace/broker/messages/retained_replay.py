"""Retained messages for those who subscribed, some in each turn of the loop [rule 33].

A filter may take every retained message there is. Whoever asked for them gets them in pieces, while others
are served in between and while its own client reads: one that does not read is gone on with when it reads
again, so nothing is dropped for it. What is published meanwhile may come twice, as if the client had
subscribed just after it.
"""

from collections import deque
from collections.abc import Iterator

from millrace.broker.messages.message import Run, Segment
from millrace.broker.messages.outbound import Outbound
from millrace.broker.sessions.session import Session
from millrace.broker.shards.retained import Retained
from millrace.broker.topics.routing import merge
from millrace.types import Subscription

# What one turn looks at, for all sessions together and for one of them. A step is a node of the tree; one
# that has a message costs some microseconds.
_TURN_STEPS_MAX = 1_000
_SESSION_STEPS_MAX = 250

Steps = Iterator[tuple[str, Run] | None]


class _Asked:
    """What one session is still to get."""

    __slots__ = ("epoch", "steps", "subscriptions")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.subscriptions: deque[Subscription] = deque()
        self.steps: Steps | None = None


class RetainedReplay:
    def __init__(self, retained: Retained, outbound: Outbound) -> None:
        self._retained = retained
        self._outbound = outbound
        # Sessions that can take some, in their turn, and those whose clients do not read.
        self.ready: dict[Session, _Asked] = {}
        self._paused: dict[Session, _Asked] = {}

    def add(self, session: Session, subscription: Subscription, now_ms: int) -> None:
        """Begin to send what is retained for this subscription: the first part at once."""
        asked = self.ready.get(session) or self._paused.get(session)
        if asked is None or asked.epoch != session.epoch:
            self._paused.pop(session, None)
            asked = self.ready[session] = _Asked(session.epoch)
        asked.subscriptions.append(subscription)
        if len(asked.subscriptions) == 1 and asked.steps is None and session in self.ready:
            del self.ready[session]
            self._serve(session, asked, now_ms, _SESSION_STEPS_MAX)

    def forget(self, session: Session) -> None:
        """The connection is gone."""
        self.ready.pop(session, None)
        self._paused.pop(session, None)

    def unblock(self, session: Session) -> None:
        """The client reads again."""
        asked = self._paused.pop(session, None)
        if asked is not None:
            self.ready[session] = asked

    def turn(self, now_ms: int) -> None:
        """Send some of what is due. Called once per turn of the loop."""
        left = _TURN_STEPS_MAX
        for session, asked in list(self.ready.items()):
            del self.ready[session]
            left -= self._serve(session, asked, now_ms, min(left, _SESSION_STEPS_MAX))
            if left <= 0:
                return

    def _serve(self, session: Session, asked: _Asked, now_ms: int, steps_max: int) -> int:
        """Send a part; returns how many steps it took. Whoever is not done waits behind the others."""
        taken = 0
        while session.epoch == asked.epoch and (asked.subscriptions or asked.steps):
            if self._outbound.is_full(session):
                # Until the client reads again, or until the end of this turn.
                (self._paused if session.blocked else self.ready)[session] = asked
                return taken
            if asked.steps is None:
                asked.steps = self._retained.walk(asked.subscriptions[0].filter, now_ms)
            subscription = asked.subscriptions[0]
            extra = merge((subscription,))[2] if session.v5 else b""
            for step in asked.steps:
                taken += 1
                if step is not None and session.principal.may_receive(step[0]):
                    run = step[1]
                    segment = Segment(run, 1, min(run.qos, subscription.qos), True, extra)
                    self._outbound.send(session, segment, now_ms)
                if taken >= steps_max or self._outbound.is_full(session):
                    break
            else:
                asked.steps = None
                asked.subscriptions.popleft()
            if taken >= steps_max:
                if asked.subscriptions:
                    self.ready[session] = asked
                return taken
        return taken
