"""Wills on their way to subscribers: by their log where one keeps their topic, else from memory.

A will that goes into a log is keyed by its client and the epoch of the session's record: a node that was
taken for gone, and the one that looks after its sessions since, may both publish it [rule 10]. The record
keeps the will until it is stored, for a crash before that.
"""

import msgspec

from millrace.broker.entries.sessions import WillStored
from millrace.broker.messages.inbound import Inbound
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.sessions.journal import Journal
from millrace.broker.sessions.session import Session, WillPlan
from millrace.broker.sessions.session_store import SessionRecords
from millrace.broker.shards.shard_state import WILLS
from millrace.broker.topics.routing import Router

_RETRY_MS = 1000


class LoggedWill(msgspec.Struct, frozen=True):
    """A will that was handed to a log: its arrival names it as who waits."""

    session: Session
    epoch: int
    """Of the session's record when the will was due."""
    plan: WillPlan


class Wills:
    def __init__(self, router: Router, inbound: Inbound, journal: Journal) -> None:
        self._router = router
        self._inbound = inbound
        self._journal = journal
        # By client: wills that their log could not take.
        self._refused: dict[str, LoggedWill] = {}
        self._retry_at_ms = 0

    def publish(self, session: Session, plan: WillPlan, now_ms: int) -> None:
        """Publish a will that is due, if its client may still publish there."""
        # Asked again: the rules may have changed since the client connected.
        if not session.principal.may_publish(plan.topic):
            return
        run = plan.due(now_ms)
        arrival = None
        if session.is_recorded:
            arrival = self._keyed(LoggedWill(session, session.record_epoch, plan), run)
        if arrival is not None:
            session.firing_will = plan
        self._inbound.enter(plan.topic, run, now_ms, arrival)

    def retry(self, now_ms: int, records: SessionRecords, node: str) -> None:
        """Publish wills that their log could not take, for want of room or of a leader, once more: except
        where the client came back meanwhile, or another node looks after its record."""
        if not self._refused or now_ms < self._retry_at_ms:
            return
        self._retry_at_ms = now_ms + _RETRY_MS
        refused, self._refused = self._refused, {}
        for client_id, will in refused.items():
            record = records.find(client_id)
            if record is None or record.epoch != will.epoch or record.owner != node:
                continue
            run = will.plan.due(now_ms)
            arrival = self._keyed(will, run)
            self._inbound.enter(will.plan.topic, run, now_ms, arrival)
            if arrival is None:
                self._journal.add(WillStored(client_id, will.epoch))

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
        session = will.session
        client_id = session.client_id
        if offset is None:
            known = self._refused.get(client_id)
            if known is None or known.epoch <= will.epoch:
                self._refused[client_id] = will
            return
        if session.firing_will is will.plan:
            session.firing_will = None
        self._journal.add(WillStored(client_id, will.epoch))
