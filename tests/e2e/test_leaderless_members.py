"""Members of groups of a leaderless stream that come and go at one node in this process."""

import asyncio
import logging
from pathlib import Path

import pytest

from e2e.test_leaderless_node import stream_of
from millrace import Broker
from millrace.client import Client
from millrace.node.leaderless.streams import LeaderlessStream
from millrace.replication.contract import EntryKind, ReplicaId
from millrace.replication.leaderless.messages import (
    Entries,
    LogEntry,
    Origin,
    SetMembers,
    Subscribe,
    Unsubscribe,
)
from millrace.replication.leaderless.state import FIRST_LIFE, Stamp, make_group, put_client
from waiting import until_async

KEY = "$share/g/jobs/#"


def join(stream: LeaderlessStream, key: str, client: str) -> None:
    """As if the client were here."""
    request, wall_us = stream.request(None), stream.wall_us()
    stream.step(Subscribe(request=request, group=key, client=client, filters=("jobs/#",), wall_us=wall_us))


def leave(stream: LeaderlessStream, key: str, client: str) -> None:
    request, wall_us = stream.request(None), stream.wall_us()
    stream.step(Unsubscribe(request=request, group=key, client=client, wall_us=wall_us))


def run_on(stream: LeaderlessStream, ticks: int = 100) -> None:
    for _ in range(ticks):
        stream.tick()


def test_what_the_last_member_of_a_node_leaves_goes_back(tmp_path: Path) -> None:
    """A group goes on elsewhere: what the member had acknowledged is marked, the rest is to be had again."""

    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker, ack="local")
            other = ReplicaId("other")
            stream.step(SetMembers(members=(stream.machine.node, other)))
            said = (
                make_group(KEY, FIRST_LIFE, ("jobs/#",), {}),
                put_client(KEY, FIRST_LIFE, "elsewhere", True, Stamp(1, other)),
            )
            entries = tuple(LogEntry(kind=EntryKind.CONTROL, count=0, payload=payload) for payload in said)
            body = Entries(origin=Origin(other, 1), first_index=1, base_offset=0, entries=entries)
            stream.on_peer(other, body)
            async with Client(broker.url, client_id="p") as publisher:
                async with Client(broker.url, client_id="m") as member:
                    subscription = member.subscribe(KEY, qos=1, manual_ack=True)
                    messages = await subscription.__aenter__()
                    # The other node is silent for so long that this one goes on alone.
                    run_on(stream)
                    for text in ("done", "not done"):
                        await publisher.publish("jobs/x", text, qos=1)
                    done, _ = [await asyncio.wait_for(anext(messages), 20) for _ in range(2)]
                    subscription.ack(done)
                await until_async(lambda: KEY not in stream.groups.trackers, "the last member to be gone")
                group = stream.machine.state.find(KEY)
                assert group is not None
                await until_async(lambda: group.low(stream.files.origin) == 1, "the mark")
                assert not any(stream.machine.work_division.division(KEY).in_flight.values())

    asyncio.run(body())


def test_a_group_ends_though_nobody_was_the_last_to_leave(tmp_path: Path) -> None:
    """Two leave before either's word is on disk, and one comes and leaves [rule 12]."""

    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            run_on(stream)
            for client in "ab":
                join(stream, KEY, client)
            await until_async(lambda: stream.machine.state.find(KEY), "the group")
            for client in "ab":
                leave(stream, KEY, client)
            brief = "$share/brief/jobs/#"
            join(stream, brief, "c")
            leave(stream, brief, "c")
            await until_async(lambda: stream.machine.state.find(brief), "the other group")
            await until_async(lambda: not list(stream.machine.state.present()), "the groups to be over")

    asyncio.run(body())


def test_a_word_that_was_lost_is_said_again(tmp_path: Path) -> None:
    """A client that nobody has here any more, and a group by command that is not defined."""

    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            run_on(stream)
            join(stream, KEY, "a")
            join(stream, "group/crew", "")
            await until_async(lambda: len(list(stream.machine.state.present())) == 2, "both groups")
            await until_async(lambda: not list(stream.machine.state.present()), "the groups to be over")

    asyncio.run(body())


def test_what_cannot_be_read_waits_aside_and_the_rest_is_given(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a log that is damaged while the node runs nobody mends the block: see the next start."""

    def spoil(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content.replace(b"the first", b"the fIrst"))

    def failures() -> int:
        return sum("cannot be read" in record.getMessage() for record in caplog.records)

    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            await stream_of(broker)
            async with Client(broker.url, client_id="m", session_expiry_s=3600) as member:
                await member.subscribe(KEY, qos=1).__aenter__()
            async with Client(broker.url, client_id="p") as publisher:
                for text in ("the first", "the second"):
                    await publisher.publish("jobs/x", text, qos=1)
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            (own,) = stream.files.logs.values()
            for path in (tmp_path / "data" / "shards" / str(own.number)).glob("*.log"):
                spoil(path)
            async with (
                Client(broker.url, client_id="m", session_expiry_s=3600) as member,
                member.subscribe(KEY, qos=1) as messages,
            ):
                assert (await asyncio.wait_for(anext(messages), 20)).payload == b"the second"
                until = stream._ticks + 40
                await until_async(lambda: stream._ticks >= until, "two seconds")
                assert failures() == 1
                run_on(stream, 200)
                await until_async(lambda: failures() == 2, "another try")

    with caplog.at_level(logging.ERROR, "millrace.leaderless"):
        asyncio.run(body())
