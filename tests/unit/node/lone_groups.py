"""The durable groups of a node that is alone, without sockets and disk: the real definitions, shard, readers
and groups over a log in memory, and a clock that is turned by hand."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from millrace.broker.access import AccessRules
from millrace.broker.entries.meta import MetaEntry
from millrace.broker.machine import Broker
from millrace.broker.meta.state import MetaState
from millrace.kernels.blocks import Run
from millrace.limits import DEFAULT_LIMITS
from millrace.node.groups.consumer_groups import ConsumerGroups, Taken
from millrace.node.logs.reading import Reading
from millrace.node.shards.publishing import make_run
from millrace.node.shards.shard import Shard
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, data_blocks
from millrace.types import Message, Properties

NOW_US = 1_000_000_000


class Kept:
    """In place of the log: a message at each index, counted from 1."""

    first_offset = 0
    first_index = 1

    def __init__(self) -> None:
        self.log = self
        self.all: list[Block] = []

    def block_at_offset(self, offset: int) -> int:
        return offset + 1

    def skip_to(self, index: int, keys: tuple[int, ...]) -> int:
        return index

    def blocks(self, index: int, last: int, bytes_max: int) -> list[Block]:
        return self.all[index - 1 : index]


class AtOnce:
    """In place of a replication group: what is proposed is committed."""

    is_leader = is_serving = True

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.serving = asyncio.Event()
        self.serving.set()
        self.replica_log = Kept()
        self.proposed = 0

    @property
    def applied(self) -> int:
        return len(self.replica_log.all)

    def status(self) -> Any:
        return SimpleNamespace(serving=True)

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        for block, token in zip(blocks, tokens, strict=True):
            self.proposed += 1
            self._shard.apply(block, token)
        return True


class LoneGroups:
    """Made inside a running loop."""

    def __init__(self) -> None:
        self.wall_us = NOW_US
        self.meta = MetaState()
        self.on_meta_asked: Callable[[], object] = lambda: None
        self.broker = broker = Broker(DEFAULT_LIMITS, AccessRules(()))
        self.on_wake: Callable[[], object] = lambda: None
        clock = {"now_ms": lambda: 0, "wall_us": lambda: self.wall_us, "wake": lambda: self.on_wake()}
        self.shard = Shard(16, self.meta.table.default, broker, **clock)
        self._log = AtOnce(self.shard)
        self.shard.group = self._log  # type: ignore[assignment]
        self.cursors = self.shard.consumers.state.cursors
        self.shards = {16: self.shard}
        self.space: Any = SimpleNamespace(is_refusing=False)
        self.definitions: Any = SimpleNamespace(
            state=self.meta, table=self.meta.table, status=self._meta_status, command=self._command
        )
        # Nothing is damaged, so nothing is repaired.
        self.reading = Reading(ThreadPoolExecutor(1), None)  # type: ignore[arg-type]
        leaderless: Any = SimpleNamespace(groups=lambda stream: {})
        intakes: Any = SimpleNamespace(find=lambda topic: self.shard.intake)
        parts = (self.definitions, self.shards, self.reading, self.space, leaderless, intakes)
        self.groups = ConsumerGroups(*parts, broker, **clock)

    @property
    def proposed(self) -> int:
        """How many entries the log has got."""
        return self._log.proposed

    def _meta_status(self) -> Any:
        self.on_meta_asked()
        return SimpleNamespace(serving=False)

    async def _command(self, entry: MetaEntry) -> None:
        self.meta.apply(entry)

    def store(self, *payloads: bytes, topic: str = "t", expiry_s: int | None = None) -> None:
        for payload in payloads:
            properties = Properties(message_expiry_s=expiry_s)
            message = Message(topic=topic, payload=payload, qos=1, properties=properties)
            run, offset = make_run(message, 0), self.shard.next_offset
            (block,) = data_blocks([Run(packets=run.data, version=5 if run.v5 else 4)])
            stamp = {"shard": 16, "term": 1, "index": offset + 1, "previous_term": 1, "base_offset": offset}
            self._log.replica_log.all.append(block.stamped(base_time_us=self.wall_us, **stamp))
            self.shard.apply(self._log.replica_log.all[-1], None)

    async def take(self, name: str, count: int = 1, lease_s: int = 0, request: str = "") -> list[Taken]:
        return await self.groups.take(name, count=count, lease_us=lease_s * 1_000_000, request=request)
