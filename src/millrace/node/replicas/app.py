"""What a replication group is made of besides its log: state, machine, and what is pending."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from millrace.broker.freezing import Freezing
from millrace.replication.contract import Config, EntryKind, Replica, ReplicaId
from millrace.storage.block import Block


class App(Protocol):
    """The replicated state of a group. `apply` is called once for each committed block, in order."""

    def apply(self, block: Block, token: Any) -> None:
        """Data and control blocks only. `token` is what our proposer gave, None for others' blocks."""

    def begin_term(self) -> None:
        """This replica leads from now on, and has applied everything that is in its log."""

    def admit(self, block: Block, token: Any) -> Block:
        """As leader, before a data block goes into the log: the block itself, or a control block in its
        place where it would only repeat what is there. `token` as in `apply`."""

    def withdraw(self, block: Block) -> None:
        """The log did not take a data block that was admitted: it will be offered again."""

    def freeze(self) -> Freezing | None:
        """The whole state after the last applied block, for a snapshot; None where it is too much now. Until
        its `end` there is no other."""

    def load(self, state: bytes, rows: Iterable[tuple[str, bytes]]) -> Iterator[None]:
        """Begin from a snapshot, in steps. `state` may lack rows, which follow a few at a time
        (`freezing.Parts`). Nothing is applied before the last step."""

    def lost(self, token: Any) -> None:
        """Nobody led the group for too long: what was proposed with this token may or may not happen."""

    def covered(self, token: Any) -> None:
        """What was proposed with this token happened: it is part of the state that was just restored. What
        it came to, and at which offset, nobody will say."""


class Pending(NamedTuple):
    block: Block
    kind: EntryKind
    token: Any
    is_judged: bool = False

    @property
    def sequence(self) -> int:
        return self.block.header.sequence


class Machine(Replica, Protocol):
    """A replica as this driver asks it for every block."""

    @property
    def is_serving(self) -> bool: ...

    @property
    def leader(self) -> ReplicaId | None: ...

    @property
    def config(self) -> Config: ...
