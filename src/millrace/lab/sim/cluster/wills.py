"""Clients with a will: it is published once when they are lost, and not when they said goodbye or came back.

A client connects with a will of its own number, stays for a while, and goes: with a goodbye, by breaking its
connection, by leaving it open for the next one to displace, or with whatever happens to its node. Where a
will stands in the log tells whether it fired. What is certain in every run: no will fires twice, none fires
for a connection that lives. What is certain at the end: clients that then break off and stay away have their
wills published. Without faults also: none after a goodbye, none where the client was back before the delay
was over, and that of a connection which was left open where it has no delay.
"""

import asyncio
import random
from dataclasses import dataclass

from millrace.client.conversation.events import Connected
from millrace.client.conversation.protocol import Options, Protocol
from millrace.lab.sim.cluster.checks import Logs
from millrace.lab.sim.cluster.host import MQTT_PORT
from millrace.lab.sim.cluster.scene import Scene
from millrace.lab.sim.cluster.work import Work
from millrace.lab.sim.surroundings.loop import SimLoop
from millrace.types import Message, Version, Will

_DIAL_S = 4.0
_ANSWER_S = 10.0
_STAY_S_MAX = 8.0
_AWAY_S_MAX = 5.0
_KEEP_ALIVE_S = 4
_SESSION_S = 1_000
_TURN_S = 0.2
# A delay that is over by so much must have fired; the nodes look ten times a second.
_SLACK_S = 1.0


@dataclass(slots=True)
class Life:
    """One connection with its will."""

    payload: bytes
    delay_s: int
    is_accepted: bool = False
    is_farewell: bool = False
    """Said goodbye; whether the node heard it is not known under faults."""
    is_left_open: bool = False
    ended_s: float | None = None
    next_s: float | None = None
    """When the client was back."""
    is_last: bool = False


