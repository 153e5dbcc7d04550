"""Words on retained topics that a log did not take: they are said again, and nothing passes them."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from millrace.broker.access import AccessRules
from millrace.broker.entries.meta import PutStream
from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream, StreamSpec
from millrace.limits import DEFAULT_LIMITS
from millrace.node import config as settings
from millrace.node.server import Server
from millrace.node.shards.control import entries_of
from millrace.node.shards.shard import CarriedOverRetained, Shard
from millrace.node.surroundings import SYSTEM
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Kind
from unit.node.test_start_over import TIMEOUT_S, Crowded

RUN = Run(b"\x32\x06\0\1t\0\1x", 1, 1, False, True)


def _kind(block: Block) -> str:
    return " ".join(type(entry).__name__ for entry in entries_of(block))


class Line:
    """In place of a replication group: keeps what is proposed until the test applies or loses it, and has
    room for so many more."""

    is_alone = is_serving = True

    def __init__(self) -> None:
        self.room = 10
        self.entries: list[tuple[Block, Any]] = []

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        # As others' entries come and go, there may be room for a smaller one that comes later.
        self.room -= 1
        if self.room == 0:
            return False
        self.entries += zip(blocks, tokens, strict=True)
        return True

    def said(self) -> list[str]:
        return [_kind(block) if block.header.kind is Kind.CONTROL else "message" for block, _ in self.entries]


def shard_on(line: Line) -> Shard:
    broker = Broker(DEFAULT_LIMITS, AccessRules(()))
    stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,))
    shard = Shard(16, stream, broker, now_ms=lambda: 0, wall_us=lambda: 0, wake=lambda: None)
    shard.group = line  # type: ignore[assignment]
    return shard


def publish(shard: Shard) -> None:
    shard.intake.arrivals.append(Arrival(None, shard._broker.router.route("t"), 0, RUN, "t", b""))
    shard.cut(0, False)


def test_no_retained_message_passes_the_word_on_its_generation() -> None:
    """It would carry the generation before, and lose against what is older."""
    line = Line()
    shard = shard_on(line)
    shard.retained.routing_generation = lambda: 4
    line.room = 1
    publish(shard)
    assert line.said() == []
    publish(shard)
    assert line.said() == ["Generation", "message"]


def test_an_inherited_value_is_said_again_until_the_log_has_it() -> None:
    line = Line()
    shard = shard_on(line)
    # It has all that was stored before, so no marker is asked for.
    shard.is_caught_up = True
    line.room = 1
    shard.inherit([CarriedOverRetained("t", RUN, 3)])
    assert line.said() == [], "there was no room"
    shard.say_again()
    assert line.said() == ["Generation Retain"]
    ((_, token),) = line.entries
    line.entries.clear()
    line.is_serving = False
    shard.lost(token)
    shard.say_again()
    assert line.said() == [], "nobody leads"
    line.is_serving = True
    shard.say_again()
    assert line.said() == ["Generation Retain"]
    ((block, token),) = line.entries
    shard.apply(block, token)
    shard.say_again()
    assert line.said() == ["Generation Retain"]
    assert shard._broker.retained.get("t") is not None


def test_an_inherited_value_that_a_snapshot_has_is_not_said_again() -> None:
    line = Line()
    shard = shard_on(line)
    shard.inherit([CarriedOverRetained("t", RUN, 3)])
    ((_, token),) = line.entries
    line.entries.clear()
    shard.covered(token)
    shard.say_again()
    assert line.said() == []


async def started_without_room(data: Path) -> None:
    disk = Crowded()
    given = [f"node.data={data}", "listeners.mqtt=127.0.0.1:0", "listeners.http="]

    def make() -> Server:
        return Server(settings.load(None, {}, given), surroundings=replace(SYSTEM, make_disk=lambda: disk))

    server = make()
    await server.start()
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
        # As another node told it, before this one served.
        known = [("line/1", Run(b"\x32\x0b\0\6line/1\0\1x", 1, 1, False, True), "left")]
        engine.interest.streams_changed = lambda: known  # type: ignore[method-assign]
        engine.opening.move_retained()
        disk.is_full = False
        async with asyncio.timeout(TIMEOUT_S):
            while number not in engine.shards or "line/1" not in engine.shards[number].retained:
                await asyncio.sleep(0)
    finally:
        await server.stop()


def test_a_value_is_inherited_by_a_log_that_has_no_room_to_be_opened_yet(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(started_without_room(tmp_path / "data"), 3 * TIMEOUT_S))
