"""Writers that publish in two steps: tasks stage under attempts, drivers commit, give up and repeat.

A driver writes one batch after the other, as Spark's sink does. Some of its attempts lose, some it gives up
and stages again, some commits it sends twice; a second driver that believes in an older state comes in
between with a batch that may be decided already. A reader takes what is visible at any node, all the time,
and a subscriber gets it by MQTT. What must hold is in `ledger`; in the end nothing is left staged.
"""

import asyncio
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.broker.shards.staging import BlockKey, make_key
from millrace.broker.streams.stream import StreamSpec
from millrace.client.conversation.events import Delivered
from millrace.kernels.blocks import Run
from millrace.kernels.publish import head
from millrace.lab.sim.cluster.calls import NoAnswer, call
from millrace.lab.sim.cluster.checks import Logs
from millrace.lab.sim.cluster.ledger import Batch, Ledger, payload_of
from millrace.lab.sim.cluster.mqtt_clients import Subscriber
from millrace.lab.sim.cluster.scene import Scene
from millrace.lab.sim.cluster.work import Work
from millrace.lab.sim.violation import Violation
from millrace.node.logs.reading import stored_rows
from millrace.node.shards.writers import Conflict
from millrace.storage.block import Block, Kind, keyed_block
from millrace.storage.log import Trimmed

if TYPE_CHECKING:
    from millrace.node.server import Server
    from millrace.node.shards.shard import Shard

_ROOT = "x"
_TOPICS = 4
_CALL_S = 8.0
_STAGE_TRIES = 6
_LATE_TRIES = 3
_ROWS_MAX = 10
_PAYLOAD_BYTES_MAX = 400
_BLOCK_ROWS_MAX = 4
_RETENTION_BYTES = 16_384
_PAUSE_S = 0.3
_BATCHES_AFTER = 3

Section = tuple[int, BlockKey, bytes]
"""Shard, key and packets of a block."""


@dataclass(slots=True)
class Attempt:
    """What a task stages."""

    batch: Batch
    name: str
    rows: list[tuple[str, bytes]]
    """Topics and payloads."""
    placed: dict[int, int] = field(default_factory=dict)
    """How many blocks are at each shard."""

    @property
    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.rows]

    def sections(self, shard_of: dict[str, int], rng: random.Random) -> list[Section]:
        """Cut into blocks, numbered at each shard."""
        rows: dict[int, list[bytes]] = {}
        for topic, payload in self.rows:
            body = len(topic).to_bytes(2, "big") + topic.encode() + b"\0\1" + payload
            rows.setdefault(shard_of[topic], []).append(head(0x32, len(body)) + body)
        made: list[Section] = []
        self.placed = {}
        for shard, packets in rows.items():
            at = number = 0
            while at < len(packets):
                count = rng.randint(1, _BLOCK_ROWS_MAX)
                key = make_key(*self.batch, self.name, number)
                made.append((shard, key, b"".join(packets[at : at + count])))
                at, number = at + count, number + 1
            self.placed[shard] = number
        return made


class Watcher(Subscriber):
    """Gets by MQTT what is visible."""

    def _on_delivered(self, event: Delivered) -> None:
        self._history.received[self.name].append(bytes(event.message.payload))
        self.protocol.take(event.message)


