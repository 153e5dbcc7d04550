"""Groups made by command, and the queue: takers at any node, with leases and without.

Takers of the group `jobs` lease messages and acknowledge them, give some back and forget some. Each message
must be acknowledged, once; an acknowledged one is never given out again. Takers of the queue name their
requests and repeat them, at another node, until they are answered: no message may be in the answers of two
requests, and all must come.
"""

import asyncio
import random
from typing import TYPE_CHECKING, Any

from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.lab.sim.cluster.calls import NoAnswer, call
from millrace.lab.sim.cluster.checks import Logs
from millrace.lab.sim.cluster.scene import Scene
from millrace.lab.sim.cluster.work import Work
from millrace.node.groups.consumer_groups import Taken, queue_name

if TYPE_CHECKING:
    from millrace.node.server import Server

_GROUP = "jobs"
_FILTER = "g/#"
_QUEUE_TOPIC = "g/g1/0"
_LEASE_US = 4_000_000
_CALL_S = 8.0
_WAIT_MS = 500

Place = tuple[int, int]
"""Shard and offset."""


class GroupWork(Work):
    def __init__(self, world: Scene, rng: random.Random) -> None:
        super().__init__(world, rng)
        self.add_publisher("g1", "g", 1)
        self.add_publisher("g2", "g", 2)
        self._loop = world.client_loop()
        self._made = 0
        self._is_healed = False
        self.given: dict[Place, list[str]] = {}
        """Who was given it, in order, by the group."""
        self.done: dict[Place, tuple[str, int]] = {}
        """Who acknowledged it, and which time it was given."""
        self.unsure: set[Place] = set()
        """An acknowledgement of it was sent and not answered."""
        self.answers: dict[Place, str] = {}
        """The request of the queue that got it."""
        self.payloads: set[bytes] = set()
        self.queued: set[bytes] = set()
        self._loop.call_soon(lambda: self._loop.create_task(self._make()))

    async def _ask(self, make: Any) -> Any:
        hosts = [host for host in self.world.members if host.is_up]
        if not hosts:
            raise NoAnswer("nobody serves")
        return await call(self._loop, self.rng.choice(hosts), make, _CALL_S, self.world.on_trouble)

    async def _make(self) -> None:
        specs = (
            DurableGroupSpec(name=_GROUP, filters=(_FILTER,)),
            DurableGroupSpec(name=queue_name(_QUEUE_TOPIC), filters=(_QUEUE_TOPIC,)),
        )
        for spec in specs:
            while not await self._make_one(spec):
                await asyncio.sleep(0.3)
            self._made += 1
        for number in range(3):
            self._loop.create_task(self._take_jobs(f"t{number}"))
        self._loop.create_task(self._take_queue())

    async def _make_one(self, spec: DurableGroupSpec) -> bool:
        async def make(server: "Server") -> bool:
            if spec.name not in server.engine.groups.by_name:
                await server.engine.groups.create(spec, earliest=True)
            return True

        try:
            return bool(await self._ask(make))
        except NoAnswer as error:
            self.world.note("take", f"{spec.name} is not made yet: {error}")
            return False

    # ----------------------------------------------------------------------------------------- takers

    async def _take_jobs(self, name: str) -> None:
        rng = self.world.chance(f"taker {name}")
        while True:
            await asyncio.sleep(rng.random() * 0.3)
            count = rng.randint(1, 5)

            async def take(server: "Server", count: int = count) -> list[Taken]:
                groups = server.engine.groups
                return await groups.take(_GROUP, count=count, lease_us=_LEASE_US, wait_ms=_WAIT_MS)

            try:
                taken: list[Taken] = await self._ask(take)
            except NoAnswer:
                continue
            for one in taken:
                self._given(name, one)
            await self._settle(name, taken, rng)

    def _given(self, name: str, one: Taken) -> None:
        place = (one.message.shard, one.message.offset)
        by, delivery = self.done.get(place, ("", 0))
        # An answer may be late: its lease is over, and somebody was given the message since.
        if by and _delivery(one) > delivery:
            self.world.fail(
                "group once", f"{one.message.payload!r} was given to {name}, acknowledged by {by}"
            )
        self.given.setdefault(place, []).append(name)
        self.payloads.add(one.message.payload)

    async def _settle(self, name: str, taken: list[Taken], rng: random.Random) -> None:
        fate = rng.random()
        is_careless = self.world.plan.is_wandering and not self._is_healed
        if not taken or (is_careless and fate < 0.1):
            return
        how = "nack" if is_careless and fate < 0.2 else "ack"
        extra = (0,) if how == "nack" else ()
        receipts = [one.receipt for one in taken]
        await asyncio.sleep(rng.random() * 0.2)

        async def settle(server: "Server") -> list[bool]:
            return await server.engine.groups.settle(_GROUP, how, receipts, *extra)

        try:
            results = await self._ask(settle)
        except NoAnswer:
            if how == "ack":
                self.unsure.update((one.message.shard, one.message.offset) for one in taken)
            return
        for one, is_good in zip(taken, results, strict=True):
            place = (one.message.shard, one.message.offset)
            if how == "ack" and is_good:
                if place in self.done:
                    self.world.fail("group once", f"{one.message.payload!r} was acknowledged twice")
                self.done[place] = (name, _delivery(one))

    async def _take_queue(self) -> None:
        number = 0
        while True:
            number += 1
            request = f"request-{number}"

            async def take(server: "Server", request: str = request) -> list[Taken]:
                groups = server.engine.groups
                name = queue_name(_QUEUE_TOPIC)
                return await groups.take(name, count=3, lease_us=0, wait_ms=_WAIT_MS, request=request)

            taken: list[Taken] | None = None
            while taken is None:
                await asyncio.sleep(self.rng.random() * 0.3)
                try:
                    taken = await self._ask(take)
                except NoAnswer:
                    continue
            for one in taken:
                place = (one.message.shard, one.message.offset)
                if place in self.answers:
                    text = f"{one.message.payload!r} is the answer of {self.answers[place]} and {request}"
                    self.world.fail("queue once", text)
                self.answers[place] = request
                self.queued.add(one.message.payload)

    # ----------------------------------------------------------------------------------------- checks

    def is_ready(self) -> bool:
        return self._made == 2

    def heal(self) -> None:
        super().heal()
        self._is_healed = True

    def _missing(self) -> list[bytes]:
        acknowledged = self.history.acknowledged()
        return [payload for payload in acknowledged if payload not in self.payloads]

    def _queue_missing(self) -> list[bytes]:
        sent = self.history.sent
        wanted = [p for p in self.history.acknowledged() if sent[p].topic == _QUEUE_TOPIC]
        return [payload for payload in wanted if payload not in self.queued]

    def is_complete(self) -> bool:
        return not self._missing() and not self._queue_missing() and not self._open()

    def _open(self) -> list[Place]:
        """Given to somebody, and not acknowledged for all we know."""
        return sorted(self.given.keys() - self.done.keys() - self.unsure)

    def check(self, logs: Logs) -> None:
        logs.check_sent(self.history)
        if self._missing() or self._queue_missing():
            logs.fail("group delivery", self.describe())
        if self.world.plan.is_calm:
            for place, names in self.given.items():
                if len(names) > 1:
                    logs.fail("group once", f"{place} was given to {names} without a fault")

    def describe(self) -> str:
        texts = [
            f"{len(found)} {what}, first {found[0]!r}"
            for what, found in (
                ("never taken", self._missing()),
                ("never in the queue", self._queue_missing()),
                ("never acknowledged", self._open()),
            )
            if found
        ]
        return "; ".join(filter(None, (super().describe(), *texts)))

    @property
    def operations(self) -> int:
        return super().operations + len(self.done) + len(self.answers)


def _delivery(one: Taken) -> int:
    """How many times the message was given out, by its receipt."""
    return int(one.receipt.rpartition(".")[2])
