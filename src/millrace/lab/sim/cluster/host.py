"""One host of a simulated cluster: the node's real code on a simulated loop, disk, network and clock.

`start` is the start of the process, `crash` its end in the middle of whatever it was doing, with the power or
without; `stop` is the planned end. The disk outlives the process. A process that fails to start is started
again after a while, as a supervisor would do.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from millrace.errors import ConfigError, LocalError, StorageError
from millrace.lab.sim.cluster.ground import Ground
from millrace.lab.sim.surroundings.clock import US_PER_S
from millrace.lab.sim.surroundings.disk import Keep, PowerCut, SimDisk
from millrace.lab.sim.surroundings.loop import SimExecutor, SimLoop
from millrace.node.config import Access, Address, Cluster, Config, Listeners, Node, Storage
from millrace.node.logs.syncer import Job, Syncer, WriteFault, write
from millrace.node.server import Server
from millrace.node.surroundings import Closeable, Surroundings
from millrace.storage.disk import DiskFull
from millrace.storage.log import LogSettings

MQTT_PORT = 1883
PEER_PORT = 7000
_WALL_US = 1_800_000_000 * US_PER_S
_SKEW_US_MAX = 2 * US_PER_S
_RESTART_US = US_PER_S
_SYNC_US_MIN, _SYNC_US_MAX = 100, 5_000
# Between the steps of a snapshot: long enough for the state to change.
_STEP_US_MAX = 100_000


async def _listen(address: Address, factory: Callable[[], Any], *_: Any, **__: Any) -> tuple[Closeable, int]:
    server = await asyncio.get_running_loop().create_server(factory, address.host, address.port)
    return server, server.sockets[0].getsockname()[1]


class SimSyncer(Syncer):
    """Writes, then syncs, each at a moment of its own: a crash may come before, between or after."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_failure: Callable[[StorageError], None],
        *,
        in_place: bool,
        sync_every_s: float | None,
        delay_us: Callable[[], int],
    ) -> None:
        super().__init__(loop, on_failure, in_place=in_place, sync_every_s=sync_every_s)
        self._delay_us = delay_us
        self._current: list[Job] = []

    def close(self) -> None:
        super().close()
        batch, self._current = self._current, []
        if batch:
            self._perform(batch, lambda: write(batch))
            self._perform(batch, lambda: self._sync_logs(batch))

    def fail(self, error: StorageError) -> None:
        if isinstance(error, WriteFault):
            # What would stop a node is for the campaign to report.
            raise error
        super().fail(error)

    def _now_s(self) -> float:
        return self._loop.time()

    def _hand_out(self, batch: list[Job]) -> None:
        self._current = batch
        self._later(self._write, batch)

    def _write(self, batch: list[Job]) -> None:
        if self._perform(batch, lambda: write(batch)):
            self._later(self._sync_batch, batch)

    def _sync_batch(self, batch: list[Job]) -> None:
        if self._perform(batch, lambda: self._sync_logs(batch)):
            self._current = []
            self._finish(batch)

    def _perform(self, batch: list[Job], work: Callable[[], None]) -> bool:
        try:
            work()
        except DiskFull as error:
            self._full(batch, error)
        except StorageError as error:
            self.fail(error)
        else:
            return True
        return False

    def _later(self, call: Callable[[list[Job]], None], batch: list[Job]) -> None:
        self._loop.call_later(self._delay_us() / US_PER_S, call, batch)


class HostDisk(SimDisk):
    """Tells the host when the power fails in the middle of a call."""

    def __init__(self, rng: random.Random, on_cut: Callable[[], None]) -> None:
        super().__init__(rng)
        self._on_cut = on_cut

    def _step(self) -> None:
        try:
            super()._step()
        except PowerCut:
            self._on_cut()
            raise


