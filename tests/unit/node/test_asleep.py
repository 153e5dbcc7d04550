"""A replica alone is not ticked while nothing happens, and is as soon as something does."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from millrace.broker.meta.state import META_GROUP
from millrace.broker.streams.stream import StreamSpec
from millrace.errors import ProtocolError
from millrace.node import config as settings
from millrace.node.replicas.replicas import TICK_S
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.server import Server
from millrace.replication.contract import PeerBody, ReplicaId, Tick
from waiting import until_async


class Nonsense(PeerBody, frozen=True):
    """A message of no protocol."""


def lone_node(directory: Path) -> Server:
    given = [f"node.data={directory / 'data'}", "listeners.mqtt=127.0.0.1:0", "listeners.http="]
    return Server(settings.load(None, {}, given))


@pytest.fixture
def ticked(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each group was ticked."""
    counts: Counter[int] = Counter()
    tick = ReplicationGroup.tick

    def counted(group: ReplicationGroup) -> None:
        counts[group.number] += 1
        tick(group)

    monkeypatch.setattr(ReplicationGroup, "tick", counted)
    return counts


def test_idle_groups_sleep_and_wake(tmp_path: Path, ticked: Counter[int]) -> None:
    async def scenario() -> None:
        server = lone_node(tmp_path)
        await server.start()
        groups = server.engine.replicas.groups
        try:
            await until_async(lambda: all(g.is_asleep for g in groups.values()), "all groups to sleep")
            rounds: Counter[str] = Counter()
            on_tick = server.engine.replicas.on_tick

            def counting() -> bool:
                if rounds["all"] < 3:
                    rounds["all"] = 0 if ticked else rounds["all"] + 1
                    ticked.clear()
                return on_tick()

            server.engine.replicas.on_tick = counting
            # The node says once more who it is, soon after its start.
            await until_async(lambda: rounds["all"] >= 3, "some time to pass without a tick")
            await server.engine.opening.put(StreamSpec.read({"name": "a", "filters": ["a/#"]}), create=True)
            await until_async(lambda: all(g.is_asleep for g in groups.values()), "all groups to sleep again")
            (made,) = server.engine.definitions.table.streams["a"].shards
            assert ticked[META_GROUP] and ticked[made] and groups[made].is_leader
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_every_event_wakes(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = lone_node(tmp_path)
        await server.start()
        group = server.engine.replicas.groups[META_GROUP]
        try:
            await until_async(lambda: group.is_asleep, "it to sleep")
            group.step(Tick())
            assert not group.is_asleep
            group.is_asleep = True
            with pytest.raises(ProtocolError):
                group.on_peer(ReplicaId("other"), Nonsense())
            assert not group.is_asleep
            await until_async(lambda: group.is_asleep, "it to sleep again")
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_ticks_come_seldom_while_time_matters_to_nobody(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = lone_node(tmp_path)
        await server.start()
        replicas = server.engine.replicas
        loop = asyncio.get_running_loop()

        def until_next_s() -> float:
            assert replicas._timer is not None
            return replicas._timer.when() - loop.time()

        try:
            await until_async(lambda: until_next_s() > 2 * TICK_S, "the ticks to become rare")
            group = replicas.groups[META_GROUP]
            group.step(Tick())
            assert until_next_s() <= TICK_S, "whoever wakes does not wait for that"
        finally:
            await server.stop()

    asyncio.run(scenario())
