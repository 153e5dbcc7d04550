"""What a frame machine hears and says: its events and effects, plain values.

A run is a number of messages of one class that arrived together; it is known by the number of its first
message. The messages themselves stay with the driver, except for copies, which the backup keeps as bytes.
"""

from typing import TypeAlias

from msgspec import Struct

from millrace.replication.frame.schedule import Deadlines

# ------------------------------------------------------------------------------------------ events


class Arrived(Struct, frozen=True, kw_only=True):
    """At the primary: so many messages of one class. Answered by `Queued` or `Overloaded`."""

    wanted: Deadlines
    now_us: int
    count: int = 1
    has_backup: bool = True


class Ready(Struct, frozen=True, kw_only=True):
    """One more job can be done now. Answered by `Replicate` or `Dispatch`, or by nothing where none is
    queued."""


class Replicated(Struct, frozen=True, kw_only=True):
    """The copy of a run has left for the backup."""

    number: int
    count: int = 1


class Dispatched(Struct, frozen=True, kw_only=True):
    """The messages of a run are with their subscribers. Answered by `Discard` where a copy has left."""

    number: int
    count: int = 1


class Copied(Struct, frozen=True, kw_only=True):
    """At the backup: the primary of this epoch sent the copy of a run."""

    epoch: int
    number: int
    messages: bytes
    count: int = 1


class Discarded(Struct, frozen=True, kw_only=True):
    """At the backup: the primary of this epoch dispatched a run."""

    epoch: int
    number: int


class Promoted(Struct, frozen=True, kw_only=True):
    """This side is primary from now on. Answered by `Recover`."""


FrameEvent: TypeAlias = Arrived | Ready | Replicated | Dispatched | Copied | Discarded | Promoted


# ----------------------------------------------------------------------------------------- effects


class Queued(Struct, frozen=True, kw_only=True):
    """The run is taken; its first message has this number."""

    number: int


class Overloaded(Struct, frozen=True, kw_only=True):
    """The queue has no room: refuse these messages."""

    count: int


class Replicate(Struct, frozen=True, kw_only=True):
    """Send the run to the backup, then step `Replicated`."""

    number: int
    count: int
    due_us: int


class Dispatch(Struct, frozen=True, kw_only=True):
    """Give the run to its subscribers, then step `Dispatched`."""

    number: int
    count: int
    due_us: int


class Discard(Struct, frozen=True, kw_only=True):
    """Tell the backup that this run is dispatched."""

    number: int


class Recover(Struct, frozen=True, kw_only=True):
    """Dispatch these runs before anything else: they were copied and not discarded, in order of arrival."""

    runs: tuple[bytes, ...]


FrameEffect: TypeAlias = Queued | Overloaded | Replicate | Dispatch | Discard | Recover