class StagingWork(Work):
    def __init__(self, world: Scene, rng: random.Random) -> None:
        super().__init__(world, rng)
        self._loop = world.client_loop()
        self._is_healed = False
        self._attempts = 0
        self._driving = {f"w{number}": 0 for number in range(rng.randint(1, 3))}
        """The batch that each writer is at."""
        self._left = dict.fromkeys(self._driving, _BATCHES_AFTER)
        """How many each is to write when everything has healed."""
        # Either among all others, whose shards the operator changes, or where little is kept.
        self._is_short = rng.random() < 0.5
        self.ledger = Ledger()
        self.seen: dict[int, dict[int, bytes]] = {}
        """What the reader found: the payload at each offset of each shard, of other work an empty one."""
        self._cursors: dict[int, int] = {}
        self._is_gap = False
        if self._is_short:
            spec = StreamSpec(
                name="staged", filters=(f"{_ROOT}/#",), shards=2, retention_bytes=_RETENTION_BYTES
            )
            world.asked.append(
                ("the stream staged", lambda server: server.engine.opening.put(spec, create=False))
            )
        more = self.more("x1")
        self._watcher = Watcher(
            "x1", world.client_loop(), filter=f"{_ROOT}/#", qos=1, is_durable=True, **more
        )
        self.subscribers.append(self._watcher)

    # ------------------------------------------------------------------------------------- the story

    def is_ready(self) -> bool:
        hosts = [host.server for host in self.world.members if host.server is not None and host.is_up]
        is_there = all("staged" in server.engine.definitions.table.streams for server in hosts)
        return super().is_ready() and bool(hosts) and (is_there or not self._is_short)

    def begin(self) -> None:
        for writer in self._driving:
            self._spawn(self._drive(writer, self.world.chance(f"driver {writer}")))
        self._spawn(self._come_late(self.world.chance("late driver")))
        self._spawn(self._read(self.world.chance("staged reader")))

    def _spawn(self, work: Any) -> None:
        async def run() -> None:
            try:
                await work
            except Violation as violation:
                self.world.fail(violation.rule, violation.detail)

        self._loop.call_soon(lambda: self._loop.create_task(run()))

    def heal(self) -> None:
        super().heal()
        self._is_healed = True

    def is_answered(self) -> bool:
        return not any(self._left.values())

    def is_complete(self) -> bool:
        return not self.describe()

    def check(self, logs: Logs) -> None:
        shards = {number: dict(rows) for number, rows in self.seen.items()}
        for message in logs.messages():
            if not message.topic.startswith(f"{_ROOT}/"):
                continue
            known = shards.setdefault(message.shard, {}).setdefault(message.offset, message.payload)
            if known != message.payload:
                logs.fail("staged stays", f"{message.shard}/{message.offset} was {known!r}")
        rows = {number: [found[at] for at in sorted(found) if found[at]] for number, found in shards.items()}
        self.ledger.check(rows, is_whole=not self._is_gap)
        visible = {payload for payloads in rows.values() for payload in payloads}
        for payload in self.history.received[self._watcher.name]:
            if payload not in visible and not self._is_gap:
                logs.fail("committed first", f"{payload!r} was delivered and is in no log")

    def describe(self) -> str:
        """What is not through everywhere."""
        for host in self.world.members:
            if host.server is None:
                return f"{host.name} does not serve"
            engine = host.server.engine
            for name, writer in engine.definitions.state.writers.writers.items():
                if writer.decisions:
                    return f"{host.name}: {writer.decisions} of {name} are not visible"
            for number, shard in engine.shards.items():
                if shard.staging.state.attempts:
                    return f"{host.name}: {list(shard.staging.state.attempts)} are staged at {number}"
                if shard.next_offset > self._cursors.get(number, 0):
                    return f"shard {number} is read up to {self._cursors.get(number, 0)}"
        received = set(self.history.received[self._watcher.name])
        lacking = [row for rows in self.seen.values() for row in rows.values() if row and row not in received]
        if lacking and not self._is_short:
            return f"{self._watcher.name} lacks {len(lacking)}, first {lacking[0]!r}"
        return "" if self.is_answered() else f"at batches {self._driving}"

    @property
    def operations(self) -> int:
        return len(self.ledger.decided)

    # --------------------------------------------------------------------------------------- drivers

    async def _ask(self, make: Any) -> Any:
        hosts = [host for host in self.world.members if host.is_up]
        if not hosts:
            raise NoAnswer("nobody serves")
        return await call(self._loop, self.rng.choice(hosts), make, _CALL_S, self.world.on_trouble)

    async def _drive(self, writer: str, rng: random.Random) -> None:
        """One batch after the other, each until it is decided."""
        while self._left[writer]:
            batch = (writer, self._driving[writer])
            await asyncio.sleep(rng.random() * _PAUSE_S)
            if await self._write(batch, rng):
                self._driving[writer] += 1
                self._left[writer] -= self._is_healed
                self.world.note(writer, f"batch {batch[1]} is decided")

    async def _write(self, batch: Batch, rng: random.Random) -> bool:
        """Stage a batch under fresh attempts and decide it; False where it must be tried again."""
        is_careless = self.world.plan.is_wandering and not self._is_healed
        winners: list[Attempt] = []
        for _ in range(0 if rng.random() < 0.05 else rng.randint(1, 3)):
            if is_careless and rng.random() < 0.25:
                await self._stage(self._attempt(batch, rng), rng, tries=1)
            one = self._attempt(batch, rng)
            if not await self._stage(one, rng, tries=_STAGE_TRIES):
                return False
            winners.append(one)
        if is_careless and rng.random() < 0.2:
            await self._abort(batch, winners if rng.random() < 0.7 else None)
            return False
        if await self._commit(batch, winners, tries=None) is None:
            return False
        if rng.random() < 0.2 and await self._commit(batch, winners, tries=1) is False:
            raise Violation("decided once", f"a repeated commit of {batch} decided it again")
        return True

    async def _come_late(self, rng: random.Random) -> None:
        """A second driver, which was away: a batch that is being written, or one before."""
        while not self._is_healed and self.world.plan.is_wandering:
            await asyncio.sleep(rng.random() * 4)
            writer = rng.choice(sorted(self._driving))
            current = self._driving[writer]
            batch = (writer, rng.randint(max(0, current - 2), current))
            one = self._attempt(batch, rng)
            if await self._stage(one, rng, tries=_LATE_TRIES):
                await self._commit(batch, [one], tries=_LATE_TRIES)

    def _attempt(self, batch: Batch, rng: random.Random) -> Attempt:
        self._attempts += 1
        name = f"a{self._attempts}"
        rows = [
            (
                f"{_ROOT}/{rng.randrange(_TOPICS)}",
                payload_of(batch, name, number, rng.randint(0, _PAYLOAD_BYTES_MAX)),
            )
            for number in range(rng.randint(1, _ROWS_MAX))
        ]
        return Attempt(batch, name, rows)

    async def _stage(self, attempt: Attempt, rng: random.Random, *, tries: int) -> bool:
        """Bring all blocks of an attempt to their shards, in order, each sent again until it is answered;
        False: not all are known to be there, and the attempt is of no use."""

        async def route(server: "Server") -> dict[str, int]:
            return {topic: _shard_of(server, topic) for topic, _ in attempt.rows}

        sections: list[Section] | None = None
        for _ in range(tries * 4):
            try:
                if sections is None:
                    sections = attempt.sections(await self._ask(route), rng)
                some = sections[: rng.randint(1, 3)]
                if not await self._ask(lambda server, some=some: _stage_at(server, some)):
                    return False
            except NoAnswer as error:
                self.world.note(attempt.batch[0], f"{attempt.name} of batch {attempt.batch[1]}: {error}")
                tries -= 1
                if not tries:
                    return False
                await asyncio.sleep(rng.random() * 0.5)
                continue
            sections = sections[len(some) :]
            if not sections:
                return True
        return False

    async def _commit(self, batch: Batch, winners: list[Attempt], *, tries: int | None) -> bool | None:
        """Whether the batch was decided before; None where the commit was refused, or is open."""
        writer, number = batch
        placed = {one.name: one.placed for one in winners}
        self.ledger.wish(batch, {one.name: one.payloads for one in winners})

        async def commit(server: "Server") -> bool | None:
            try:
                principal = server.broker.rules.principal(None, writer)
                is_repeat, _ = await server.engine.writing.commit(writer, number, placed, "", principal)
            except Conflict as error:
                self.world.note(writer, f"batch {number}: {error}")
                return None
            return is_repeat

        is_first = True
        while tries is None or tries > 0:
            last = self.ledger.last_decided(writer)
            try:
                is_repeat: bool | None = await self._ask(commit)
            except NoAnswer as error:
                self.world.note(writer, f"batch {number}: {error}")
                tries = None if tries is None else tries - 1
                is_first = False
                await asyncio.sleep(0.3)
                continue
            if is_repeat is not None:
                self.ledger.answered(batch, is_repeat=is_repeat, last=last)
            return is_repeat if is_first or is_repeat is None else True
        return None

    async def _abort(self, batch: Batch, attempts: list[Attempt] | None) -> None:
        names = None if attempts is None else [one.name for one in attempts]
        while True:
            try:
                await self._ask(lambda server: server.engine.writing.abort(*batch, names, ""))
            except NoAnswer as error:
                self.world.note(batch[0], f"giving up batch {batch[1]}: {error}")
                await asyncio.sleep(0.3)
            else:
                return

    # ---------------------------------------------------------------------------------------- reader

    async def _read(self, rng: random.Random) -> None:
        while True:
            await asyncio.sleep(rng.random() * 0.3)
            try:
                await self._ask(self._read_at)
            except NoAnswer:
                continue

    async def _read_at(self, server: "Server") -> None:
        """What is new at this node. Where retention was faster, not all of it was seen."""
        for number, shard in list(server.engine.shards.items()):
            cursor = self._cursors.get(number, 0)
            try:
                blocks = await server.engine.reading.blocks(shard, cursor)
            except Trimmed as trimmed:
                self._is_gap = True
                self._cursors[number] = max(self._cursors.get(number, 0), int(trimmed.first_offset))
                continue
            self._note(number, blocks)

    def _note(self, number: int, blocks: list[Block]) -> None:
        seen = self.seen.setdefault(number, {})
        for block in blocks:
            header = block.header
            if header.kind is not Kind.DATA:
                continue
            for row in stored_rows(number, block, range(header.count)):
                payload = row.payload if row.topic.startswith(f"{_ROOT}/") else b""
                if seen.setdefault(row.offset, payload) != payload:
                    self.world.fail("staged stays", f"{number}/{row.offset} was {seen[row.offset]!r}")
            self._cursors[number] = max(self._cursors.get(number, 0), header.next_offset)


# ------------------------------------------------------------------------------------------------ the door


def _shard_of(server: "Server", topic: str) -> int:
    table = server.engine.definitions.table
    stream = table.find(topic)
    assert stream is not None
    return table.shard(stream, topic.encode())


async def _stage_at(server: "Server", sections: list[Section]) -> bool:
    """As the HTTP door does it; False where a shard takes no more of this, or a topic is kept elsewhere."""
    made: dict[Shard, list[tuple[BlockKey, Block]]] = {}
    for number, key, packets in sections:
        shard = server.engine.shards.get(number)
        block = keyed_block([Run(packets=packets, version=4)], key.encode())
        if shard is None or shard.intake.is_sealed:
            return False
        if any(_shard_of(server, topic.decode()) != number for topic in block.topics()):
            return False
        made.setdefault(shard, []).append((key, block))
    await asyncio.gather(*(shard.staging.stage(pairs, "") for shard, pairs in made.items()))
    return True
