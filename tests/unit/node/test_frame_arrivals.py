"""What arrives at a frame stream in one piece: classes mixed, some without one, and topics that are known
from another node's publishers."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from millrace.broker.entries.meta import ReportPair
from millrace.broker.messages.inbound import Inbound
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.shards.producers import PRODUCER, SEQUENCE
from millrace.broker.streams.stream import StreamSpec
from millrace.client import Client
from millrace.client.errors import ClientError
from millrace.embedded import Broker
from millrace.node.pairs import frame_messages as words
from millrace.node.pairs.frame_shard import FrameShard
from millrace.node.pairs.pair_keeper import PairGroup
from millrace.replication.contract import Appointed, ReplicaId
from millrace.replication.pair.messages import CheckReply
from millrace.replication.raft.messages import Heartbeat
from millrace.types import Index, Properties, Term
from unit.node.stand_ins import Waiter, tell_waiters
from waiting import until_async

TIMEOUT_S = 20.0
CLASSES = [
    {"filter": "line/a/#", "period_ms": 100, "deadline_ms": 500, "loss_tolerance": 0, "retention": 40},
    {"filter": "line/b/#", "period_ms": 100, "deadline_ms": 50, "loss_tolerance": None},
]
STREAM = {
    "name": "line",
    "filters": ["line/#"],
    "replication": "primary-backup",
    "primary_backup": {"schedule": "frame", "topics": CLASSES},
}


def run(scene: Callable[[Broker, Client, FrameShard], Awaitable[None]], **settings: object) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), AsyncExitStack() as stack:
            broker = await stack.enter_async_context(Broker())
            await broker.server.engine.opening.put(StreamSpec.read({**STREAM, **settings}), create=True)
            (number,) = broker.server.engine.definitions.table.streams["line"].shards
            shard = broker.server.engine.shards[number]
            assert isinstance(shard, FrameShard)
            await scene(broker, await stack.enter_async_context(Client(broker.url)), shard)

    asyncio.run(body())


async def publish(client: Client, topics: list[str], qos: int = 1) -> list[Any]:
    """All in one piece; the payload is the place in the list."""
    calls = [client.publish(topic, str(place), qos=qos) for place, topic in enumerate(topics)]
    return await asyncio.gather(*calls, return_exceptions=True)


def test_of_messages_in_one_piece_only_those_without_a_class_are_refused() -> None:
    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        topics = ["line/a/1", "line/c/1", "line/b/1", "line/a/2", "line/c/1", "line/a/1"]
        async with client.subscribe("line/#", qos=1) as messages:
            # The second time their topics are known, and they come as one run.
            for _ in range(2):
                answers = await publish(client, topics)
                assert [isinstance(one, ClientError) for one in answers] == [
                    topic == "line/c/1" for topic in topics
                ]
                found = [await messages.get(TIMEOUT_S) for _ in range(4)]
                assert sorted(int(one.payload) for one in found) == [0, 2, 3, 5]
                assert [int(one.payload) for one in found if one.topic == "line/a/1"] == [0, 5]
        shown = shard.shown()
        assert [row["of"] for row in shown["measured"][:2]] == [6, 2]
        assert shown["overloaded"] == shown["queued"] == 0
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def test_a_queue_without_room_refuses_a_run_whole_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.node.pairs.frame_shard.FRAME_JOBS_MAX", 4)

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        topics = [f"line/b/{n}" for n in range(5)]
        async with client.subscribe("line/#", qos=1) as messages:
            for topic in topics:
                await client.publish(topic, "known", qos=1)
                await messages.get(TIMEOUT_S)
            answers = await publish(client, topics)
            assert all(isinstance(one, ClientError) for one in answers), "five do not fit into four"
            assert shard.shown()["overloaded"] == 5
            await publish(client, topics[:4])
            found = [await messages.get(TIMEOUT_S) for _ in range(4)]
            assert [int(one.payload) for one in found] == [0, 1, 2, 3]
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def replaced(shard: FrameShard) -> None:
    """Another node, which nobody can reach, is primary."""
    group = shard.group
    assert isinstance(group, PairGroup) and group.is_leader
    group.appoint(
        Appointed(
            version=1_000,
            epoch=Term(1_000),
            primary=ReplicaId("another"),
            backup=group.replica,
            is_in_sync=False,
            has_quorum=True,
        )
    )
    assert not group.is_leader and group.leader == "another"


def test_without_a_primary_publishers_are_refused_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were passed on to one that is gone, and those that came when there was none."""
    monkeypatch.setattr("millrace.node.pairs.frame_offers._OFFER_S_MAX", 0.3)
    monkeypatch.setattr("millrace.node.pairs.frame_shard._WAIT_S_MAX", 0.3)

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        await client.publish("line/a/1", "taken", qos=1)
        replaced(shard)
        passed_on = asyncio.ensure_future(publish(client, ["line/a/1", "line/b/1"]))
        (*answers,) = await asyncio.wait_for(passed_on, TIMEOUT_S)
        assert all(isinstance(one, ClientError) for one in answers)
        await until_async(lambda: shard.group.status().leader is None, "a primary that is not heard is gone")
        answers = await asyncio.wait_for(publish(client, ["line/a/1", "line/b/1"]), TIMEOUT_S)
        assert all(isinstance(one, ClientError) for one in answers)
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def test_what_waits_for_a_primary_is_taken_as_soon_as_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the next look: a deadline may be shorter than the time between two."""
    monkeypatch.setattr("millrace.node.pairs.frame_shard._RETRY_S", 10 * TIMEOUT_S)

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        await client.publish("line/a/1", "taken", qos=1)
        replaced(shard)
        await until_async(lambda: shard.group.status().leader is None, "a primary that is not heard is gone")
        waiting = asyncio.ensure_future(publish(client, ["line/a/1", "line/b/1"]))
        await until_async(lambda: len(shard.intake.arrivals) > 0, "they wait")
        returned(shard)
        assert not any(await asyncio.wait_for(waiting, TIMEOUT_S)), "both are acknowledged"
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def test_of_keyed_messages_in_one_piece_only_those_without_a_class_are_refused() -> None:
    """A durable session's QoS 2: refused together and sent again, those with one would come twice."""

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        topics = ["line/a/1", "line/c/1"]
        durable = Client(broker.url, client_id="durable", session_expiry_s=60)
        async with client.subscribe("line/#", qos=1) as messages, durable:
            for _ in range(2):
                answers = await publish(durable, topics, qos=2)
                assert [isinstance(one, ClientError) for one in answers] == [False, True]
                assert (await messages.get(TIMEOUT_S)).topic == "line/a/1"
        assert shard.shown()["measured"][0]["of"] == 2

    run(scene)


