"""A leaderless stream on one node in this process: what a restart finds, and what is refused."""

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millrace import Broker
from millrace.broker.streams.stream import StreamSpec
from millrace.client import Client
from millrace.client.http import Http
from millrace.errors import LocalError, MillraceError
from millrace.node.leaderless.origin_logs import OriginFiles, OriginLog
from millrace.node.leaderless.streams import LeaderlessStream
from millrace.node.replicas.replicas import Replicas
from millrace.node.sessions.session_group import SessionGroup
from millrace.node.shards.producer_keys import client_key
from millrace.node.shards.publishing import NotStored
from millrace.replication.contract import EntryKind, ReplicaId
from millrace.replication.leaderless.machine import Leaderless
from millrace.replication.leaderless.messages import (
    NOWHERE,
    Entries,
    Have,
    LogEntry,
    Origin,
    Position,
    Pull,
    Pulse,
    SetMembers,
    Subscribe,
)
from millrace.replication.leaderless.state import FIRST_LIFE, Stamp, make_group, put_client
from millrace.storage.disk import DiskFull
from millrace.storage.files import FileDamaged
from millrace.types import Message
from waiting import until_async

SPEC = {"name": "jobs", "filters": ["jobs/#"], "replication": "leaderless"}


async def stream_of(broker: Broker, **settings: object) -> LeaderlessStream:
    engine = broker.server.engine
    if "jobs" not in engine.definitions.table.streams:
        await engine.opening.put(StreamSpec.read({**SPEC, **settings}), create=True)
    (one,) = engine.leaderless.streams.values()
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


def test_what_every_group_has_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            # Their files go as well, though nobody writes any more, and then all is quiet.
            await until_async(lambda: own.replica_log.log.first_offset == 10, "the files to be removed", 30.0)
            saved: list[bytes] = []
            monkeypatch.setattr(stream.files, "save_state", saved.append)
            for _ in range(100):
                stream.tick()
            assert not saved
            monkeypatch.undo()
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            (own,) = stream.files.logs.values()
            assert (own.first_offset, own.next_offset) == (10, 10)

    asyncio.run(body())