class _Line(asyncio.Protocol):
    """One connection of a client, which may have left it."""

    def __init__(self, client: "Mortal") -> None:
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client.connection_made(self, transport)

    def data_received(self, data: bytes) -> None:
        self._client.data_received(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        self._client.connection_lost(self)


class Mortal:
    """A client that comes and goes."""

    def __init__(self, work: "Wills", name: str, loop: SimLoop, rng: random.Random, version: Version) -> None:
        self.name = name
        self.loop = loop
        self.is_wandering = True
        self.is_through = False
        self.lives: list[Life] = []
        self._work = work
        self._rng = rng
        self._version = version
        # 3.1.1 has no delay: there the will is published at once.
        is_delayed = version is Version.MQTT_5 and rng.random() < 0.5
        self._delay_s = rng.randint(1, 4) if is_delayed else 0
        self._session_s = _SESSION_S if is_delayed or rng.random() < 0.5 else 0
        self._protocol: Protocol | None = None
        self._line: _Line | None = None
        self._transport: asyncio.Transport | None = None
        self._may_end = False
        loop.call_soon(lambda: loop.create_task(self._live()))

    def die(self) -> None:
        """For the last time, and without a word."""
        self._may_end = True

    async def _live(self) -> None:
        while not self.is_through:
            life = Life(f"{self.name}:{len(self.lives)}".encode(), self._delay_s)
            self.lives.append(life)
            await self._connect(life)
            await self._stay(life)
            await self._go(life)
            if life.is_last:
                self.is_through = True
                return
            await asyncio.sleep(self._rng.random() * _AWAY_S_MAX)

    async def _connect(self, life: Life) -> None:
        will = Will(
            message=Message(topic=f"w/{self.name}", payload=life.payload, qos=1), delay_s=self._delay_s
        )
        options = Options(
            client_id=self.name,
            version=self._version,
            clean_start=not self._session_s,
            session_expiry_s=self._session_s,
            keep_alive_s=_KEEP_ALIVE_S,
            will=will,
        )
        self._protocol = Protocol(options)
        address = self._rng.choice(self._work.world.addresses)
        try:
            async with asyncio.timeout(_DIAL_S):
                await self.loop.create_connection(lambda: _Line(self), address, MQTT_PORT)
        except OSError:
            return

    async def _stay(self, life: Life) -> None:
        begun_s = self.loop.time()
        until_s = begun_s + self._rng.random() * _STAY_S_MAX
        while self._transport is not None:
            self._protocol_turn()
            if self._may_end and life.is_accepted:
                life.is_last = True
                return
            if self.loop.time() > until_s and not self._may_end:
                return
            if self.loop.time() > begun_s + _ANSWER_S and not life.is_accepted:
                # A node without power does not even say that it is gone.
                return
            await asyncio.sleep(_TURN_S)

    async def _go(self, life: Life) -> None:
        if self._transport is not None:
            chance = 1.0 if life.is_last else self._rng.random()
            if chance < 0.3:
                life.is_farewell = True
                assert self._protocol is not None
                self._protocol.disconnect()
                self._flush()
                self._transport.close()
            elif chance < 0.45:
                life.is_left_open = True
                self._line = self._transport = None
            else:
                self._transport.abort()
        if life.ended_s is None:
            life.ended_s = self.loop.time()
        while self._transport is not None:
            await asyncio.sleep(0.01)

    def _protocol_turn(self) -> None:
        assert self._protocol is not None
        self._protocol.tick(self.loop.time())
        self._flush()

    # ------------------------------------------------------------------------------- its connections

    def connection_made(self, line: _Line, transport: asyncio.BaseTransport) -> None:
        assert self._protocol is not None and isinstance(transport, asyncio.Transport)
        self._line, self._transport = line, transport
        self._protocol.connect(self.loop.time())
        self._flush()

    def data_received(self, line: _Line, data: bytes) -> None:
        if line is not self._line:
            return
        assert self._protocol is not None
        self._protocol.receive_data(data, self.loop.time())
        while (event := self._protocol.next_event()) is not None:
            if isinstance(event, Connected):
                self._on_accepted()
            elif self._transport is not None:
                self._transport.close()
        self._flush()

    def _on_accepted(self) -> None:
        life = self.lives[-1]
        life.is_accepted = True
        for earlier in self.lives[:-1]:
            if earlier.next_s is None:
                earlier.next_s = self.loop.time()
        self._work.world.note(self.name, f"lives with the will {life.payload.decode()}")

    def connection_lost(self, line: _Line) -> None:
        if line is not self._line:
            return
        self._line = self._transport = None
        if self.lives[-1].ended_s is None:
            self.lives[-1].ended_s = self.loop.time()
        self._work.world.note(self.name, "is gone")

    def _flush(self) -> None:
        assert self._protocol is not None
        while data := self._protocol.data_to_send(self.loop.time()):
            if self._transport is not None:
                self._transport.write(data)


class Wills(Work):
    def __init__(self, world: Scene, rng: random.Random) -> None:
        super().__init__(world, rng)
        self.mortals = [
            Mortal(
                self,
                f"w{i}",
                world.client_loop(),
                world.chance(f"client w{i}"),
                rng.choice((Version.MQTT_3_1_1, Version.MQTT_5)),
            )
            for i in range(rng.randint(1, 3))
        ]

        self._look_s = 0.0

    def heal(self) -> None:
        for one in self.mortals:
            one.die()

    def is_answered(self) -> bool:
        return all(one.is_through for one in self.mortals)

    def is_complete(self) -> bool:
        # Reading all logs takes its time: not at every look.
        if self.world.now_s < self._look_s or not self.world.is_quiet():
            return False
        self._look_s = self.world.now_s + 1
        logs = Logs(self.world.members)
        return all(logs.counts[one.lives[-1].payload] for one in self.mortals)

    def check(self, logs: Logs) -> None:
        for life in (life for one in self.mortals for life in one.lives):
            count = logs.counts[life.payload]
            if count > 1:
                logs.fail("will once", f"the will {life.payload.decode()} was published {count} times")
            if life.is_last and not count:
                logs.fail("will", f"the will {life.payload.decode()} was never published")
            if self.world.plan.is_calm:
                self._check_calm(life, count, logs)

    def _check_calm(self, life: Life, count: int, logs: Logs) -> None:
        if life.ended_s is None or not life.is_accepted:
            return
        if life.is_left_open:
            # With a delay it depends on whether its node missed the client before the next connection came.
            if not life.delay_s and not count:
                logs.fail("will", f"the will {life.payload.decode()} was not published when it was displaced")
            return
        away_s = (life.next_s if life.next_s is not None else self.world.now_s) - life.ended_s
        if life.is_farewell or away_s < life.delay_s - _SLACK_S:
            if count:
                logs.fail("will", f"the will {life.payload.decode()} was published for a client that lives")
        elif away_s > life.delay_s + _SLACK_S and not count:
            logs.fail("will", f"the will {life.payload.decode()} was never published")

    def describe(self) -> str:
        return ", ".join(f"{one.name} has {len(one.lives)} lives" for one in self.mortals)

    @property
    def operations(self) -> int:
        return sum(len(one.lives) for one in self.mortals)