def test_the_answer_to_a_repeat_comes_no_earlier_than_the_first() -> None:
    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        replaced(shard)
        answers: list[str] = []
        packet = b"\x34\x0c\x00\x08line/a/1\x00\x07"
        for name, run in (("first", Run(packet, 1, 2, False)), ("repeat", None)):
            arrival = Arrival(None, None, 0, run, "line/a/1", b"\x50\x02\x00\x07")
            arrival.waiter = Waiter(lambda _, name=name: answers.append(name))
            broker.server.broker.inbound._arrive(shard.intake, arrival)
        broker.server.door.wake()
        await until_async(lambda: not shard.intake.arrivals, "both are taken in")
        assert answers == []
        shard.on_frame_message("another", words.OfferAnswers([(1, words.IS_TAKEN)]))
        tell_waiters(broker.server.broker)
        assert answers == ["first", "repeat"]

    run(scene)


def test_a_key_below_the_window_is_refused() -> None:
    """[rule 3]: never silently acknowledged."""

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        for number in range(100):
            shard.producers.store(b"key/p", 10 + 2 * number)
        for number, sequence in enumerate((209, 11)):
            user = ((PRODUCER, "p"), (SEQUENCE, str(sequence)))
            call = client.publish("line/a/1", str(number), qos=1, properties=Properties(user=user))
            if sequence == 209:
                await call
            else:
                with pytest.raises(ClientError):
                    await call

    run(scene)


