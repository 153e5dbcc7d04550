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
            broker.restore(record, broker.rules.principal(record.username, record.client_id), now_ms)
        broker.journal.is_on = True
        if self.store.records:
            log.info("%d sessions restored", len(self.store.records))

    def cut(self) -> None:
        """Propose the operations of this turn."""
        journal = self._broker.journal
        if not journal.operations or not self.group.is_serving:
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
        self.store.apply(session_store.decode(block.payload()))
        if token:
            for then in token:
                then()
            self._wake()

    def to_bytes(self) -> bytes:
        return self.store.to_bytes()

    def restore(self, state: bytes) -> None:
        self.store = SessionStore.from_bytes(state)

    def lost(self, token: Any) -> None:
        """Another leader's entry took the place. Whoever waited is not answered and will ask again."""
        log.warning("operations of sessions were lost to another leader")
