"""The group that keeps sessions: operations in, callbacks out once they are on disk.

The live sessions are the broker's; this is their record. At a restart the records are read back and the
broker gets its sessions again, away and behind in their logs by their cursors.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

from millrace.broker.entries.sessions import SESSION_ENTRIES, Adopted, Discarded, Opened, SessionBatch
from millrace.broker.machine import Broker
from millrace.broker.sessions.journal import Continuation, ResumeConnection
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.session_store import Record, SessionStore
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Kind, opaque_block
from millrace.types import Reason

log = logging.getLogger("millrace.sessions")


def _let_go(session: Session, owner: str) -> None:
    """Nothing goes with it."""


# One entry of the log; a turn with more is cut, so that no entry grows without bound.
_OPERATIONS_MAX = 10_000
_AGAIN_S = 10.0


class SessionGroup:
    """Implements `App`."""

    def __init__(self, broker: Broker, now_ms: Callable[[], int], wake: Callable[[], None]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._wake = wake
        self.store = SessionStore()
        self.group: ReplicationGroup
        self._is_reset_due = False
        # The record says that another node serves this session. Set by the node.
        self.before_release: Callable[[Session, str], None] = _let_go

    async def caught_up(self) -> None:
        """Wait until every record that was written before is here. An entry of our own comes after them; a
        leader that is known says nothing about how far this replica is."""
        applied = asyncio.Event()
        while not applied.is_set():
            # Again, should the first be given up for want of a leader.
            block = opaque_block(Kind.CONTROL, SESSION_ENTRIES.encode([]))
            self.group.propose([block], [applied], EntryKind.CONTROL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(applied.wait(), _AGAIN_S)

    def find(self, client_id: str) -> Record | None:
        """The record of this client's session, as the broker asks for it."""
        return self.store.find(client_id)

    def begin(self, now_ms: int) -> None:
        """The records are complete: make the broker's sessions of them, and write from now on."""
        broker = self._broker
        for record in list(self.store.records.values()):
            if record.owner != self._broker.node:
                continue
            broker.restore(record, broker.rules.principal(record.username, record.client_id), now_ms)
        broker.journal.is_on = True
        if self.store.records:
            log.info("%d sessions restored", len(self.store.records))

    def cut(self) -> None:
        """Propose the operations of this turn."""
        journal = self._broker.journal
        if not journal.operations:
            return
        operations, waiting = journal.take()
        batches = [
            SessionBatch(self._broker.node, operations[at : at + _OPERATIONS_MAX])
            for at in range(0, len(operations), _OPERATIONS_MAX)
        ]
        made = [opaque_block(Kind.CONTROL, SESSION_ENTRIES.encode([batch])) for batch in batches]
        tokens: list[Any] = [None] * (len(made) - 1) + [waiting]
        if not self.group.propose(made, tokens, EntryKind.CONTROL):
            # Overloaded.
            journal.put_back(operations, waiting)

    def apply(self, block: Block, token: Any) -> None:
        for batch in SESSION_ENTRIES.decode(block.payload()):
            self.store.apply(batch)
            if self._broker.journal.is_on:
                self._follow(batch)
        if token:
            self._go_on(token)

    def _follow(self, batch: SessionBatch) -> None:
        """Give up the sessions that another node took, and take in those that this node is to look after."""
        for operation in batch.operations:
            match operation:
                case Opened() if operation.owner != self._broker.node:
                    self._give_up(operation.client_id, operation.owner, is_ended=operation.is_clean)
                case Discarded() if self._is_at(operation.client_id, operation.epoch):
                    self._give_up(operation.client_id, batch.node, is_ended=True)
                case Adopted():
                    self._move(operation.gone, operation.owner)
                case _:
                    pass

    def _is_at(self, client_id: str, epoch: int) -> bool:
        """Whether the session here is the one that was opened with this epoch."""
        session = self._broker.sessions.get(client_id)
        return session is not None and session.is_recorded and session.record_epoch == epoch

    def _give_up(self, client_id: str, owner: str = "", *, is_ended: bool = False) -> None:
        """The client connected at another node (`is_ended`: with a clean session), or this node was taken for
        gone and nobody named an owner: here it is served no longer [E4]."""
        session = self._broker.sessions.get(client_id)
        if session is not None:
            connection = session.connection
            if connection is not None:
                # Among it may be the CONNACK.
                connection.hand_out(session)
            if owner:
                self._broker.publish_will_on_move(session, self._now_ms(), is_ended=is_ended)
                self.before_release(session, owner)
            self._broker.release(session, self._now_ms())
            if connection is not None:
                connection.session = None
                if owner:
                    connection.fail(Reason.SESSION_TAKEN_OVER, "the client connected at another node")
                else:
                    # Nobody took its place: it is to connect again, here or elsewhere.
                    connection.fail(Reason.USE_ANOTHER_SERVER, "this node was cut off; connect again")

    def _move(self, gone: str, owner: str) -> None:
        """Sessions of a node that is gone: theirs to look after who is named, and no longer ours if it is
        us that the others took for gone."""
        broker = self._broker
        if gone == broker.node:
            for session in [s for s in broker.sessions.values() if s.is_recorded]:
                self._give_up(session.client_id)
        if owner == broker.node:
            self._look_after()

    def _look_after(self) -> None:
        """Take in sessions that are this node's by their records."""
        broker = self._broker
        for record in list(self.store.records.values()):
            if record.owner == broker.node and record.client_id not in broker.sessions:
                principal = broker.rules.principal(record.username, record.client_id)
                broker.restore(record, principal, self._now_ms())

    def adopt(self, gone: str, time_us: int) -> None:
        """As leader of this group: look after the sessions of a node that is gone."""
        if gone in self.store.owners:
            log.warning("the sessions of a node that is gone are looked after here")
            self._broker.journal.add(Adopted(gone, self._broker.node, time_us))
            self._wake()

    def begin_term(self) -> None:
        """Nothing depends on who leads."""

    def admit(self, block: Block) -> Block:
        return block

    def withdraw(self, block: Block) -> None:
        """Nothing is remembered of what is admitted."""

    def to_bytes(self) -> bytes:
        return self.store.to_bytes()

    def restore(self, state: bytes) -> None:
        self.store = SessionStore.from_bytes(state)
        broker = self._broker
        if not broker.journal.is_on:
            return
        # Too far behind for entries: what they would have said about owners is in the records.
        for client_id in [session.client_id for session in broker.sessions.values() if session.is_recorded]:
            record = self.store.records.get(client_id)
            if record is not None and record.owner != broker.node:
                self._give_up(client_id, record.owner)
        self._look_after()

    def lost(self, token: Any) -> None:
        """Nobody led the group for too long. Whoever waited is not answered; and as the sessions here are
        ahead of their records now (an id counts as received whose message went nowhere), they begin again."""
        if not self._is_reset_due:
            self._is_reset_due = True
            log.warning("operations of sessions were given up: no majority of their group is there")
            asyncio.get_running_loop().call_soon(self._reset)

    def _reset(self) -> None:
        self._is_reset_due = False
        for client_id in [s.client_id for s in self._broker.sessions.values() if s.is_recorded]:
            self._give_up(client_id)
        self._look_after()

    def covered(self, token: Any) -> None:
        """They happened: the records say so."""
        self._go_on(token or ())

    def _go_on(self, token: Sequence[Continuation] | asyncio.Event) -> None:
        """What this node proposed is applied: tell whoever waits for it."""
        if isinstance(token, asyncio.Event):
            token.set()
        else:
            resume_all(self._broker, token)
        self._wake()


def resume_all(broker: Broker, continuations: Sequence[Continuation]) -> None:
    """The operations that these waited for are on disk: go on with each of them, in order."""
    for one in continuations:
        if isinstance(one, ResumeConnection):
            _resume(one.connection, one.duty)
        else:
            broker.resume_written(one)


def _resume(connection: Any, duty: Any) -> None:
    """This runs while a group applies its log: what a client's socket does ends that client's connection and
    nothing else. A socket that was closed meanwhile raises when it is told to read on."""
    try:
        connection.resume(duty)
    except Exception:
        log.exception("closing %s: its client cannot be served", connection.peer)
        connection.transport.abort()