def test_a_retained_message_that_is_delivered_from_memory_comes_once_and_is_logged() -> None:
    """Capture `acknowledged`: of QoS 0 only the value to retain is for the log [rule 6]."""

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        async with client.subscribe("line/#", qos=1) as messages:
            await client.publish("line/a/1", "zero", qos=0, retain=True)
            await client.publish("line/a/2", "one", qos=1, retain=True)
            await client.publish("line/a/3", "end", qos=1)
            found = [(await messages.get(TIMEOUT_S)).payload for _ in range(3)]
            assert sorted(found) == [b"end", b"one", b"zero"]
        await until_async(lambda: "line/a/1" in shard.retained and "line/a/2" in shard.retained, "two notes")
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene, capture="acknowledged")


def test_a_takeover_is_measured_from_the_last_word_of_the_old_primary() -> None:
    """Whether or not it had anything to copy."""

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        group, another, term = shard.group, ReplicaId("another"), Term(1_000)
        assert isinstance(group, PairGroup)
        pair = {"version": 1_000, "epoch": term, "primary": another, "backup": group.replica}
        group.appoint(Appointed(**pair, is_in_sync=True, has_quorum=False))
        group.on_peer(another, Heartbeat(term=term, commit=Index(0), context=0))
        group.on_peer(another, CheckReply(term=term, number=1, is_primary=True, is_in_sync=True))
        assert not group.is_leader and group.leader == another
        await until_async(lambda: group.is_leader, "it takes over")
        (failover,) = (row for row in shard.shown()["measured"] if row["what"] == "failover")
        assert failover["of"] == 1
        assert 100 <= failover["p99_ms"] < 5_000, "three checks of 50 ms at least"

    pair = {"schedule": "frame", "topics": CLASSES, "check_interval_ms": 50}
    run(scene, primary_backup=pair)


def test_neither_topics_that_were_delivered_here_nor_new_ones_need_a_closer_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[str] = []
    accept = Inbound.accept

    def counted(self: Inbound, session: Any, topic: str, *rest: Any) -> bool:
        looked_at.append(topic)
        return accept(self, session, topic, *rest)

    monkeypatch.setattr(Inbound, "accept", counted)

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        async with client.subscribe("line/#", qos=1) as messages:
            for number in range(20):
                broker.server.broker.router.delivery_route(f"line/a/{number}".encode())
            topics = [f"line/a/{number}" for number in range(20)]
            topics.insert(10, "line/b/new")
            await publish(client, topics)
            found = [await messages.get(TIMEOUT_S) for _ in range(21)]
            assert sorted(int(one.payload) for one in found) == list(range(21))
            assert [one.topic for one in found if one.topic != "line/b/new"] == [
                topic for topic in topics if topic != "line/b/new"
            ]
        assert looked_at == []

    run(scene)


def test_routes_stay_known_when_the_record_of_roles_changes() -> None:
    """Finding them all again takes a node longer than its partner waits for it."""

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        engine, router = broker.server.engine, broker.server.broker.router
        await client.publish("line/a/1", "known", qos=1)
        before, generation = engine.definitions.state.pairs.by_shard[shard.number], router.generation
        report = ReportPair(
            shard.number,
            after=before.version,
            epoch=before.epoch + 2,
            primary=before.primary,
            is_in_sync=False,
            is_seized=True,
        )
        await engine.definitions.command(report)
        assert engine.definitions.state.pairs.by_shard[shard.number].version > before.version
        assert router.generation == generation and b"line/a/1" in router.deliveries
        await engine.opening.put(
            StreamSpec.read({**STREAM, "name": "other", "filters": ["line/+/other"]}), create=True
        )
        assert router.generation > generation, "another stream may keep a topic now"

    run(scene)


def returned(shard: FrameShard) -> None:
    """This node is primary again, alone."""
    group = shard.group
    assert isinstance(group, PairGroup)
    group.appoint(
        Appointed(
            version=1_001,
            epoch=Term(1_001),
            primary=group.replica,
            backup=None,
            is_in_sync=False,
            has_quorum=False,
        )
    )


