"""The group that keeps sessions: operations in, callbacks out once they are on disk.

The live sessions are the broker's; this is their record. At a restart the records are read back and the
broker gets its sessions again, away and behind in their logs by their cursors.
"""

import logging
from collections.abc import Callable
from typing import Any

from millrace.broker import session_store
from millrace.broker.machine import Broker
from millrace.broker.session_store import SessionStore
from millrace.node.group import Group
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Kind, opaque_block
from millrace.types import Reason

log = logging.getLogger("millrace.sessions")

# One entry of the log; a turn with more is cut, so that no entry grows without bound.
_OPERATIONS_MAX = 10_000


class SessionGroup:
    """Implements `App`."""

    def __init__(self, broker: Broker, wake: Callable[[], None]) -> None:
        self._broker = broker
        self._wake = wake
        self.store = SessionStore()
        self.group: Group

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
        made = [
            opaque_block(Kind.CONTROL, session_store.encode(operations[at : at + _OPERATIONS_MAX]))
            for at in range(0, len(operations), _OPERATIONS_MAX)
        ]
        tokens: list[Any] = [None] * (len(made) - 1) + [waiting]
        if not self.group.propose(made, tokens, EntryKind.CONTROL):
            # Overloaded: they stay at the head of the line.
            journal.operations[:0] = operations
            journal.waiting[:0] = waiting

    def apply(self, block: Block, token: Any) -> None:
        operations = session_store.decode(block.payload())
        self.store.apply(operations)
        if self._broker.journal.is_on:
            self._give_up(operations)
        if token:
            for then in token:
                then()
            self._wake()

    def _give_up(self, operations: list[session_store.Operation]) -> None:
        """Clients that connected at another node: here they are served no longer (REQUIREMENTS.md E4)."""
        for operation in operations:
            if operation[0] != "open" or operation[6] == self._broker.node:
                continue
            session = self._broker.sessions.get(operation[1])
            if session is not None:
                connection = session.connection
                self._broker.release(session)
                if connection is not None:
                    connection.session = None
                    connection.fail(Reason.SESSION_TAKEN_OVER, "the client connected at another node")

    def to_bytes(self) -> bytes:
        return self.store.to_bytes()

    def restore(self, state: bytes) -> None:
        self.store = SessionStore.from_bytes(state)

    def lost(self, token: Any) -> None:
        """Nobody led the group for too long. Whoever waited is not answered, and will ask again."""
        log.warning("operations of sessions were given up: no majority of their group is there")