def test_what_waits_for_a_durable_member_outlives_a_start_that_takes_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes that were all down wait for each other before they have their sessions again [C6, D3]:
    until then nobody is known here, and nobody has left."""
    caught_up = SessionGroup.caught_up
    waiting_for: list[Broker] = []

    async def late(self: SessionGroup) -> None:
        for broker in waiting_for:
            for _ in range(100):
                broker.server.engine.leaderless.tick()
        await caught_up(self)

    monkeypatch.setattr(SessionGroup, "caught_up", late)

    def make() -> Broker:
        return Broker(node__data=str(tmp_path / "data"))

    async def body() -> None:
        async with make() as broker:
            stream = await stream_of(broker)
            async with Client(broker.url, client_id="m", session_expiry_s=3600) as member:
                await member.subscribe("$share/g/jobs/#", qos=1).__aenter__()
            async with Client(broker.url, client_id="p") as client:
                await client.publish("jobs/x", "kept", qos=1)
        broker = make()
        waiting_for.append(broker)
        async with broker:
            stream = await stream_of(broker)
            for _ in range(100):
                stream.tick()
            found = stream.machine.state.find("$share/g/jobs/#")
            assert found is not None and found.low(stream.files.origin) == 0

    asyncio.run(body())


def test_what_is_retained_reaches_a_node_that_comes_after_its_entries_were_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(name: str) -> Broker:
        return Broker(node__data=str(tmp_path / name))

    def retained(broker: Broker, topic: str) -> bytes | None:
        run = broker.server.broker.retained.get(topic)
        return None if run is None else run.data[-3:]

    async def body() -> None:
        async with make("late") as late:
            stream = await stream_of(late)
            async with Client(late.url, client_id="p") as client:
                await client.publish("jobs/gone", "old", qos=1, retain=True)
                await client.publish("jobs/mine", "own", qos=1, retain=True)
            async with make("early") as early:
                source = await stream_of(early)
                async with (
                    Client(early.url, client_id="m") as client,
                    client.subscribe("$share/g/jobs/#", qos=1) as messages,
                ):
                    for topic, text in (("kept", "new"), ("gone", "new"), ("gone", "")):
                        await client.publish(f"jobs/{topic}", text, qos=1, retain=True)
                        await asyncio.wait_for(anext(messages), 20)
                    (own,) = source.files.logs.values()
                    log = own.replica_log.log
                    await until_async(lambda: log.first_offset == 3, "the files to be removed", 30.0)
                me, other = stream.machine.node, source.machine.node
                for one in (stream, source):
                    one.step(SetMembers(members=(me, other)))
                sent: list[bytes] = []
                monkeypatch.setattr(
                    early.server.engine.leaderless, "send", lambda to, n, body: sent.append(body)
                )
                source.on_peer(me, Pull(origin=source.files.origin, first_index=1))
                assert sent
                for frame in sent:
                    stream.on_peer(other, frame)
            origin = source.files.origin
            machine = stream.machine
            await until_async(lambda: machine.positions.get(origin, NOWHERE).offset == 3, "a beginning")
        async with make("late") as late:
            found = [retained(late, f"jobs/{topic}") for topic in ("kept", "gone", "mine")]
            assert found == [b"new", None, b"own"]

    asyncio.run(body())


def spoil(path: Path, text: bytes) -> None:
    content = path.read_bytes()
    assert text in content
    path.write_bytes(content.replace(text, text.swapcase()))


def test_damage_that_only_a_start_finds_does_not_end_it(tmp_path: Path) -> None:
    """Where a log was closed in good order its files are not read when it is opened, but what the saved state
    does not cover is."""

    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            async with Client(broker.url, client_id="p") as client:
                for text in ("the first", "the second", "the third"):
                    await client.publish("jobs/x", text, qos=1, retain=True)
            (own,) = stream.files.logs.values()
        shards = tmp_path / "data" / "shards"
        (shards / str(stream.files.number) / "groups").unlink()
        (path,) = (shards / str(own.number)).glob("*.log")
        spoil(path, b"the second")
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            assert stream.files.origin.incarnation == 2
            kept = broker.server.broker.retained.get("jobs/x")
            assert kept is not None and kept.data.endswith(b"the first")
            async with Client(broker.url, client_id="p") as client:
                await client.publish("jobs/x", "goes on", qos=1)

    asyncio.run(body())


@pytest.mark.parametrize(("name", "tag"), [("origins", b"MROR"), ("groups", b"MRLG")])
def test_a_node_whose_records_are_damaged_begins_with_nothing_where_others_have_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tag: bytes
) -> None:
    def is_held(machine: Leaderless, origin: Origin) -> bool:
        return machine.positions.get(origin, NOWHERE).entry == 1

    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            async with Client(broker.url, client_id="p") as client:
                await client.publish("jobs/x", "x", qos=1)
            entry = LogEntry(kind=EntryKind.CONTROL, count=0, payload=b'["later"]')
            stream.step(SetMembers(members=(stream.machine.node, ReplicaId("other"))))
            pushed = Entries(origin=Origin("other", 1), first_index=1, base_offset=0, entries=(entry,))
            stream.on_peer("other", pushed)
            await until_async(lambda: len(stream.files.logs) == 2, "the other log")
        spoil(tmp_path / "data" / "shards" / str(stream.files.number) / name, tag)
        with pytest.raises(FileDamaged):
            # Nobody else has it.
            async with Broker(node__data=str(tmp_path / "data")) as broker:
                await stream_of(broker)
        has_peers = property(lambda self: True, lambda self, is_so: None)
        monkeypatch.setattr(Replicas, "has_peers", has_peers, raising=False)
        for _ in range(2):
            async with Broker(node__data=str(tmp_path / "data")) as broker:
                stream = await stream_of(broker)
                assert stream.files.origin.incarnation == 2
                assert stream.machine.positions[stream.files.origin].entry == 0
                stream.step(SetMembers(members=(stream.machine.node, ReplicaId("other"))))
                stream.on_peer("other", pushed)
                machine = stream.machine
                await until_async(partial(is_held, machine, Origin("other", 1)), "the other log again")

    asyncio.run(body())


def test_entries_that_no_saved_state_covers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry is on disk and its word is on the way to the loop: what the files show is more than what the
    state knows. A crash comes before the next save."""

    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            async with Client(broker.url, client_id="p") as client:
                await client.publish("jobs/x", "x", qos=1)
            (own,) = stream.files.logs.values()
            written: list[int] = []
            monkeypatch.setattr(stream._driver, "persisted", written.append)
            request, wall_us = stream.request(None), stream.wall_us()
            stream.step(
                Subscribe(request=request, group="group/g", client="", filters=("jobs/#",), wall_us=wall_us)
            )
            await until_async(lambda: written, "the entry to be on disk")
            own.start_offset = own.next_offset
            stream._chores()
            syncer = broker.server.engine.replicas.syncer
            await until_async(lambda: not (syncer._gathered or syncer._busy), "the disk to be quiet")
            shutil.copytree(tmp_path / "data", tmp_path / "crashed")
            monkeypatch.undo()
            for number in written:
                stream._driver.persisted(number)
            digest = stream.machine.state.digest()
        async with Broker(node__data=str(tmp_path / "crashed")) as broker:
            assert (await stream_of(broker)).machine.state.digest() == digest

    asyncio.run(body())


