"""What the parts of a shard need of it: its log, its state, and a way to propose."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from millrace.broker.entries.shard import ShardEntry
from millrace.broker.groups.work_division import WorkDivision
from millrace.broker.shards.shard_state import ShardState
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.shards.tokens import Token
from millrace.storage.block import Block


class ShardLog(Protocol):
    """Implemented by `Shard`; see there."""

    number: int
    state: ShardState
    group: ReplicationGroup

    @property
    def first_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def work_division(self) -> WorkDivision: ...

    @property
    def others(self) -> Mapping[int, "ShardLog"]: ...

    def recent(self, offset: int) -> list[Block] | None: ...

    def timed(self, block: Block) -> Block: ...

    def propose_entries(
        self, entries: Sequence[ShardEntry], token: Token | None = None, time_us: int | None = None
    ) -> bool: ...
