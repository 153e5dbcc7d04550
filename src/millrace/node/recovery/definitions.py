"""The definitions of the cluster, read from a data directory while no node runs on it."""

from millrace.broker.entries.meta import META_ENTRIES
from millrace.broker.meta.state import MetaState
from millrace.errors import MillraceError
from millrace.node.logs.replica_log import ReplicaLog
from millrace.storage.block import Kind
from millrace.storage.log import READ_BYTES
from millrace.types import Index


def definitions_of(replica_log: ReplicaLog) -> MetaState:
    """The definitions as far as they can be read; what was not committed may be among them."""
    state = MetaState()
    index, snapshot, saved = replica_log.first_index(), replica_log.snapshot(), replica_log.snapshot_state()
    try:
        if snapshot is not None and saved is not None:
            state = MetaState.from_bytes(saved.partition(b"\n")[2])
            index = Index(snapshot.index + 1)
        while index <= replica_log.last_index():
            for block in replica_log.blocks(index, replica_log.last_index(), READ_BYTES):
                index = Index(block.header.index + 1)
                if block.header.kind is Kind.CONTROL:
                    for entry in META_ENTRIES.decode(block.payload()):
                        state.apply(entry)
    except MillraceError:
        # The names are for people; what is damaged is told with the log.
        return state
    return state
