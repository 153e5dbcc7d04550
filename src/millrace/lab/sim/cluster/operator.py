"""The operator of a simulated cluster: changes streams and members while clients work and things break.

One change at a time, each asked for again until it is done: a command whose answer was lost may have
happened, so every one of them can be repeated. What puts data at risk (a disk that is replaced, a node that
leaves for good) waits until the cluster is whole, as the documentation tells a person to do.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from millrace.broker.streams.stream import DEFAULT_SPEC, DEFAULT_STREAM, StreamSpec
from millrace.lab.sim.cluster.calls import NoAnswer, call
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.scene import Make, Scene

if TYPE_CHECKING:
    from millrace.node.server import Server

_CALL_S = 15.0
_PAUSE_S = 0.5
_GAP_S = 4.0
_FILTERS = ("q1/#", "q2/+/0", "+/+/1", "s/#", "g/#", "r/#", "w/#")


class Operator:
    def __init__(self, world: Scene, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._loop = world.client_loop()
        self._is_active = False
        self._is_busy = False
        self.changes = 0
        actions: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "stream": self._stream,
            "shards": self._shards,
            "join": self._join,
            "remove": self._remove,
            "drain": self._drain,
            "replace": self._replace,
        }
        self._actions = [actions[name] for name in world.plan.changes]
        self._loop.call_soon(lambda: self._loop.create_task(self._main()))

    @property
    def is_idle(self) -> bool:
        return not self._is_busy and not self._world.asked

    def start(self) -> None:
        self._is_active = bool(self._actions)

    def stop(self) -> None:
        """Finish what was begun, begin nothing more."""
        self._is_active = False

    async def _main(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_S)
            if self._world.asked:
                what, make = self._world.asked[0]
                await self._do(what, make)
                self._world.asked.pop(0)
            elif self._is_active and self._rng.random() < _PAUSE_S / _GAP_S:
                self._is_busy = True
                self.changes += 1
                await self._rng.choice(self._actions)()
                self._is_busy = False

    async def _do(self, what: str, make: Make, *, but: Host | None = None) -> None:
        """At any node, again until it was answered."""
        while True:
            hosts = [host for host in self._world.members if host.is_up and host is not but]
            if hosts:
                host = self._rng.choice(hosts)
                self._world.note("oper", f"asks {host.name} for {what}")
                try:
                    await call(self._loop, host, make, _CALL_S, self._world.on_trouble)
                except NoAnswer as error:
                    self._world.note("oper", f"{what}: {error}")
                else:
                    self._world.note("oper", f"{what} is done")
                    return
            await asyncio.sleep(_PAUSE_S)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(_PAUSE_S)

    # ---------------------------------------------------------------------------------------- streams

    async def _stream(self) -> None:
        """Other topics go to another stream, with as many shards as chance says."""
        filters = tuple(sorted(self._rng.sample(_FILTERS, self._rng.randint(1, 3))))
        spec = StreamSpec(name="moved", filters=filters, shards=self._rng.randint(1, 3))
        await self._put(spec)

    async def _shards(self) -> None:
        fields = {"name": DEFAULT_STREAM, "shards": self._rng.randint(1, 3)}
        await self._put(StreamSpec.read(fields, DEFAULT_SPEC))

    async def _put(self, spec: StreamSpec) -> None:
        text = f"stream {spec.name} {','.join(spec.filters)} x{spec.shards}"
        await self._do(text, lambda server: server.engine.opening.put(spec, create=False))

    # ---------------------------------------------------------------------------------------- members

    async def _join(self) -> None:
        """A host that is not in the cluster comes in, as a new node."""
        outside = [host for host in self._world.hosts if not host.is_member and host.loop is None]
        if not outside or not self._world.is_whole():
            return
        host = self._rng.choice(outside)
        host.join_through(self._world.addresses)
        host.wipe()
        self._world.note(host.name, "joins")
        self._world.enter(host)
        host.start()
        await self._until(lambda: self._is_in(host))

    async def _remove(self) -> None:
        """A node leaves for good, running or dead."""
        if len(self._world.members) < 3 or not self._world.is_whole():
            return
        host = self._rng.choice(self._world.members)
        is_dead = self._rng.random() < 0.5
        self._world.note(host.name, f"is to leave{', and dies' if is_dead else ''}")
        self._world.leave(host)
        host.is_wanted = False
        if is_dead:
            host.crash(is_power_loss=True)

        async def remove(server: "Server") -> None:
            if host.name in server.engine.cluster.members.names():
                await server.engine.cluster.remove(host.name)

        await self._do(f"the removal of {host.name}", remove)
        await self._until(lambda: not self._is_known(host))
        if host.loop is not None:
            host.crash(is_power_loss=False)

    async def _drain(self) -> None:
        if len(self._world.members) < 2:
            return
        host = self._rng.choice(self._world.members)
        for is_draining in (True, False):

            async def drain(server: "Server", is_draining: bool = is_draining) -> None:
                await server.engine.cluster.drain(host.name, is_draining)

            await self._do(f"draining {host.name}: {is_draining}", drain)
            await asyncio.sleep(self._rng.random() * 5)

    async def _replace(self) -> None:
        """A node loses its disk and comes back with the same name and nothing else."""
        if len(self._world.members) < 3 or not self._world.is_whole():
            return
        host = self._rng.choice(self._world.members)
        self._world.note(host.name, "loses its disk")
        host.is_wanted = False
        host.crash(is_power_loss=True)
        host.wipe()
        host.join_through([a for a in self._world.addresses if a != host.address])
        await asyncio.sleep(self._rng.random() * 3)
        host.start()
        await self._until(lambda: self._is_in(host))

    def _is_in(self, host: Host) -> bool:
        """Whether it serves, and the others know it."""
        return host.is_up and self._is_known(host)

    def _is_known(self, host: Host) -> bool:
        servers = [
            each.server for each in self._world.members if each.server is not None and each is not host
        ]
        return any(host.name in server.engine.cluster.members.names() for server in servers)
