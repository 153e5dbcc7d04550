"""A full disk keeps nothing open: neither what could not be opened whole, nor what could not be closed so."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.broker.streams.stream import StreamSpec
from millrace.node import config as settings
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.server import Server
from millrace.node.surroundings import SYSTEM
from millrace.replication.contract import Config, Entry, EntryKind, Persist, ReplicaId
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import DiskFull, SystemDisk, SystemFile
from millrace.types import Index, Term

TIMEOUT_S = 20.0
VOTERS = (ReplicaId("a"), ReplicaId("b"))


class Counted(SystemFile):
    def __init__(self, path: str, flags: int, disk: "Crowded") -> None:
        super().__init__(path, flags)
        self._disk: Crowded | None = disk
        disk.open_count += 1

    def close(self) -> None:
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.open_count -= 1
        super().close()


class Crowded(SystemDisk):
    """Has no room for another file while `is_full`; knows how many are open, until somebody closes them."""

    def __init__(self) -> None:
        self.is_full = False
        self.open_count = 0

    def create(self, path: str) -> SystemFile:
        if self.is_full:
            raise DiskFull(f"cannot create {path}: no space left on device")
        return Counted(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, self)

    def open(self, path: str, *, writable: bool = False) -> SystemFile:
        return Counted(path, os.O_RDWR if writable else os.O_RDONLY, self)


def test_a_log_that_cannot_say_what_it_lost_is_not_left_open(tmp_path: Path) -> None:
    """Its snapshot is damaged, and there is no room for a note of that: it is tried again and again."""
    disk = Crowded()
    directory = DataDirectory.open(disk, str(tmp_path / "data"), owner="test", fresh=bytes(24))

    def opened() -> ReplicaLog:
        return ReplicaLog(disk, directory, 7, VOTERS, has_peers=True)

    log = opened()
    for index in (1, 2):
        entry = Entry(term=Term(1), index=Index(index), kind=EntryKind.NOOP, payload=b"x")
        log.write(Persist(number=index, entries=(entry,)), [log.stamp(entry, None)])
        log.log.end_segment()
    log.take_snapshot(Index(2), Term(1), Config(voters=VOTERS), [b'{"next_offset": 0}\nstate'])
    log.log.trim(Index(2))
    log.close()
    (snapshot,) = (tmp_path / "data").glob("shards/7/*.snap")
    snapshot.write_bytes(snapshot.read_bytes().replace(b"state", b"stale"))
    open_before = disk.open_count
    disk.is_full = True
    for _ in range(10):
        with pytest.raises(DiskFull):
            opened()
    assert disk.open_count == open_before
    disk.is_full = False
    assert opened().last_index() == 0, "all of it comes from others"


async def scene(data: Path) -> None:
    disk = Crowded()
    given = [f"node.data={data}", "listeners.mqtt=127.0.0.1:0", "listeners.http="]

    def make() -> Server:
        return Server(settings.load(None, {}, given), surroundings=replace(SYSTEM, make_disk=lambda: disk))

    server = make()
    await server.start()
    for name in ("line", "other"):
        spec = {"name": name, "filters": [f"{name}/#"], "replication": "leaderless"}
        await server.engine.opening.put(StreamSpec.read(spec), create=True)
    replicas = server.engine.replicas

    def fail(*given: Any, **settings: Any) -> Any:
        raise DiskFull("no room for a note of the damage")

    open_before = disk.open_count
    for _ in range(10):
        with pytest.raises(DiskFull):
            replicas.open(99, None, (), fail)  # type: ignore[arg-type]
    assert disk.open_count == open_before

    disk.is_full = True
    await server.stop()
    assert disk.open_count == 0
    disk.is_full = False
    server = make()
    await server.start()
    await server.stop()


def test_a_node_lets_go_of_everything_though_the_disk_is_full(tmp_path: Path) -> None:
    """Of a group that cannot begin, and of all that is open when it stops: the next start finds it free."""
    asyncio.run(asyncio.wait_for(scene(tmp_path / "data"), 3 * TIMEOUT_S))
