"""A leaderless stream on one node in this process: what a restart finds, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millrace import Broker
from millrace.broker.meta import spec_from_dict
from millrace.client import Client
from millrace.client.http import Http
from millrace.errors import LocalError, MillraceError
from millrace.node.leaderless import LeaderlessStream
from waiting import until_async

SPEC = {"name": "jobs", "filters": ["jobs/#"], "replication": "leaderless"}


async def stream_of(broker: Broker, **settings: object) -> LeaderlessStream:
    streams = broker.server.streams
    if "jobs" not in streams.table.streams:
        await streams.put(spec_from_dict({**SPEC, **settings}), create=True)
    (one,) = streams.leaderless.streams.values()
    return one


def test_a_restart_goes_on_with_a_whole_log_and_remembers_what_is_retained(tmp_path: Path) -> None:
    async def body() -> None:
        for turn in range(3):
            async with Broker(node__data=str(tmp_path / "data")) as broker:
                stream = await stream_of(broker)
                async with Client(broker.url, client_id="p") as client:
                    await client.publish("jobs/x", str(turn), qos=1)
                    await client.publish("jobs/kept", f"kept {turn}", qos=1, retain=True)
                assert stream.files.origin.incarnation == 1
                (own,) = stream.files.logs.values()
                assert own.next_offset == 2 * (turn + 1)
                kept = broker.server.broker.retained.get("jobs/kept")
                assert kept is not None and f"kept {turn}".encode() in kept.data

    asyncio.run(body())


def test_a_stream_in_memory_begins_anew_with_every_start(tmp_path: Path) -> None:
    async def body() -> None:
        for turn in range(2):
            async with Broker(node__data=str(tmp_path / "data")) as broker:
                stream = await stream_of(broker, storage="memory")
                assert stream.files.origin.incarnation == turn + 1
                async with Client(broker.url, client_id="p") as client:
                    await client.publish("jobs/x", "x", qos=2)
                assert [one.next_offset for one in stream.files.logs.values()] == [1]

    asyncio.run(body())


def test_what_every_group_has_is_removed(tmp_path: Path) -> None:
    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            async with (
                Client(broker.url, client_id="m") as client,
                client.subscribe("$share/g/jobs/#", qos=1) as messages,
            ):
                for number in range(10):
                    await client.publish("jobs/x", str(number), qos=1)
                got = [(await anext(messages)).payload.decode() for _ in range(10)]
                assert got == [str(number) for number in range(10)]
                (own,) = stream.files.logs.values()
                await until_async(lambda: own.first_offset == 10, "the messages to be removed", 30.0)

    asyncio.run(body())


def test_who_takes_by_http_is_told_to_use_mqtt(tmp_path: Path) -> None:
    """Queues and groups by HTTP take from one order; without one they are refused, never "nothing there"."""

    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data"), listeners__http="127.0.0.1:0") as broker:
            http = Http(f"http://127.0.0.1:{broker.server.ports['http']}")

            async def call(method: str, path: str, body: object = None) -> Any:
                return await asyncio.to_thread(http.call, method, path, body)

            await call("PUT", "/topic", {"topic": "jobs/old"})
            await call("PUT", "/message", {"topic": "jobs/old", "message": "before"})
            stream = await stream_of(broker)
            await call("POST", "/v1/groups", {"name": "crew", "filters": ["jobs/#"]})
            await until_async(lambda: stream.machine.state.find("group/crew"), "the group to be known")
            async with Client(broker.url, client_id="p") as client:
                await client.publish("jobs/x", "x", qos=1)
            for method, path, form in (
                ("PUT", "/topic", {"topic": "jobs/x"}),
                ("POST", "/v1/groups/crew/take", {"count": 1}),
                ("POST", "/v1/groups/crew/reset", {"to": "earliest"}),
            ):
                with pytest.raises(MillraceError, match=r"leaderless.*\$share/"):
                    await call(method, path, form)
            shown = await call("GET", "/v1/groups/crew")
            assert shown["lag"] == 1 and shown["leaderless"][0]["stream"] == "jobs"
            assert (await call("GET", "/v1/groups"))["groups"][0]["lag"] == 1
            # A queue from before gives what it had, and then says why there is no more.
            assert (await call("GET", "/message?topic=jobs/old"))["message"] == "before"
            with pytest.raises(MillraceError, match="leaderless"):
                await call("GET", "/message?topic=jobs/old")

    asyncio.run(body())


@pytest.mark.parametrize(
    "wrong",
    [{"shards": 2}, {"ack": "most"}, {"storage": "tape"}, {"capture": "none"}, {"edge": "module:function"}],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LocalError, match="jobs"):
        spec_from_dict({**SPEC, **wrong})


def test_memory_is_for_leaderless_streams() -> None:
    with pytest.raises(LocalError, match="leaderless"):
        spec_from_dict({"name": "s", "filters": ["s/#"], "storage": "memory"})
