"""What a frame machine hears and says: its events and effects, plain values.

A run is a number of messages of one class that arrived together; it is known by the number of its first
message. The messages themselves stay with the driver, except for copies, which the backup keeps as bytes.
"""

from dataclasses import dataclass
from typing import TypeAlias

from millrace.replication.frame.schedule import Deadlines

# ------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """At the primary: so many messages of one class. Answered by `Queued` or `Overloaded`."""

    wanted: Deadlines
    now_us: int
    count: int = 1
    has_backup: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One more job can be done now. Answered by `Replicate` or `Dispatch`, or by nothing where none is
    queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """The copy of a run has left for the backup."""

    number: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatched:
    """The messages of a run are with their subscribers. Answered by `Discard` where a copy has left."""

    number: int
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """At the backup: the primary of this epoch sent the copy of a run."""

    epoch: int
    number: int
    messages: bytes
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Discarded:
    """At the backup: the primary of this epoch dispatched a run."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """This side is primary from now on. Answered by `Recover`."""


FrameEvent: TypeAlias = Arrived | Ready | Replicated | Dispatched | Copied | Discarded | Promoted


# ----------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The run is taken; its first message has this number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overloaded:
    """The queue has no room: refuse these messages."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicate:
    """Send the run to the backup, then step `Replicated`."""

    number: int
    count: int
    due_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Give the run to its subscribers, then step `Dispatched`."""

    number: int
    count: int
    due_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Tell the backup that this run is dispatched."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recover:
    """Dispatch these runs before anything else: they were copied and not discarded, in order of arrival."""

    runs: tuple[bytes, ...]


FrameEffect: TypeAlias = Queued | Overloaded | Replicate | Dispatch | Discard | Recover
