"""When a shard writes its state as a snapshot: often enough to bound what a restart applies again."""

from collections.abc import Iterable

from millrace.node.shards.shard import Shard

# After many bytes of log, or after many entries that are small but large beside the state.
_EVERY_BYTES = 256 * 1024 * 1024
_EVERY_ENTRIES = 20_000
_EVERY_STATES = 4


def take_due(shards: Iterable[Shard]) -> None:
    """Begin the snapshots that are due."""
    for shard in shards:
        group = shard.group
        known = group.replica_log.snapshot()
        index, state_bytes = (0, 0) if known is None else (known.index, known.size_bytes)
        grown_bytes = group.replica_log.log.bytes_behind(index)
        is_long = group.applied - index >= _EVERY_ENTRIES
        if grown_bytes > _EVERY_BYTES or (is_long and grown_bytes > _EVERY_STATES * state_bytes):
            group.begin_snapshot()
