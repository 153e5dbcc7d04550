"""A primary-backup stream on one node: what is asked of it, and what it does without a backup."""

import asyncio
from pathlib import Path

import pytest

from millrace.broker.streams.pair_spec import PairSpec, TopicClass
from millrace.broker.streams.stream import StreamSpec
from millrace.client import Client, ClientError
from millrace.embedded import Broker
from millrace.errors import LocalError
from millrace.node.pairs.beat import Beat
from millrace.node.pairs.frame_shard import FrameShard, Measured
from millrace.node.pairs.pair_keeper import PairGroup, admit, check_classes, options_of
from millrace.replication.contract import Appointed, LinkClosed, LinkOpened, ReplicaId, Tick
from millrace.replication.raft.messages import Heartbeat
from millrace.types import Index, Term
from waiting import until_async

TIMEOUT_S = 20.0
CLASSES = [
    {"filter": "line/a/#", "period_ms": 100, "deadline_ms": 500, "loss_tolerance": 0, "retention": 40},
    {"filter": "line/b/#", "period_ms": 100, "deadline_ms": 50, "loss_tolerance": None},
]


@pytest.mark.parametrize("interval_ms", [8, 14, 50, 1000, 60_000])
def test_ticks_follow_the_check_interval(interval_ms: int) -> None:
    options, tick_s = options_of(interval_ms)
    assert options.check_ticks * tick_s * 1000 == pytest.approx(interval_ms, rel=0.2)
    assert options.lease_ticks < options.promise_ticks < options.promotion_ticks


def test_a_beat_does_not_slip_where_each_tick_is_looked_at_late() -> None:
    beat = Beat(began_s=100.0, tick_s=0.0035)
    now_s, stepped = 100.0, 0
    while now_s < 101.0:
        # The timer of a busy loop is a millisecond late, every time.
        now_s = beat.next_s + 0.001
        stepped += beat.take(now_s, most=1)
    assert stepped == int(1.0 / 0.0035) + 1


def test_a_beat_leaves_out_what_is_more_than_may_be_stepped_at_once() -> None:
    beat = Beat(began_s=0.0, tick_s=0.25)
    assert beat.take(2.6, most=3) == 3
    assert beat.take(2.7, most=3) == 0
    assert beat.take(2.8, most=3) == 1


async def cut_off(*, is_open: bool) -> int:
    """How many ticks a backup steps that was held up for a hundred of them."""
    async with Broker() as broker:
        await made(broker, primary_backup={"check_interval_ms": 50})
        (shard,) = broker.server.engine.definitions.table.streams["line"].shards
        group = broker.server.engine.shards[shard].group
        assert isinstance(group, PairGroup)
        there = ReplicaId("there")
        group.appoint(
            Appointed(
                version=1_000,
                epoch=Term(1_000),
                primary=there,
                backup=group.replica,
                is_in_sync=True,
                has_quorum=True,
            )
        )
        group.step(LinkOpened(peer=there) if is_open else LinkClosed(peer=there))
        ticks: list[Tick] = []
        step = group.step
        group.step = lambda event: ticks.append(event) if isinstance(event, Tick) else step(event)  # type: ignore[method-assign]
        group._beat = Beat(asyncio.get_running_loop().time() - 1.0, 0.01)
        group.catch_up()
        return len(ticks)


@pytest.mark.parametrize(("is_open", "stepped"), [(True, 3), (False, 100)])
def test_a_backup_counts_all_the_time_behind_a_closed_link(is_open: bool, stepped: int) -> None:
    """In one that is open may lie an answer that a process that was held up did not read yet."""
    assert asyncio.run(cut_off(is_open=is_open)) == stepped


def test_a_class_that_cannot_be_met_is_named_with_its_number() -> None:
    topics = (TopicClass(filter="a/#", period_ms=100, deadline_ms=5),)
    with pytest.raises(LocalError, match=r"'a/#' cannot be admitted: the dispatch deadline would be -5 ms"):
        admit(PairSpec(topics=topics))


