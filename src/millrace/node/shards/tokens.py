"""What this node wants to know of an entry that it proposed to a shard's log.

A token goes with a block to the replication group and comes back exactly once: with the applied block, or as
lost, or covered by a snapshot, or given up because the log goes away. Which of its methods are called says
which; the shard tells a token nothing else."""

from typing import Any

from millrace.broker.messages.intake import Arrival
from millrace.storage.block import Block


class Token:
    """Base of all tokens: each method is what happened, and says nothing to most of them."""

    __slots__ = ()

    is_plain: bool = False
    """Whether the messages of the block are known to have no keys and not to be retained."""
    since_us: int = 0
    """When it was cut from what clients of this node sent; 0: they sent nothing."""
    is_kept_by_snapshot = False
    """Whether all is well where a snapshot covers the entry, though nobody saw it applied here."""

    def deliver(self, block: Block) -> bool:
        """The messages of the block are stored. True: they were delivered, as those of our own clients."""
        return False

    def answer(self, result: Any) -> None:
        """What the entry came to."""

    def on_marker(self) -> None:
        """An entry that changes nothing is applied."""

    def on_sealed(self) -> None:
        """The leader did not take the block, because the log is being sealed."""

    def on_repeated(self) -> None:
        """The leader left out every message of the block."""

    def applied(self, block: Block) -> None:
        """All entries of the control block are applied."""

    def lost(self) -> None:
        """Whether the entry was stored is open, and nobody will say."""

    def given_up(self) -> list[Arrival]:
        """The log goes away. Returns the messages that nobody was answered for."""
        self.lost()
        return []
