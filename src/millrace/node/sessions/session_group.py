"""The group that keeps sessions: operations in, callbacks out once they are on disk.

The live sessions are the broker's; this is their record. At a restart the records are read back and the
broker gets its sessions again, away and behind in their logs by their cursors.

A node that starts, or that gave up waiting for its operations, begins a *generation*: what it wrote before
may still be on its way into the log, and must not change a record that it has made a session of since. Until
the entry that begins the generation is applied, sessions that were made of records are provisional: they
take what comes for them, send nothing, and are then made again.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from millrace.broker.entries.sessions import (
    SESSION_ENTRIES,
    Adopted,
    CursorsMoved,
    Discarded,
    Ended,
    GenerationBegun,
    Opened,
    Operation,
    SessionBatch,
    WentAway,
)
from millrace.broker.freezing import Freezing
from millrace.broker.machine import Broker
from millrace.broker.sessions.journal import Continuation, ResumeConnection
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.session_store import DisplacedWill, Record, SessionStore
from millrace.broker.sessions.unfinished import unfinished
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.reasons import Reason
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Kind, opaque_block

log = logging.getLogger("millrace.sessions")


def _let_go(session: Session, owner: str) -> None:
    """Nothing goes with it."""


# One entry of the log; a turn with more is cut, so that no entry grows without bound.
_OPERATIONS_MAX = 10_000
_AGAIN_S = 1.0


class _Begin:
    """The token of the entry that begins a generation."""


_BEGIN = _Begin()


class SessionGroup:
    """Implements `App`."""

    def __init__(self, broker: Broker, now_ms: Callable[[], int], wake: Callable[[], None]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._wake = wake
        self.store = SessionStore()
        self.group: ReplicationGroup
        self._is_reset_due = False
        # Whether the generation in which this node writes has begun.
        self._begun = asyncio.Event()
        # The record says that another node serves this session. Set by the node.
        self.before_release: Callable[[Session, str], None] = _let_go

    async def caught_up(self) -> None:
        """Begin a generation, and wait until it has: every record that was written before is here then, and
        nothing changes them that an earlier run of this node wrote. A leader that is known says nothing about
        how far this replica is."""
        self._begin_generation()
        await self._begun.wait()

    def _begin_generation(self) -> None:
        """From its entry on, what was proposed before it counts no more. Where it does not get there, `lost`
        begins another one."""
        node = self.group.replica
        entry = GenerationBegun(node, self.store.generations.get(node, 0))
        block = opaque_block(Kind.CONTROL, SESSION_ENTRIES.encode([entry]))
        if not self.group.propose([block], [_BEGIN], EntryKind.CONTROL):
            # Overloaded.
            asyncio.get_running_loop().call_later(_AGAIN_S, self._reset)

    def find(self, client_id: str) -> Record | None:
        """The record of this client's session, as the broker asks for it."""
        return self.store.records.find(client_id)

    def displaced_wills(self, client_id: str) -> Sequence[DisplacedWill]:
        """Of this client, likewise."""
        return self.store.displaced.get(client_id, ())

    def begin(self) -> None:
        """The records are complete: make the broker's sessions of them, and write from now on."""
        self._broker.journal.is_on = True
        self._look_after()
        if self.store.records:
            log.info("%d sessions restored", len(self.store.records))

    def cut(self) -> None:
        """Propose the operations of this turn."""
        journal = self._broker.journal
        if not journal.is_due or self._is_reset_due:
            return
        operations, waiting = journal.take()
        if not self._begun.is_set():
            operations = [one for one in operations if not _is_provisional(one)]
        batches = [
            SessionBatch(self._broker.node, operations[at : at + _OPERATIONS_MAX])
            for at in range(0, len(operations) or 1, _OPERATIONS_MAX)
        ]
        made = [opaque_block(Kind.CONTROL, SESSION_ENTRIES.encode([batch])) for batch in batches]
        tokens: list[Any] = [None] * (len(made) - 1) + [waiting]
        if not self.group.propose(made, tokens, EntryKind.CONTROL):
            # Overloaded.
            journal.put_back(operations, waiting)

    def apply(self, block: Block, token: Any) -> None:
        is_taken = True
        for entry in SESSION_ENTRIES.decode(block.payload()):
            is_taken = self.store.apply(entry, block.header.origin)
            if is_taken and isinstance(entry, SessionBatch) and self._broker.journal.is_on:
                self._follow(entry)
        if not token:
            return
        if is_taken:
            self._go_on(token)
        else:
            self.lost(token)

    def _follow(self, batch: SessionBatch) -> None:
        """Give up the sessions that another node took, and take in those that this node is to look after."""
        for operation in batch.operations:
            match operation:
                case Opened() if operation.owner != self._broker.node:
                    self._give_up(operation.client_id, operation.owner)
                    self._broker.wills.settle(operation.client_id, self.store, self._broker.node)
                case Discarded() if self._is_at(operation.client_id, operation.epoch):
                    self._give_up(operation.client_id, batch.node, is_ended=True)
                case Ended() if self._is_at(operation.client_id, operation.epoch):
                    # It ended while it was provisional, and was made again.
                    self._give_up(operation.client_id)
                case Adopted():
                    self._move(operation.gone, operation.owner)
                case _:
                    pass

    def _is_at(self, client_id: str, epoch: int) -> bool:
        """Whether the session here is the one that was opened with this epoch."""
        session = self._broker.sessions.get(client_id)
        return session is not None and session.is_recorded and session.record_epoch == epoch

    def _give_up(self, client_id: str, owner: str = "", *, is_ended: bool = False) -> None:
        """The client connected at another node (`is_ended`: and leaves nothing behind), or this node was
        taken for gone and nobody named an owner: here it is served no longer [E4]."""
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
                record = self.store.find(session.client_id)
                if record is None or record.owner != gone:
                    self._give_up(session.client_id)
        if owner == broker.node:
            self._look_after()

    def _look_after(self) -> None:
        """Take in sessions that are this node's by their records, and wills that connections left."""
        broker = self._broker
        for record in self.store.records.of(broker.node):
            if record.client_id not in broker.sessions:
                self._make(record)

        self._publish_displaced()

    def _publish_displaced(self) -> None:
        """Wills that are this node's to publish, of connections that it may know nothing of."""
        broker = self._broker
        for one in [one for kept in self.store.displaced.values() for one in kept]:
            if one.owner == broker.node:
                principal = broker.rules.principal(one.username, one.client_id)
                broker.wills.publish_displaced(one, principal, self._now_ms())

    def _make(self, record: Record) -> None:
        principal = self._broker.rules.principal(record.username, record.client_id)
        self._broker.restore(record, principal, self._now_ms())

    def adopt(self, gone: str, time_us: int) -> None:
        """As leader of this group: look after the sessions of a node that is gone."""
        if gone in self.store.owners:
            log.warning("the sessions of a node that is gone are looked after here")
            known_epoch = self.store.incarnations
            self._broker.journal.add(Adopted(gone, self._broker.node, time_us, known_epoch))
            self._wake()

    def begin_term(self) -> None:
        """Nothing depends on who leads."""

    def admit(self, block: Block, token: Any) -> Block:
        return block

    def withdraw(self, block: Block) -> None:
        """Nothing is remembered of what is admitted."""

    def freeze(self) -> Freezing:
        return self.store.freeze()

    def load(self, state: bytes, rows: Iterable[tuple[str, bytes]]) -> Iterator[None]:
        fresh = SessionStore()
        yield from fresh.load(state, rows)
        self.store = fresh
        self._loaded()

    def _loaded(self) -> None:
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
        """Nobody led the group for too long, or this is of a generation that did not begin. Whoever waited is
        not answered; and as the sessions here are ahead of their records now (an id counts as received whose
        message went nowhere), they begin again."""
        if token is _BEGIN and self._begun.is_set():
            # Proposed twice.
            return
        if not self._is_reset_due:
            self._is_reset_due = True
            asyncio.get_running_loop().call_soon(self._reset)

    def _reset(self) -> None:
        self._is_reset_due = False
        if self.group.is_closed:
            return
        if self._begun.is_set():
            self._begun.clear()
            self._broker.is_settled = False
            log.warning("operations of sessions were given up: no majority of their group is there")
            # What was not proposed yet is of the same sessions.
            self._broker.journal.take()
            for client_id in [s.client_id for s in self._broker.sessions.values() if s.is_recorded]:
                self._give_up(client_id)
            self._look_after()
        self._begin_generation()

    def _on_begun(self) -> None:
        """The records are as this node left them. What it had given up may have changed them since its
        sessions were made of them: they are made again, with the messages that no log holds."""
        self._begun.set()
        broker = self._broker
        broker.is_settled = True
        if not broker.journal.is_on:
            return
        for session in [session for session in broker.sessions.values() if session.is_recorded]:
            held = unfinished(session)
            broker.release(session, self._now_ms())
            record = self.store.records.get(session.client_id)
            if record is not None and record.owner == broker.node:
                self._make(record)
                for segment in held:
                    segment.first_id = 0
                    made = broker.sessions[record.client_id]
                    broker.outbound.send(made, segment, self._now_ms(), is_cleared=False)
        for record in self.store.records.of(broker.node):
            client = broker.sessions.get(record.client_id)
            if client is not None and not client.is_recorded and record.will is None:
                # The client began a clean session here, and the word that its old one ended was given up.
                broker.journal.add(Ended(record.client_id, record.epoch))
        self._look_after()

    def covered(self, token: Any) -> None:
        """They happened, or were void: the records say so."""
        is_begun = self.store.generations.get(self.group.replica) == self.group.origin
        if token and is_begun and (token is _BEGIN or self._begun.is_set()):
            self._go_on(token)
        elif token:
            self.lost(token)

    def _go_on(self, token: Sequence[Continuation] | _Begin) -> None:
        """What this node proposed is applied: tell whoever waits for it."""
        if isinstance(token, _Begin):
            self._on_begun()
        else:
            resume_all(self._broker, token)
        self._wake()


def _is_provisional(operation: Operation) -> bool:
    """Whether this is what a session says of itself that may not know all of its record. That it ended, or
    that its will is stored, is true of the epoch that it names."""
    return isinstance(operation, CursorsMoved | WentAway)


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
