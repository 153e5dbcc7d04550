"""Shared groups in a log that is newer than they are: its first messages belong to somebody."""

from collections.abc import Sequence
from typing import Any

import pytest

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream
from millrace.limits import DEFAULT_LIMITS
from millrace.node.shards.control import entries_of
from millrace.node.shards.shard import Shard
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Kind

G = "$share/team/#"
PACKET = b"\x32\x06\0\1t\0\1x"


class Line:
    """In place of a replication group: keeps what is proposed, in order, until the test applies it."""

    is_alone = True

    def __init__(self, room: int = 100) -> None:
        self.room = room
        self.entries: list[tuple[Block, Any]] = []

    def propose(
        self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind, *, is_judged: bool = False
    ) -> bool:
        if len(self.entries) + len(blocks) > self.room:
            return False
        self.entries += zip(blocks, tokens, strict=True)
        return True


def shards(room: int = 100) -> tuple[Shard, Shard, Line]:
    """An older log, a new one, and what goes into the new one."""
    broker, line = Broker(DEFAULT_LIMITS, AccessRules(())), Line(room)
    broker.node = "here"
    made = {}
    for number in (16, 17):
        stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(number,))
        made[number] = Shard(number, stream, broker, now_ms=lambda: 0, wall_us=lambda: 0, wake=lambda: None)
    new = made[17]
    new.others = made
    new.group = line  # type: ignore[assignment]
    return made[16], new, line


def publish(shard: Shard) -> None:
    route = shard._broker.router.route("t")
    shard.intake.arrivals.append(Arrival(None, route, 0, Run(PACKET, 1, 1, False, False), None, b""))
    shard.cut(0, False)


def commit(shard: Shard, line: Line) -> None:
    """Apply what was proposed, each at the next offset."""
    entries, line.entries = line.entries, []
    for block, token in entries:
        stamp = {"shard": shard.number, "term": 1, "index": 1, "previous_term": 1, "base_time_us": 0}
        shard.apply(block.stamped(base_offset=shard.next_offset, **stamp), token)


def _kind(block: Block) -> str:
    (entry,) = entries_of(block)
    return type(entry).__name__


def kinds(line: Line) -> list[str]:
    return ["data" if block.header.kind is Kind.DATA else _kind(block) for block, _ in line.entries]


def test_groups_of_older_logs_are_named_before_the_first_message() -> None:
    """The node with the members falls before it spoke in the new log: its next run owes what came."""
    old, new, line = shards()
    old.work_division.put(G, "there", 1, True, offset=40)
    publish(new)
    publish(new)
    assert kinds(line) == ["Introduce", "data", "data"]
    commit(new, line)
    assert new.next_offset == 2 and new.work_division.known(G, "there") == (1, True)
    (news,) = new.work_division.begin("there", offset=2)
    assert news.granted["there"] == [(0, 2, "there")]


def test_a_log_that_knows_the_groups_is_told_nothing() -> None:
    old, new, line = shards()
    for shard in (old, new):
        shard.work_division.put(G, "there", 1, True, offset=0)
    publish(new)
    assert kinds(line) == ["data"]


@pytest.mark.parametrize("is_given_up", [False, True])
def test_what_could_not_be_said_is_said_before_the_next_message(is_given_up: bool) -> None:
    old, new, line = shards(room=100 if is_given_up else 0)
    old.work_division.put(G, "there", 1, True, offset=0)
    publish(new)
    for _, token in line.entries:
        new.lost(token)
    line.room, line.entries = 100, []
    publish(new)
    assert kinds(line) == ["Introduce", "data"]
