"""Every wait of more than a second has a sentence; what goes on, however slowly, is no wait."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.node.admin.readiness import Readiness
from millrace.node.admin.waits import Waits


class Scene:
    """A node whose parts are set by hand, and a clock that is turned by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.log = SimpleNamespace(damages=(), first_offset=700)
        self.lacking: list[int] = []
        replica_log = SimpleNamespace(log=self.log)
        self.group = SimpleNamespace(is_serving=True, oldest_pending=0, replica_log=replica_log)
        self.stream = SimpleNamespace(oldest_unanswered=0)
        self.longest_s = 0.0
        self.syncer = SimpleNamespace(under_way=0, is_full=False, take_longest_s=lambda: self.longest_s)
        self.engine: Any = SimpleNamespace(
            replicas=SimpleNamespace(groups={16: self.group}, syncer=self.syncer),
            leaderless=SimpleNamespace(streams={17: self.stream}),
            edges=SimpleNamespace(unavailable={}),
            space=SimpleNamespace(is_refusing=False),
            backfill=SimpleNamespace(lacking=lambda: self.lacking),
        )
        self.events: list[str] = []
        events: Any = SimpleNamespace(record=lambda kind, level, text: self.events.append(text))
        self.waits = Waits(self.engine, events, lambda group: "nobody leads it", lambda group: "not stored")
        loop = SimpleNamespace(time=lambda: self.now_s)
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)

    def after(self, seconds: float) -> list[str]:
        """What waits after a look before and one after this time."""
        self.waits.look()
        self.now_s += seconds
        self.waits.look()
        return list(self.waits.sentences)


def test_each_kind_of_wait_has_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    assert scene.after(5) == []
    scene.group.is_serving = False
    assert scene.after(0.5) == []
    assert scene.after(0.5) == ["shard 16: nobody leads it"]
    scene.group.is_serving, scene.group.oldest_pending = True, 7
    assert scene.after(1) == ["shard 16: not stored"]
    scene.group.oldest_pending, scene.stream.oldest_unanswered = 0, 3
    assert "as many nodes have them as `ack` says" in scene.after(1)[0]
    scene.stream.oldest_unanswered, scene.engine.edges.unavailable = 0, {16: None}
    assert "edge function cannot be run" in scene.after(1)[0]
    scene.engine.edges.unavailable, scene.engine.space.is_refusing = {}, True
    assert "the disk is full" in scene.after(1)[0]
    scene.engine.space.is_refusing, scene.syncer.under_way = False, 9
    assert "does not finish a write" in scene.after(1)[0]
    scene.syncer.under_way, scene.log.damages = 0, ("one",)
    assert scene.after(1) == [
        "shard 16: damaged parts are fetched from other nodes, and who reads them waits"
    ]
    scene.log.damages, scene.lacking = (), [16]
    assert scene.after(1) == ["shard 16: messages before offset 700 are fetched from other nodes"]
    scene.lacking = []
    assert scene.after(1) == []


def test_a_group_that_stores_slowly_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    for number in range(1, 10):
        scene.group.oldest_pending = number
        assert scene.after(0.9) == []


def test_a_wait_is_told_once_and_again_only_after_it_was_over_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    for is_serving in (False, True, False):
        scene.group.is_serving = is_serving
        for _ in range(20):
            scene.after(1)
    assert scene.events == ["shard 16: nobody leads it"]
    scene.group.is_serving = True
    scene.after(61)
    scene.group.is_serving = False
    scene.after(1)
    assert scene.events == ["shard 16: nobody leads it"] * 2


def test_a_write_that_held_up_the_node_itself_is_told_of_when_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.longest_s = 0.9
    scene.after(1)
    assert scene.events == []
    scene.longest_s = 5.04
    scene.after(1)
    assert scene.events == ["the disk of this node took 5.0 s for one write"]


def test_what_is_not_stored_says_on_whom_it_waits() -> None:
    heard = {"b", "c"}
    links = SimpleNamespace(is_heard=lambda replica: replica in heard)
    members = {one: SimpleNamespace(name=f"node-{one}") for one in "abc"}
    engine: Any = SimpleNamespace(
        replicas=SimpleNamespace(links=links),
        definitions=SimpleNamespace(state=SimpleNamespace(members=SimpleNamespace(members=members))),
    )
    leader = "a"
    config = SimpleNamespace(voters=("a", "b", "c"))
    group: Any = SimpleNamespace(replica="a", status=lambda: SimpleNamespace(leader=leader, config=config))
    events: Any = None
    readiness = Readiness(engine, events)

    assert "the disks or the links" in readiness._not_stored(group)
    heard.remove("c")
    assert readiness._not_stored(group).endswith("as it needs: node-c does not answer")
    leader = "b"
    assert readiness._not_stored(group) == "what was sent to its leader node-b is not stored yet"
    heard.clear()
    assert readiness._not_stored(group).endswith("not stored yet: node-b does not answer")
