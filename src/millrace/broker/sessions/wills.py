"""Wills on their way to subscribers: by their log where one keeps their topic, else from memory.

A will that goes into a log is keyed by its client and the epoch of the session's record: a node that was
taken for gone, and the one that looks after its sessions since, may both publish it [rule 10]. The record
keeps the will until it is stored, for a crash before that; and where the next connection takes the record
first, the will is kept beside it as a `DisplacedWill`: that connection may never be accepted, because its
client gave up waiting for it long ago. Whoever had the earlier connection publishes its will or says that it
need not be; whoever looks after what that node left does so instead, and so does that node after a restart.
"""

import msgspec

from millrace.broker.access import Principal
from millrace.broker.entries.sessions import WillStored
from millrace.broker.messages.inbound import Inbound
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run, payload_is_empty
from millrace.broker.sessions.journal import Journal
from millrace.broker.sessions.session import Session, WillPlan
from millrace.broker.sessions.session_store import DisplacedWill, SessionRecords
from millrace.broker.shards.retained import Retained
from millrace.broker.shards.shard_state import WILLS
from millrace.broker.topics.routing import Router

_RETRY_MS = 1000


class LoggedWill(msgspec.Struct, frozen=True):
    """A will that was handed to a log: its arrival names it as who waits."""

    session: Session
    epoch: int
    """Of the session's record when the will was due."""
    plan: WillPlan

    @property
    def key(self) -> tuple[str, int]:
        return self.session.client_id, self.epoch


class Wills:
    def __init__(self, router: Router, inbound: Inbound, retained: Retained, journal: Journal) -> None:
        self._router = router
        self._retained = retained
        self._inbound = inbound
        self._journal = journal
        # By client and epoch: wills that were handed to a log and are not in it yet, and those of them that
        # it could not take.
        self._under_way: dict[tuple[str, int], LoggedWill] = {}
        self._refused: dict[tuple[str, int], LoggedWill] = {}
        self._retry_at_ms = 0

    def publish(self, session: Session, plan: WillPlan, now_ms: int) -> None:
        """Publish a will that is due, if its client may still publish there."""
        # Asked again: the rules may have changed since the client connected.
        if not session.principal.may_publish(plan.topic):
            return
        run = self._due(session, plan, now_ms)
        arrival = None
        if session.is_recorded:
            will = LoggedWill(session, session.record_epoch, plan)
            arrival = self._keyed(will, run)
            if arrival is not None:
                session.firing_will = plan
                self._under_way[will.key] = will
        self._inbound.enter(plan.topic, run, now_ms, arrival)
        if run.retain and arrival is None:
            self._retained.own(plan.topic, session.username)

    def _due(self, session: Session, plan: WillPlan, now_ms: int) -> Run:
        """The will, retained only where the bounds of its user allow it: nobody is there to be refused."""
        run = plan.due(now_ms)
        if not run.retain or payload_is_empty(run):
            return run
        is_kept = self._retained.has_room(plan.topic, run, session.username)
        return run if is_kept else Run(run.data, 1, run.qos, run.v5, False, run.expires_ms)

    def publish_displaced(self, one: DisplacedWill, principal: Principal, now_ms: int) -> None:
        """Publish the will of a connection that nobody here remembers."""
        if (one.client_id, one.epoch) in self._under_way:
            return
        session = Session(one.client_id, principal)
        session.is_recorded = True
        session.record_epoch = one.epoch
        self.publish(session, WillPlan.restored(one.will), now_ms)
        self._settle(one)

    def settle(self, client_id: str, records: SessionRecords, node: str) -> None:
        """The next connection has taken the record of the one that was here. Of that one's will it is known
        now whether it is on its way into a log; if not, it is nobody's to publish."""
        for one in records.displaced_wills(client_id):
            if one.owner == node:
                self._settle(one)

    def forget_displaced(self, session: Session, records: SessionRecords) -> None:
        """The client is back, and was told so. A will from before that nobody has published by then, because
        its node fell, would say that the client is gone."""
        for one in records.displaced_wills(session.client_id):
            if one.epoch < session.record_epoch:
                self._journal.add(WillStored(one.client_id, one.epoch))

    def _settle(self, one: DisplacedWill) -> None:
        if (one.client_id, one.epoch) not in self._under_way:
            self._journal.add(WillStored(one.client_id, one.epoch))

    def retry(self, now_ms: int, records: SessionRecords, node: str) -> None:
        """Publish wills that their log could not take, for want of room or of a leader, once more: except
        where the client came back meanwhile, or another node looks after its record."""
        if not self._refused or now_ms < self._retry_at_ms:
            return
        self._retry_at_ms = now_ms + _RETRY_MS
        refused, self._refused = self._refused, {}
        for key, will in refused.items():
            if not _is_kept(will, records, node):
                del self._under_way[key]
                continue
            if not will.session.principal.may_publish(will.plan.topic):
                del self._under_way[key]
                self._journal.add(WillStored(*key))
                continue
            run = self._due(will.session, will.plan, now_ms)
            arrival = self._keyed(will, run)
            self._inbound.enter(will.plan.topic, run, now_ms, arrival)
            if arrival is None:
                del self._under_way[key]
                self._journal.add(WillStored(*key))

    def _keyed(self, will: LoggedWill, run: Run) -> Arrival | None:
        """The will as an arrival that its log keeps once; None where no log keeps it."""
        topic = will.plan.topic
        route = self._router.route(topic)
        intake = route.intake
        if intake is None or not (run.qos or intake.captures_all):
            return None
        arrival = Arrival(None, route, self._router.generation, run, topic, b"")
        arrival.producer, arrival.sequence = WILLS + will.session.client_id.encode(), will.epoch
        arrival.is_doubtful = True
        arrival.waiter = will
        return arrival

    def finished(self, will: LoggedWill, offset: int | None) -> None:
        """The log took the will at `offset`, or refused it (None)."""
        if offset is None:
            if will.key in self._under_way:
                self._refused[will.key] = will
            return
        self._retained.own(will.plan.topic, will.session.username if will.plan.run.retain else None)
        self._under_way.pop(will.key, None)
        self._refused.pop(will.key, None)
        if will.session.firing_will is will.plan:
            will.session.firing_will = None
        self._journal.add(WillStored(*will.key))


def _is_kept(will: LoggedWill, records: SessionRecords, node: str) -> bool:
    """Whether it is still this node's to publish."""
    client_id, epoch = will.key
    record = records.find(client_id)
    if record is not None and record.epoch == epoch and record.owner == node:
        return True
    return any(one.epoch == epoch and one.owner == node for one in records.displaced_wills(client_id))
