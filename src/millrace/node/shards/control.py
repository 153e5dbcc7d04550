"""Control blocks of a shard: typed entries in a block of the storage, and out of one."""

from collections.abc import Sequence

from millrace.broker.entries.shard import SHARD_ENTRIES, ShardEntry
from millrace.storage.block import Block, Kind, opaque_block


def control_block(entries: Sequence[ShardEntry]) -> Block:
    """One block of these entries, without a time and a place in a log."""
    return opaque_block(Kind.CONTROL, SHARD_ENTRIES.encode(entries))


def entries_of(block: Block) -> list[ShardEntry]:
    """The entries of a control block, in order."""
    return SHARD_ENTRIES.decode(block.payload())
