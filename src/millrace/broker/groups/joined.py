"""MQTT members of groups that were made by command [rule 12].

`$share/NAME/FILTER` joins the group NAME where FILTER is one of its filters. Such a group is a cursor in the
logs, the same for those who come by HTTP, so its messages reach a member by being taken from that cursor
under a lease, never by a route. The node takes and settles (`node/groups/mqtt_members.py`); here is who is
there, what each was given, and what became of it: what a session no longer holds was acknowledged, and what
it holds when its connection goes is given back.

Members are granted QoS 1 at most: the receipt of the group is acknowledged by PUBACK.
"""

from msgspec import structs

from millrace.broker.messages.message import Segment
from millrace.broker.sessions.session import Session
from millrace.limits import TAKEN_BYTES_MAX
from millrace.types import Subscription

GROUP_QOS = 1
# What may wait for a member whose bytes in flight are used up: a take is never more, so what was taken need
# not be given back, which would count as a delivery.
_WAITING_BYTES_MAX = 2 * TAKEN_BYTES_MAX


def granted(asked: Subscription) -> Subscription:
    """What a member gets of what it asked for."""
    return asked if asked.qos <= GROUP_QOS else structs.replace(asked, qos=GROUP_QOS)


class LocalConsumerGroup:
    """One group's members at this node."""

    __slots__ = ("_joins", "_turn", "acknowledged", "given_back", "held", "members", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        # By its last filter of those it joined by: a group may have several, and a member counts once.
        self.members: dict[Session, Subscription] = {}
        self._joins: dict[Session, dict[str, Subscription]] = {}
        # What was sent to whom under which receipt and is not settled yet.
        self.held: dict[Session, dict[Segment, str]] = {}
        # Receipts for the node to settle.
        self.acknowledged: list[str] = []
        self.given_back: list[str] = []
        self._turn = 0

    def joins(self) -> list[tuple[Session, Subscription]]:
        return [(session, one) for session, joins in self._joins.items() for one in joins.values()]

    def join(self, session: Session, subscription: Subscription) -> None:
        self._joins.setdefault(session, {})[subscription.filter] = subscription
        self.members[session] = subscription

    def drop(self, session: Session, filter: str) -> bool:
        """False where the session did not join by this filter."""
        joins = self._joins.get(session, {})
        if joins.pop(filter, None) is None:
            return False
        if joins:
            *_, self.members[session] = joins.values()
        else:
            del self._joins[session], self.members[session]
        return True

    @property
    def room(self) -> int:
        """How many messages the members could be sent now; none to one for whom some wait."""
        return sum(_room(session) for session in self.members if not session.queue)

    def next_member(self) -> Session | None:
        """Whose turn it is among those that can take a message now, or else with whom it may wait."""
        ready = [session for session in self.members if _room(session) > 0 and not session.queue]
        ready = ready or [
            session
            for session in self.members
            if _room(session) > 0 and session.queued_bytes < _WAITING_BYTES_MAX
        ]
        if not ready:
            return None
        self._turn += 1
        return ready[self._turn % len(ready)]

    def hold(self, session: Session, segment: Segment, receipt: str) -> None:
        segment.group = self
        self.held.setdefault(session, {})[segment] = receipt

    def settle(self) -> None:
        """Find what members have finished with since the last call."""
        for session in list(self.held):
            self._settle(session)

    def leave(self, session: Session) -> None:
        """The connection is gone: what it did not acknowledge is for another (never for an absent one)."""
        if session not in self.held:
            return
        self._settle(session)
        left = self.held.pop(session, {})
        session.give_back(left)
        self.given_back += left.values()

    def give_back_waiting(self, session: Session) -> None:
        """It is no member any more: what it was not sent yet is for another."""
        if session not in self.held:
            return
        self._settle(session)
        held = self.held.get(session, {})
        waiting = [segment for segment in session.queue or () if segment in held]
        session.give_back(waiting)
        self.given_back += [held.pop(segment) for segment in waiting]

    def _settle(self, session: Session) -> None:
        held = self.held[session]
        waiting: set[Segment] = set()
        for segments in (session.inflight, session.queue, session.resending):
            waiting.update(segments or ())
        for segment in [segment for segment in held if segment not in waiting]:
            self.acknowledged.append(held.pop(segment))
        if not held:
            del self.held[session]


def _room(session: Session) -> int:
    if session.blocked:
        return 0
    return max(0, session.window - session.inflight_count - session.queued_messages)
