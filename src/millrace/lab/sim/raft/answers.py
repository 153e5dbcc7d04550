"""What a client of a simulated group is told."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from millrace.replication.contract import ReplicaId


class Outcome(Enum):
    ACKED = "acked"
    LOST = "lost"
    READ = "read"
    REFUSED = "refused"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    outcome: Outcome
    first: int = 0
    last: int = 0
    term: int = 0
    """Of the entries acknowledged."""
    versions: tuple[int, ...] = ()
    """What a read saw."""
    leader: ReplicaId | None = None
    reason: str = ""


AnswerCall = Callable[[Answer], None]


def ignore(_: Answer) -> None:
    """For whoever asks only to see what the question does."""
