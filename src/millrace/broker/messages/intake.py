"""Captured messages on their way into a shard's log.

A message of a captured stream reaches nobody, and its publisher hears nothing, before it is committed
[rule 1]. What arrived in one turn of the loop, over all connections, gathers here; the node cuts it
into blocks, proposes them, and brings each `Arrival` back when its block is committed or cannot be.
"""

from typing import Any, Protocol

from millrace.broker.messages.message import Run
from millrace.broker.sessions.session import Session
from millrace.reasons import Reason

LEISURE_MS = 20
"""A client that was silent for so long before it publishes goes at a pace of its own: it did not wait for an
answer, and the next one may come later by a tenth of that."""


class Arrival:
    """One run of one publisher and the answer it waits for. `run` is None where only the answer waits."""

    __slots__ = (
        "ack",
        "arrival_number",
        "epoch",
        "generation",
        "is_doubtful",
        "is_input",
        "is_retained_only",
        "is_shown",
        "producer",
        "reason",
        "route",
        "run",
        "sequence",
        "session",
        "topic",
        "waiter",
    )

    def __init__(
        self,
        session: Session | None,
        route: Any,
        generation: int,
        run: Run | None,
        topic: str | None,
        ack: bytes,
    ) -> None:
        self.session = session
        # The route of all messages of the run, good while the router's generation is the same.
        self.route = route
        self.generation = generation
        # A client that went away and came back meanwhile is not answered: it will send again.
        self.epoch = session.epoch if session is not None else 0
        self.run = run
        # Given where all messages of the run are of one topic and the careful path handled them, and where
        # only an answer waits.
        self.topic = topic
        self.ack = ack
        # Its number among all that came in; 0: not in yet.
        self.arrival_number = 0
        # Delivered from memory already; only the value to retain is logged [rule 6].
        self.is_retained_only = False
        # Subscribers get that value already.
        self.is_shown = False
        # For an edge function alone: logged and acknowledged, not delivered.
        self.is_input = False
        # Key of the first message, counting up through the run, where they can be sent again.
        self.producer: bytes | None = None
        self.sequence = 0
        # Whether the key may be in the log already: asked when the block is cut.
        self.is_doubtful = False
        # Who waits for it without being a session, opaque here: `Inbound.outcomes` names the arrival then.
        self.waiter: Any = None
        # Why it could not be stored.
        self.reason: Reason | None = None


class Intake:
    """The way into one shard."""

    __slots__ = ("arrivals", "captures_all", "gathers", "is_sealed", "shard")

    def __init__(self, shard: int, captures_all: bool) -> None:
        self.shard = shard
        self.captures_all = captures_all
        self.is_sealed = False
        # Whether what is not urgent may wait here a moment for more; see `Inbound.is_urgent`.
        self.gathers = True
        self.arrivals: list[Arrival] = []


class IntakeTable(Protocol):
    """The ways into the logs that are open at this node, as the router asks for them."""

    def find(self, topic: str) -> Intake | None:
        """The way into the log that keeps this topic, None where nothing keeps it."""
        ...


class NoIntakes:
    """The table of a node without logs."""

    def find(self, topic: str) -> Intake | None:
        return None
