"""The state of a shard out of its log alone, without a node that serves it."""

from millrace.broker.shards.block_facts import facts_of
from millrace.broker.shards.shard_state import ShardState
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.shards.control import entries_of
from millrace.storage.block import Kind
from millrace.storage.log import READ_BYTES
from millrace.types import Index


def replayed(
    number: int, replica_log: ReplicaLog, last: Index, *, has_edge: bool = False, begins_at_snapshot: bool
) -> ShardState:
    """What the log of a shard comes to at entry `last`. It begins with the first entry where that is there,
    or with the snapshot where that is shorter and asked for."""
    state, index = ShardState(number), replica_log.first_index()
    snapshot, saved = replica_log.snapshot(), replica_log.snapshot_state()
    if snapshot is not None and saved is not None and (index > 1 or begins_at_snapshot):
        state.restore(saved.partition(b"\n")[2])
        index = Index(snapshot.index + 1)
    while index <= last:
        for block in replica_log.blocks(index, last, READ_BYTES):
            header = block.header
            index = Index(header.index + 1)
            if header.kind is Kind.DATA:
                facts = facts_of(block.columns(), block.topics(), header.base_time_us, has_edge=has_edge)
                state.apply_messages(facts, index=header.index, next_offset=header.next_offset)
            elif header.kind is Kind.CONTROL:
                for entry in entries_of(block):
                    state.apply(entry, index=header.index, time_us=header.base_time_us)
    return state