def test_a_class_without_a_topic_of_the_stream_is_refused() -> None:
    fields = {"name": "s", "filters": ["line/#"], "replication": "primary-backup"}
    for filter in ("line/a/#", "line/+", "#"):
        check_classes(
            StreamSpec.read({**fields, "primary_backup": {"topics": [CLASSES[0] | {"filter": filter}]}})
        )
    outside = {"topics": [*CLASSES, CLASSES[0] | {"filter": "lines/#"}]}
    with pytest.raises(LocalError, match=r"'lines/#' has no topic of the stream, whose filters are line/#"):
        check_classes(StreamSpec.read({**fields, "primary_backup": outside}))


def test_a_p99_above_its_bound_is_an_alert() -> None:
    measured = Measured("dispatch", 10.0)
    for _ in range(99):
        measured.add(1.0)
    assert not measured.shown()["alert"]
    for _ in range(5):
        measured.add(20.0)
    assert measured.shown()["alert"]
    assert measured.late == 5


async def made(broker: Broker, **settings: object) -> None:
    fields = {"name": "line", "filters": ["line/#"], "replication": "primary-backup", **settings}
    await broker.server.engine.opening.put(StreamSpec.read(fields), create=True)


async def simple_mode() -> None:
    """[B9]: one broker, no backup."""
    async with Broker() as broker, Client(broker.url) as client:
        await made(broker)
        async with client.subscribe("line/#", qos=1) as messages:
            await client.publish("line/1", b"one", qos=1)
            assert (await messages.get(TIMEOUT_S)).payload == b"one"
        (shard,) = broker.server.engine.definitions.table.streams["line"].shards
        assert broker.server.engine.shards[shard].next_offset == 1
        with pytest.raises(LocalError, match="not in sync"):
            await broker.server.engine.pairs.switch(shard)


def test_without_a_backup_it_serves_alone() -> None:
    asyncio.run(simple_mode())


async def framed() -> None:
    async with Broker() as broker, Client(broker.url) as client:
        await made(broker, primary_backup={"schedule": "frame", "topics": CLASSES})
        (number,) = broker.server.engine.definitions.table.streams["line"].shards
        shard = broker.server.engine.shards[number]
        assert isinstance(shard, FrameShard)
        async with client.subscribe("line/#", qos=1) as messages:
            for qos in (0, 1, 2):
                await client.publish("line/a/1", b"%d" % qos, qos=qos)
            await client.publish("line/b/1", b"b", qos=1)
            got = sorted([(await messages.get(TIMEOUT_S)).payload for _ in range(4)])
            assert got == [b"0", b"1", b"2", b"b"]
        shown = shard.shown()
        assert [row["of"] for row in shown["measured"][:2]] == [3, 1]
        assert shown["queued"] == shown["overloaded"] == 0
        assert shard.next_offset == 0, "nothing enters the log"
        with pytest.raises(ClientError, match="0x83"):
            await client.publish("line/c/1", b"no class", qos=1)


def test_frame_messages_go_past_the_log_and_a_topic_without_a_class_is_refused() -> None:
    asyncio.run(framed())


async def altered(data: str, first: str, second: str) -> None:
    """What was taken before a change of replication is kept under a shard that is sealed, and stays what it
    was, whatever its stream is now."""
    fields = {"name": "line", "filters": ["line/#"]}
    async with Broker(node__data=data) as broker, Client(broker.url) as client:
        engine = broker.server.engine
        await engine.opening.put(StreamSpec.read({**fields, "replication": first}), create=True)
        await client.publish("line/1", b"one", qos=1)
        await engine.opening.put(StreamSpec.read({**fields, "replication": second}), create=False)
        (sealed,) = engine.definitions.table.streams["line"].sealed
    async with Broker(node__data=data) as broker, Client(broker.url) as client:
        engine = broker.server.engine
        (opened,) = engine.definitions.table.streams["line"].shards
        is_pair = {number: isinstance(engine.shards[number].group, PairGroup) for number in (sealed, opened)}
        assert is_pair == {sealed: first == "primary-backup", opened: second == "primary-backup"}
        await until_async(lambda: engine.shards[sealed].next_offset == 1, "the message of before")
        await client.publish("line/1", b"two", qos=1)
        assert engine.shards[opened].next_offset == 1