def test_clients_of_a_node_that_was_removed_are_gone_without_a_restart(tmp_path: Path) -> None:
    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            me, other, key = stream.machine.node, ReplicaId("other"), "$share/g/jobs/#"
            stream.step(SetMembers(members=(me, other)))
            said = (
                make_group(key, FIRST_LIFE, ("jobs/#",), {}),
                put_client(key, FIRST_LIFE, "c", True, Stamp(1, other)),
            )
            entries = tuple(LogEntry(kind=EntryKind.CONTROL, count=0, payload=payload) for payload in said)
            body = Entries(origin=Origin(other, 1), first_index=1, base_offset=0, entries=entries)
            stream.on_peer(other, body)
            await until_async(lambda: stream.machine.state.find(key), "the group to be known")
            for _ in range(100):
                stream.tick()
            stream.step(SetMembers(members=(me,)))
            stream.tick()
            await until_async(lambda: stream.machine.state.find(key) is None, "the group to go")

    asyncio.run(body())


def pulse_of(stream: LeaderlessStream, position: Position) -> Pulse:
    """What another node says that holds so much of this node's log."""
    positions = ((stream.machine.origin, position),)
    return Pulse(boot=1, number=1, positions=positions, hears=(), work_division=())


def test_members_go_on_when_others_prove_that_the_log_was_not_whole(tmp_path: Path) -> None:
    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            me, other, key = stream.machine.node, ReplicaId("other"), "$share/g/jobs/#"
            async with Client(broker.url, client_id="m") as client, client.subscribe(key, qos=1) as messages:
                stream.step(SetMembers(members=(me, other)))
                stream.on_peer(other, pulse_of(stream, Position(100, 100)))
                await until_async(lambda: stream.machine.origin.incarnation == 2, "another log")
                stream.step(SetMembers(members=(me,)))
                await client.publish("jobs/x", "after", qos=1)
                assert (await asyncio.wait_for(anext(messages), 20)).payload == b"after"

    asyncio.run(body())


