"""Operations of sessions on their way to the disk, and what waits for them, described as values.

Whatever depends on an operation must not leave before the operation is on disk [rule 8]. So it is kept here
as a `Continuation`, in order with the operations of its turn of the loop. The node takes both, writes the
operations, and hands every continuation back in order: those of the broker to `Broker.resume_written`, a
`ResumeConnection` to the connection that it names.
"""

from typing import Any

import msgspec

from millrace.broker.entries.sessions import Operation
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.messages.message import Segment
from millrace.broker.sessions.session import Session


class SendAnswer(msgspec.Struct, frozen=True):
    """Put these bytes out for the client, unless its connection ended meanwhile (another `epoch`)."""

    session: Session
    epoch: int
    data: bytes


class SendMessages(msgspec.Struct, frozen=True):
    """As `SendAnswer`, for messages at QoS 2 whose packet ids are in the record from now on."""

    session: Session
    epoch: int
    segment: Segment
    data: bytes
    now_ms: int


class TakeArrival(msgspec.Struct, frozen=True):
    """Let an arrival into the intake of its shard. `ids` are the packet ids that its session received with
    it; None for a repeat, which waits only behind the message that it repeats."""

    intake: Intake
    arrival: Arrival
    ids: list[int] | None = None


class ResumeConnection(msgspec.Struct, frozen=True):
    """Hand `duty` back to the connection that asked for it. Both are the node's, and opaque here."""

    connection: Any
    duty: Any


BrokerContinuation = SendAnswer | SendMessages | TakeArrival
Continuation = BrokerContinuation | ResumeConnection


class Journal:
    """The operations that were added since the node last took them, and what waits for them.

    Off by default: a broker without a log (a test, an embedded toy) has no sessions with records, so nothing
    is written and nobody waits.
    """

    __slots__ = ("is_due", "is_on", "operations", "waiting")

    def __init__(self) -> None:
        self.is_on = False
        # Whether the operations are to be written at the end of this turn. Those that nobody waits for may go
        # with the next ones.
        self.is_due = False
        self.operations: list[Operation] = []
        self.waiting: list[Continuation] = []

    def add(self, operation: Operation, then: Continuation | None = None) -> None:
        """Write an operation. `then` is handed back once it is on disk, in order with the others."""
        if not self.is_on:
            assert then is None, "who waits has a record, and there are none before the journal is on"
            return
        self.operations.append(operation)
        self.is_due = True
        if then is not None:
            self.waiting.append(then)

    def add_unhurried(self, operation: Operation) -> None:
        """Write an operation with the next that is due, or with the next checkpoint."""
        if self.is_on:
            self.operations.append(operation)

    def hurry(self) -> None:
        """Let what is here be written at the end of this turn."""
        self.is_due = bool(self.operations)

    def after(self, then: Continuation) -> bool:
        """Keep `then` until everything that was added in this turn is on disk. False where nothing is on its
        way: then the caller goes on at once."""
        if not self.is_due:
            return False
        self.waiting.append(then)
        return True

    def take(self) -> tuple[list[Operation], list[Continuation]]:
        """The operations to write, and what waits until all of them are on disk."""
        operations, self.operations = self.operations, []
        waiting, self.waiting = self.waiting, []
        self.is_due = False
        return operations, waiting

    def put_back(self, operations: list[Operation], waiting: list[Continuation]) -> None:
        """These could not be proposed: they stay at the head of the line."""
        self.operations[:0] = operations
        self.waiting[:0] = waiting
        self.is_due = True
