"""Shards that cannot be opened while the disk is full: refused, and back once there is room."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.broker.entries.meta import PutStream
from millrace.broker.streams.stream import StreamSpec
from millrace.client import Client, Refused
from millrace.node import config as settings
from millrace.node.replicas import waiting
from millrace.node.server import Server
from millrace.node.surroundings import SYSTEM
from millrace.reasons import Reason
from millrace.storage.disk import DiskFull, SystemDisk, SystemFile

TIMEOUT_S = 20.0


class Crowded(SystemDisk):
    """Has room for what goes on in its files, and none for another file below `where` while `is_full`."""

    is_full = False
    where = ""

    def create(self, path: str) -> SystemFile:
        if self.is_full and path.startswith(self.where):
            raise DiskFull(f"cannot create {path}: no space left on device")
        return super().create(path)


async def scene(data: Path) -> None:
    disk = Crowded()
    given = [f"node.data={data}", "listeners.mqtt=127.0.0.1:0", "listeners.http="]
    server = Server(settings.load(None, {}, given), surroundings=replace(SYSTEM, make_disk=lambda: disk))
    await server.start()
    try:
        engine = server.engine
        await engine.opening.put(StreamSpec.read({"name": "line", "filters": ["line/#"]}), create=True)
        (number,) = engine.definitions.table.streams["line"].shards
        async with Client(f"mqtt://127.0.0.1:{server.ports['mqtt']}") as client:
            await client.publish("line/1", b"one", qos=1)
            had = int(engine.shards[number].group.status().last)
            disk.is_full = True
            engine.opening.reopen_empty(number, had, 1)
            for topic in ("line/1", "line/2"):
                with pytest.raises(Refused) as refused:
                    await asyncio.wait_for(client.publish(topic, b"no room", qos=1), TIMEOUT_S)
                assert refused.value.reason is Reason.QUOTA_EXCEEDED
            await asyncio.wait_for(client.publish("other", b"goes on", qos=1), TIMEOUT_S)
            engine.opening.reconcile()
            assert number not in engine.shards, "there is still no room"
            assert list(data.glob(f"shards/{number}/*.log")), "nothing goes before what was there is noted"
            disk.is_full = False
            engine.opening.reconcile()
            shard = engine.shards[number]
            assert engine.intakes.find("line/1") is shard.intake
            assert disk.exists(f"{data}/shards/{number}/damage"), "what it had must come from others"
            assert shard.next_offset == 0
    finally:
        await server.stop()


def test_a_full_disk_refuses_what_is_published_until_the_shard_can_begin_again(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(scene(tmp_path / "data"), 3 * TIMEOUT_S))


async def first_start(data: Path) -> None:
    disk = Crowded()
    given = [f"node.data={data}", "listeners.mqtt=127.0.0.1:0", "listeners.http="]

    def make() -> Server:
        return Server(settings.load(None, {}, given), surroundings=replace(SYSTEM, make_disk=lambda: disk))

    server = make()
    await server.start()
    # The next one: the default stream has the first.
    disk.where, disk.is_full = f"{data}/shards/{min(server.engine.shards) + 1}/", True
    spec = StreamSpec.read({"name": "line", "filters": ["line/#"]})
    await server.engine.definitions.command(PutStream(spec, create_only=True))
    await server.stop()
    server = make()
    await server.start()
    try:
        engine = server.engine
        (number,) = engine.definitions.table.streams["line"].shards
        assert number not in engine.shards, "there is no room for it"
        async with Client(f"mqtt://127.0.0.1:{server.ports['mqtt']}") as client:
            with pytest.raises(Refused) as refused:
                await asyncio.wait_for(client.publish("line/1", b"no room", qos=1), TIMEOUT_S)
            assert refused.value.reason is Reason.QUOTA_EXCEEDED
            await asyncio.wait_for(client.publish("other", b"goes on", qos=1), TIMEOUT_S)
            disk.is_full = False
            engine.opening.reconcile()
            await waiting.served(engine.shards[number].group)
            await asyncio.wait_for(client.publish("line/1", b"stored", qos=1), TIMEOUT_S)
            assert engine.shards[number].next_offset == 1
    finally:
        await server.stop()


def test_a_node_that_starts_without_room_for_a_log_stores_nothing_of_it_elsewhere(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(first_start(tmp_path / "data"), 3 * TIMEOUT_S))


async def deleted_without_room(data: Path, replication: str) -> None:
    disk = Crowded()
    given = [f"node.data={data}", "listeners.mqtt=127.0.0.1:0", "listeners.http="]
    server = Server(settings.load(None, {}, given), surroundings=replace(SYSTEM, make_disk=lambda: disk))
    await server.start()
    try:
        engine = server.engine
        spec = StreamSpec.read({"name": "old", "filters": ["old/#"], "replication": replication})
        await engine.opening.put(spec, create=True)
        (old,) = engine.definitions.table.streams["old"].shards
        (number,) = engine.leaderless.logs or [old]
        async with Client(f"mqtt://127.0.0.1:{server.ports['mqtt']}") as client:
            await client.publish("old/1", b"one", qos=1)
            disk.where, disk.is_full = f"{data}/shards/{old + 1}/", True
            spec = StreamSpec.read({"name": "new", "filters": ["new/#"]})
            await engine.definitions.command(PutStream(spec, create_only=True))
            assert old + 1 not in engine.shards, "there is no room for it"
            await engine.opening.delete("old")
            assert old not in engine.shards and old not in engine.leaderless.streams
            async with asyncio.timeout(TIMEOUT_S):
                while list(data.glob(f"shards/{number}/*.log")):
                    await asyncio.sleep(0)
            with pytest.raises(Refused) as refused:
                await asyncio.wait_for(client.publish("old/1", b"not before the change", qos=1), TIMEOUT_S)
            assert refused.value.reason is Reason.QUOTA_EXCEEDED
            disk.is_full = False
            engine.opening.reconcile()
            assert old + 1 in engine.shards
            await asyncio.wait_for(client.publish("old/1", b"to the default stream", qos=1), TIMEOUT_S)
            (default,) = engine.definitions.table.streams["default"].shards
            assert engine.shards[default].next_offset == 1
    finally:
        await server.stop()


@pytest.mark.parametrize("replication", ["quorum", "leaderless"])
def test_a_stream_that_is_deleted_makes_room_for_one_that_waits_for_it(
    tmp_path: Path, replication: str
) -> None:
    asyncio.run(asyncio.wait_for(deleted_without_room(tmp_path / "data", replication), 3 * TIMEOUT_S))


class NoNewOrigins(Crowded):
    """Has none for the logs of leaderless streams, whose numbers are in the upper half."""

    def create(self, path: str) -> SystemFile:
        if self.is_full and re.search(r"/shards/\d{10}/", path):
            raise DiskFull(f"cannot create {path}: no space left on device")
        return SystemDisk.create(self, path)


async def leaderless_without_room(data: Path, disk: Crowded) -> None:
    given = [f"node.data={data}", "listeners.mqtt=127.0.0.1:0", "listeners.http="]

    def make() -> Server:
        return Server(settings.load(None, {}, given), surroundings=replace(SYSTEM, make_disk=lambda: disk))

    async def check(server: Server, reason: Reason | None) -> None:
        async with Client(f"mqtt://127.0.0.1:{server.ports['mqtt']}") as client:
            await asyncio.wait_for(client.publish("other", b"goes on", qos=1), TIMEOUT_S)
            if reason is None:
                await asyncio.wait_for(client.publish("line/1", b"stored", qos=1), TIMEOUT_S)
                return
            with pytest.raises(Refused) as refused:
                await asyncio.wait_for(client.publish("line/1", b"no room", qos=1), TIMEOUT_S)
            assert refused.value.reason is reason

    server = make()
    await server.start()
    number = min(server.engine.shards) + 1
    disk.where, disk.is_full = f"{data}/shards/{number}/", True
    spec = StreamSpec.read({"name": "line", "filters": ["line/#"], "replication": "leaderless"})
    await server.engine.definitions.command(PutStream(spec, create_only=True))
    server.engine.opening.reconcile()
    assert not server.engine.leaderless.streams, "there is no room for it"
    await server.stop()
    server = make()
    await server.start()
    try:
        await check(server, Reason.QUOTA_EXCEEDED)
        server.engine.opening.reconcile()
        await check(server, Reason.QUOTA_EXCEEDED)
        disk.is_full = False
        server.engine.opening.reconcile()
        await check(server, None)
        (stream,) = server.engine.leaderless.streams.values()
        assert [one.next_offset for one in stream.files.logs.values()] == [1]
    finally:
        await server.stop()


@pytest.mark.parametrize("disk", [Crowded(), NoNewOrigins()])
def test_a_leaderless_stream_waits_for_room_and_the_rest_goes_on(tmp_path: Path, disk: Crowded) -> None:
    asyncio.run(asyncio.wait_for(leaderless_without_room(tmp_path / "data", disk), 3 * TIMEOUT_S))
