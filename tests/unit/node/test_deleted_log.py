"""A stream is deleted while something of its log is on its way to the disk: the node goes on."""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.broker.entries.meta import DeleteStream
from millrace.broker.streams.stream import StreamSpec
from millrace.client import Client
from millrace.errors import LocalError
from millrace.node import config as settings
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.server import Server
from millrace.node.surroundings import SYSTEM
from millrace.storage.disk import SystemDisk, SystemFile

TIMEOUT_S = 20.0


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():
            await asyncio.sleep(0)


class Gate:
    """Whoever writes to a log below a directory waits until it is opened."""

    def __init__(self, directory: Path) -> None:
        self._directory = f"{directory}/"
        self._open = threading.Event()
        self.is_reached = False

    def pass_through(self, path: str) -> None:
        if path.startswith(self._directory) and path.endswith(".log"):
            self.is_reached = True
            assert self._open.wait(TIMEOUT_S)

    def open(self) -> None:
        self._open.set()


class GatedFile(SystemFile):
    __slots__ = ("gates",)

    def __init__(self, path: str, flags: int, gates: list[Gate]) -> None:
        super().__init__(path, flags)
        self.gates = gates

    def write_at(self, position: int, buffers: Sequence[bytes]) -> None:
        for gate in self.gates:
            gate.pass_through(self.path)
        super().write_at(position, buffers)


class GatedDisk(SystemDisk):
    def __init__(self) -> None:
        self.gates: list[Gate] = []

    def create(self, path: str) -> SystemFile:
        return GatedFile(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, self.gates)

    def open(self, path: str, *, writable: bool = False) -> SystemFile:
        return GatedFile(path, os.O_RDWR if writable else os.O_RDONLY, self.gates)


async def started(data: Path, disk: SystemDisk, *given: str) -> Server:
    always = (f"node.data={data}", "listeners.mqtt=127.0.0.1:0", "listeners.http=")
    surroundings = replace(SYSTEM, make_disk=lambda: disk)
    server = Server(settings.load(None, {}, [*always, *given]), surroundings=surroundings)
    await server.start()
    return server


def log_of(server: Server, name: str) -> ReplicaLog:
    """The log that is written when something is published to the stream here."""
    (number,) = server.engine.definitions.table.streams[name].shards
    leaderless = server.engine.leaderless.streams.get(number)
    if leaderless is None:
        return server.engine.shards[number].group.replica_log
    return leaderless.files.log_of(leaderless.files.origin).replica_log


async def deleted_in_a_write(data: Path, replication: str) -> None:
    disk = GatedDisk()
    server = await started(data, disk)
    engine, syncer = server.engine, server.engine.replicas.syncer
    # As on a slow disk: everything is written by the thread.
    syncer._mean_s = 1.0
    try:
        spec = {"name": "line", "filters": ["line/#"], "replication": replication}
        await engine.opening.put(StreamSpec.read(spec), create=True)
        async with Client(f"mqtt://127.0.0.1:{server.ports['mqtt']}") as client:
            await asyncio.wait_for(client.publish("line/1", b"stored", qos=1), TIMEOUT_S)
            line = log_of(server, "line")
            path = data / "shards" / str(line.group)
            gate = Gate(path)
            disk.gates.append(gate)
            publishing = asyncio.create_task(client.publish("line/2", b"on its way", qos=1))
            await until(lambda: gate.is_reached)
            # Others keep the meta group as well: the word may come at any moment.
            engine.definitions.state.apply(DeleteStream("line"))
            engine.opening.reconcile()
            gate.open()
            await until(lambda: server.failure is not None or not path.exists())
            await until(lambda: server.failure is not None or not syncer._busy)
            assert server.failure is None
            assert not path.exists()
            await asyncio.wait_for(client.publish("other", b"goes on", qos=1), TIMEOUT_S)
        await asyncio.gather(publishing, return_exceptions=True)
    finally:
        for gate in disk.gates:
            gate.open()
        await server.stop()
    assert server.failure is None


@pytest.mark.parametrize("replication", ["quorum", "leaderless"])
def test_a_stream_may_be_deleted_in_the_middle_of_a_write(tmp_path: Path, replication: str) -> None:
    asyncio.run(asyncio.wait_for(deleted_in_a_write(tmp_path / "data", replication), 3 * TIMEOUT_S))


async def deleted_between_syncs(data: Path, replication: str) -> None:
    server = await started(data, SystemDisk(), "storage.sync=interval")
    engine, syncer = server.engine, server.engine.replicas.syncer
    try:
        spec = {"name": "line", "filters": ["line/#"], "replication": replication}
        await engine.opening.put(StreamSpec.read(spec), create=True)
        async with Client(f"mqtt://127.0.0.1:{server.ports['mqtt']}") as client:
            for _ in range(5):
                # The interval may end between the write and its answer.
                await asyncio.wait_for(client.publish("line/1", b"not synced", qos=1), TIMEOUT_S)
                if id(log_of(server, "line")) in syncer._unsynced:
                    break
            assert id(log_of(server, "line")) in syncer._unsynced
            await engine.opening.delete("line")
        await until(lambda: server.failure is not None or not syncer._unsynced)
        assert server.failure is None
    finally:
        await server.stop()


@pytest.mark.parametrize("replication", ["quorum", "leaderless"])
def test_a_stream_may_be_deleted_before_its_log_is_synced(tmp_path: Path, replication: str) -> None:
    asyncio.run(asyncio.wait_for(deleted_between_syncs(tmp_path / "data", replication), 3 * TIMEOUT_S))


async def made_and_deleted_at_once(data: Path) -> None:
    server = await started(data, SystemDisk())
    try:
        spec = StreamSpec.read({"name": "s", "filters": ["s/#"]})
        made, deleted = await asyncio.gather(
            server.engine.opening.put(spec, create=True),
            server.engine.opening.delete("s"),
            return_exceptions=True,
        )
        assert deleted is None and "s" not in server.engine.definitions.table.streams
        assert isinstance(made, LocalError) and "deleted" in str(made)
    finally:
        await server.stop()


def test_a_stream_that_is_deleted_as_soon_as_it_is_made_says_so(tmp_path: Path) -> None:
    """Both commands are committed together: whoever made it hears that it is gone."""
    asyncio.run(asyncio.wait_for(made_and_deleted_at_once(tmp_path / "data"), 3 * TIMEOUT_S))