def test_what_waits_for_room_is_not_said_to_be_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that cannot be made for want of room holds up the writes behind it, and is made later."""
    log_of = OriginFiles.log_of
    third, other = Origin("third", 1), Origin("other", 1)
    full = True

    def cramped(self: OriginFiles, origin: Origin) -> OriginLog:
        if full and origin == other:
            raise DiskFull("no room")
        return log_of(self, origin)

    monkeypatch.setattr(OriginFiles, "log_of", cramped)

    async def body() -> None:
        nonlocal full
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            sent: list[object] = []
            monkeypatch.setattr(
                broker.server.engine.leaderless, "send", lambda to, n, body: sent.append(body)
            )
            stream.step(SetMembers(members=(stream.machine.node, ReplicaId("other"), ReplicaId("third"))))
            entry = LogEntry(kind=EntryKind.CONTROL, count=0, payload=b'["later"]')
            for origin in (other, third):
                body = Entries(origin=origin, first_index=1, base_offset=0, entries=(entry,))
                stream.on_peer(origin.node, body)

            def had() -> list[Origin]:
                return [one.origin for one in sent if isinstance(one, Have)]

            for _ in range(20):
                stream.tick()
                await asyncio.sleep(0)
            assert had() == []
            full = False
            await until_async(lambda: had() == [other, third], "both to be here")
            assert stream.machine.positions[other].entry == 1

    asyncio.run(body())


def test_a_repeat_is_acknowledged_at_its_level_and_not_before(tmp_path: Path) -> None:
    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker, ack="all")
            me, other = stream.machine.node, ReplicaId("other")
            stream.step(SetMembers(members=(me, other)))
            publishing = broker.server.engine.groups.publishing
            message, key = Message(topic="jobs/x", payload=b"x", qos=1), client_key(None, "p", 1)
            for _ in range(2):
                task = asyncio.create_task(publishing.publish(message, key))
                await until_async(lambda: len(stream._batches) == 1, "the message to wait for its level")
                for _ in range(210):
                    stream.tick()
                with pytest.raises(NotStored):
                    await task
            task = asyncio.create_task(publishing.publish(message, key))
            await until_async(lambda: len(stream._batches) == 1, "the repeat to wait for its level")
            stream.on_peer(other, pulse_of(stream, stream.machine.positions[stream.machine.origin]))
            assert (await task).is_repeat
            assert stream.machine.positions[stream.machine.origin].offset == 1

    asyncio.run(body())


def test_groups_keep_what_they_have_not_read_when_the_stream_gets_other_filters(tmp_path: Path) -> None:
    async def body() -> None:
        data = str(tmp_path / "data")
        async with Broker(node__data=data, listeners__http="127.0.0.1:0") as broker:
            sealed = await stream_of(broker)
            http = Http(f"http://127.0.0.1:{broker.server.ports['http']}")
            await asyncio.to_thread(http.call, "POST", "/v1/groups", {"name": "crew", "filters": ["jobs/#"]})
            await until_async(lambda: sealed.machine.state.find("group/crew"), "the group to be known")
            async with Client(broker.url, client_id="m", session_expiry_s=3600) as member:
                await member.subscribe("$share/g/jobs/#", qos=1).__aenter__()
            async with Client(broker.url, client_id="d", session_expiry_s=3600) as session:
                await session.subscribe("jobs/#", qos=1).__aenter__()
            async with Client(broker.url, client_id="p") as client:
                await client.publish("jobs/x", "before", qos=1)
            spec = StreamSpec.read({**SPEC, "filters": ["tasks/#"]})
            await broker.server.engine.opening.put(spec, create=False)
            assert sealed.intake.is_sealed
            for _ in range(100):
                sealed.tick()
            await until_async(lambda: not sealed.machine.writes_pending, "all to be written")
            assert {key for key, _ in sealed.machine.state.present()} == {"group/crew", "$share/g/jobs/#"}
            (own,) = sealed.origins
            assert broker.server.engine.leaderless.holds(sealed) == {own: 0}
        async with Broker(node__data=data) as broker:
            for group in ("crew", "g"):
                # The member of before and one that comes now.
                async with (
                    Client(broker.url, client_id="m" if group == "g" else "n", session_expiry_s=60) as client,
                    client.subscribe(f"$share/{group}/jobs/#", qos=1) as messages,
                ):
                    assert (await asyncio.wait_for(anext(messages), 20)).payload == b"before"

    asyncio.run(body())


def test_a_stream_may_be_deleted_while_its_files_wait_for_their_turn(tmp_path: Path) -> None:
    async def body() -> None:
        async with Broker(node__data=str(tmp_path / "data")) as broker:
            stream = await stream_of(broker)
            async with Client(broker.url, client_id="p") as client:
                await client.publish("jobs/x", "x", qos=1)
                (own,) = stream.files.logs.values()
                own.replica_log.trim_to = own.replica_log.last_index()
                stream.files.tidy(own)
                broker.server.engine.leaderless.streams.pop(stream.files.number).remove()
                await asyncio.wait_for(client.publish("other", "x", qos=1), 20)

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
            assert (await call("POST", "/message?topic=jobs/old"))["message"] == "before"
            with pytest.raises(MillraceError, match="leaderless"):
                await call("POST", "/message?topic=jobs/old")

    asyncio.run(body())


@pytest.mark.parametrize(
    "wrong",
    [{"shards": 2}, {"ack": "most"}, {"storage": "tape"}, {"capture": "none"}, {"edge": "module:function"}],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(LocalError, match="jobs"):
        StreamSpec.read({**SPEC, **wrong})


def test_memory_is_for_leaderless_streams() -> None:
    with pytest.raises(LocalError, match="leaderless"):
        StreamSpec.read({"name": "s", "filters": ["s/#"], "storage": "memory"})