class Host:
    def __init__(self, world: Ground, number: int, rng: random.Random) -> None:
        self.name = f"n{number + 1}"
        self.address = f"10.0.0.{number + 1}"
        self.loop: SimLoop | None = None
        self.server: Server | None = None
        self.is_up = False
        """Started and serving."""
        self.is_wanted = False
        """Whether a supervisor starts the process again."""
        self.slow_disk = 1
        """So many times slower than usual."""
        self.jump_us = 0
        """By how much somebody has set its clock wrong."""
        self.is_member = False
        """Whether it belongs to the cluster, or should."""
        self.starts = 0
        self._world = world
        self._rng = rng
        self._skew_us = rng.randint(-_SKEW_US_MAX, _SKEW_US_MAX)
        self.disk = HostDisk(random.Random(rng.getrandbits(64)), self._power_fails)
        plan = world.plan
        self._log_settings = LogSettings(segment_bytes=plan.segment_bytes)
        self._config = Config(
            node=Node(id=self.name, data="/simulated"),
            listeners=Listeners(
                mqtt=Address(self.address, MQTT_PORT), http=None, peer=Address(self.address, PEER_PORT)
            ),
            cluster=Cluster(
                join=f"10.0.0.1:{PEER_PORT}" if number else "",
                secret="simulated",
                replace_after_s=plan.replace_after_s,
            ),
            access=Access(anonymous="always"),
            storage=Storage(
                sync=plan.sync, sync_in_place=rng.random() < 0.3, free_bytes_min=plan.free_bytes_min
            ),
        )

    def join_through(self, addresses: list[str]) -> None:
        """Whom to ask at a start without data."""
        seeds = ",".join(f"{address}:{PEER_PORT}" for address in addresses)
        self._config = replace(self._config, cluster=replace(self._config.cluster, join=seeds))

    def wipe(self) -> None:
        """The disk is gone, and another one is in its place."""
        assert self.loop is None
        self.disk = HostDisk(random.Random(self._rng.getrandbits(64)), self._power_fails)

    # -------------------------------------------------------------------------------------- processes

    def start(self) -> None:
        self.is_wanted = True
        if self.loop is not None:
            return
        self.starts += 1
        self._world.sockets.host_begins(self.address)
        loop = self.loop = self._world.make_loop(self.address, random.Random(self._rng.getrandbits(64)))
        loop.call_soon(lambda: loop.create_task(self._main(loop)))

    async def _main(self, loop: SimLoop) -> None:
        surroundings = Surroundings(
            make_disk=lambda: self.disk,
            make_syncer=lambda loop, failed, *, in_place, sync_every_s: SimSyncer(
                loop, failed, in_place=in_place, sync_every_s=sync_every_s, delay_us=self._sync_us
            ),
            make_readers=lambda: SimExecutor(loop),
            wall_us=lambda: _WALL_US + self._skew_us + self.jump_us + self._world.clock.now_us,
            running_us=lambda: self._world.clock.now_us,
            listen=_listen,
            log_settings=self._log_settings,
            rows_at_once=self._world.plan.rows_at_once,
            pause_s=lambda: self._rng.randint(0, _STEP_US_MAX) / US_PER_S,
            gathers_always=self._world.plan.gathers_always,
        )
        server = Server(
            self._config, random=random.Random(loop.rng.getrandbits(64)), surroundings=surroundings
        )
        try:
            if not await self._started(loop, server):
                return
        except (ConfigError, LocalError, StorageError) as error:
            self._world.note(self.name, f"does not start: {error}")
            self._end(is_power_loss=False)
            return
        except PowerCut:
            return
        self.server = server
        self.is_up = True
        self._world.note(self.name, "serves")
        await server.stopping.wait()
        self._world.note(self.name, f"stops: {server.failure}")
        self._end(is_power_loss=False)

    async def _started(self, loop: SimLoop, server: Server) -> bool:
        """As a process does it: a disk that fails ends the start as well."""
        starting, failed = loop.create_task(server.start()), loop.create_task(server.stopping.wait())
        await asyncio.wait((starting, failed), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            self._world.note(self.name, f"stops while it starts: {server.failure}")
            self._end(is_power_loss=False)
            return False
        starting.result()
        return True

    def _sync_us(self) -> int:
        return self._rng.randint(_SYNC_US_MIN, _SYNC_US_MAX) * self.slow_disk

    def crash(self, *, is_power_loss: bool) -> None:
        """Gone, at once. Without the power also what was not synced."""
        if self.loop is not None:
            self._end(is_power_loss=is_power_loss)
            if is_power_loss:
                self.disk.cut_power(Keep.SOME)

    def _power_fails(self) -> None:
        self._world.note(self.name, "power fails in the middle of a write")
        self.crash(is_power_loss=True)

    def stop(self) -> None:
        """The planned end: the node says goodbye."""
        self.is_wanted = False
        loop, server = self.loop, self.server
        if loop is None or server is None:
            return
        self.is_up = False

        async def work() -> None:
            await server.stop()
            self._world.note(self.name, "has stopped")
            self._end(is_power_loss=False)

        loop.call_soon(lambda: loop.create_task(work()))

    def _end(self, *, is_power_loss: bool) -> None:
        loop, self.loop = self.loop, None
        assert loop is not None
        loop.die()
        self.server = None
        self.is_up = False
        self.disk.kill()
        self._world.sockets.host_ends(self.address, is_power_loss=is_power_loss)
        self._world.clock.after(_RESTART_US, self._supervise)

    def _supervise(self) -> None:
        if self.is_wanted and self.loop is None:
            self.start()