def test_what_is_retained_and_waits_for_a_primary_is_taken_by_the_next() -> None:
    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        replaced(shard)
        offered = asyncio.ensure_future(client.publish("line/a/1", "kept", qos=1, retain=True))
        await until_async(lambda: len(shard._offers) == 1, "it is passed on")
        returned(shard)
        await asyncio.wait_for(offered, TIMEOUT_S)
        await until_async(lambda: "line/a/1" in shard.retained, "its note")
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def test_a_stored_message_that_is_retained_keeps_none_behind_it_from_being_dispatched() -> None:
    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        replaced(shard)
        rows = []
        for number, (topic, retain) in enumerate((("line/a/1", True), ("line/a/2", False)), 1):
            packet = b"\x32\x0d\x00\x08" + topic.encode() + b"\x00\x07x"
            body = words.encode_run(Run(packet, 1, 1, False, retain), (b"", 0), 0)
            rows.append(words.CopyRow(number, 1, False, body))
        async with client.subscribe("line/#", qos=1) as messages:
            shard.on_frame_message("another", words.Copies(1_000, rows))
            returned(shard)
            assert [(await messages.get(TIMEOUT_S)).topic for _ in rows] == ["line/a/1", "line/a/2"]
        await until_async(lambda: "line/a/1" in shard.retained, "its note")
        assert shard.shown()["recovered"] == 2
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def test_the_last_of_two_retained_messages_stays_whatever_their_qos() -> None:
    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        old = client.publish("line/a/1", "old", qos=1, retain=True)
        new = client.publish("line/a/1", "new", qos=0, retain=True)
        behind = client.publish("line/a/2", "taken in behind them", qos=1)
        await asyncio.gather(old, new, behind)
        await until_async(lambda: not shard.group.pending_count, "both notes are in the log")
        kept = broker.server.broker.retained.logged("line/a/1")
        assert kept is not None and kept.data.endswith(b"new")

    run(scene, capture="acknowledged")


def test_on_a_full_disk_what_is_retained_is_refused_and_the_rest_is_taken() -> None:
    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        broker.server.engine.space._is_low = True
        async with client.subscribe("line/#", qos=1) as messages:
            with pytest.raises(ClientError):
                await client.publish("line/a/1", "kept", qos=1, retain=True)
            await client.publish("line/a/2", "taken", qos=1)
            assert (await messages.get(TIMEOUT_S)).topic == "line/a/2"
        assert broker.server.broker.inbound.uncommitted_bytes == 0

    run(scene)


def test_what_arrives_while_others_are_put_off_waits_behind_them() -> None:
    """A refused publisher's connection is closed, and its will comes to the same stream."""

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        replaced(shard)
        inbound = broker.server.broker.inbound
        await until_async(lambda: shard.group.status().leader is None, "a primary that is not heard is gone")
        answers: list[str] = []

        def arrive(name: str) -> None:
            run = Run(b"\x32\x0c\x00\x08line/a/1\x00\x07", 1, 1, False)
            arrival = Arrival(None, None, 0, run, "line/a/1", b"")
            arrival.waiter = Waiter(lambda _: answers.append(name))
            inbound._arrive(shard.intake, arrival)

        arrive("first")
        waiting, shard.intake.arrivals = shard.intake.arrivals, []
        arrive("will")
        shard._wait(waiting)
        returned(shard)
        await until_async(lambda: answers == ["first", "will"], "both are taken, in order")
        assert inbound.uncommitted_bytes == 0

    run(scene)


def test_copies_that_the_link_does_not_take_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """This node has no links."""
    monkeypatch.setattr(PairGroup, "is_counting_alone", False)
    monkeypatch.setattr(PairGroup, "partner", ReplicaId("another"))

    async def scene(broker: Broker, client: Client, shard: FrameShard) -> None:
        await publish(client, ["line/a/1", "line/a/2"])
        await until_async(lambda: shard.shown()["uncopied"] == 2, "two are counted")

    # Replicated: the copy is needed earlier than the dispatch.
    late = {**CLASSES[0], "deadline_ms": 9_000}
    run(scene, primary_backup={"schedule": "frame", "topics": [late]})