@pytest.mark.parametrize("kinds", [("quorum", "primary-backup"), ("primary-backup", "quorum")])
def test_a_node_starts_again_after_the_replication_of_a_stream_was_changed(
    tmp_path: Path, kinds: tuple[str, str]
) -> None:
    asyncio.run(altered(str(tmp_path), *kinds))


async def unanswered(*, is_primary: bool) -> None:
    """The primary has no lease, and no authority to ask: nobody can say so to those that pass messages on."""
    async with Broker() as broker, Client(broker.url) as client:
        await made(broker)
        (number,) = broker.server.engine.definitions.table.streams["line"].shards
        group = broker.server.engine.shards[number].group
        assert isinstance(group, PairGroup)
        another, epoch = ReplicaId("another"), Term(group.epoch if is_primary else 1_000)
        group.appoint(
            Appointed(
                version=1_000,
                epoch=epoch,
                primary=group.replica if is_primary else another,
                backup=another if is_primary else group.replica,
                is_in_sync=True,
                has_quorum=True,
            )
        )
        assert group.is_serving and not group.may_accept
        refused = asyncio.ensure_future(client.publish("line/1", b"one", qos=1))
        async with asyncio.timeout(TIMEOUT_S):
            while not refused.done():
                if not is_primary:
                    group.on_peer(another, Heartbeat(term=epoch, commit=Index(0), context=0))
                await asyncio.wait([refused], timeout=0.05)
        assert group.is_serving and not group.may_accept, "it is what it was"
        with pytest.raises(ClientError, match="0x83"):
            await refused
        assert broker.server.broker.inbound.uncommitted_bytes == 0


@pytest.mark.parametrize("is_primary", [True, False])
def test_what_a_primary_without_a_lease_cannot_take_is_refused_in_bounded_time(
    monkeypatch: pytest.MonkeyPatch, is_primary: bool
) -> None:
    monkeypatch.setattr("millrace.node.replicas.replication_group._LEADERLESS_TICKS_MAX", 20)
    asyncio.run(unanswered(is_primary=is_primary))


async def interval_altered(data: str) -> None:
    fields = {"name": "line", "filters": ["line/#"], "replication": "primary-backup"}
    async with Broker(node__data=data) as broker, Client(broker.url) as client:
        engine = broker.server.engine
        await engine.opening.put(
            StreamSpec.read({**fields, "primary_backup": {"check_interval_ms": 200}}), create=True
        )
        await client.publish("line/1", b"one", qos=1)
        slower = {"check_interval_ms": 1000, "failover_ms": 3500}
        await engine.opening.put(StreamSpec.read({**fields, "primary_backup": slower}), create=False)
    async with Broker(node__data=data) as broker:
        engine = broker.server.engine
        line = engine.definitions.table.streams["line"]
        (sealed,), (opened,) = line.sealed, line.shards
        for number, interval_ms in ((sealed, 200), (opened, 1000)):
            group = engine.shards[number].group
            assert isinstance(group, PairGroup)
            assert (group._pair_options, group._beat.tick_s) == options_of(interval_ms)


def test_a_shard_keeps_the_check_interval_that_it_began_with(tmp_path: Path) -> None:
    """Its other node, which did not restart, does. A lease that outlasts the other's promise is none, and one
    that ends before the next question is never there."""
    asyncio.run(interval_altered(str(tmp_path)))
