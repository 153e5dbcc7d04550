"""A replica whose log began from a snapshot has the messages before it from the others: what is kept of them,
from whoever has it, and nothing that does not fit."""

import asyncio
from typing import cast

import pytest

from millrace.node.replicas import backfill
from millrace.node.replicas.backfill import Backfill
from millrace.node.replicas.replicas import Replicas
from millrace.replication.contract import Persist
from millrace.types import Index, Offset, Term
from unit.node.test_repair import LAST, LEADER, NUMBER, SMALL, A, B, Node
from unit.storage.making import stamps
from waiting import until_async

BEGINS_AT = 8


def begun_from_a_snapshot() -> Node:
    node = Node(A, snapshot_at=BEGINS_AT - 1)
    node.log.start_at(Index(BEGINS_AT), Term(1), Offset(BEGINS_AT - 1))
    node.log.write(Persist(number=0), [])
    node.log.log.append(Node(B).log.blocks(Index(BEGINS_AT), Index(LAST), 1 << 20))
    node.log.sync()
    return node


def everything(node: Node, first: int) -> list[bytes]:
    """The blocks from there on, from one segment after the other."""
    found: list[bytes] = []
    while first + len(found) <= LAST:
        blocks = node.log.blocks(Index(first + len(found)), Index(LAST), 1 << 20)
        found += [block.to_bytes() for block in blocks]
    return found


def filling(node: Node, kept_from: int | None) -> Backfill:
    return Backfill(cast(Replicas, node), lambda number: kept_from)


async def filled(node: Node, one: Backfill) -> int:
    """Where the log begins once nothing more comes."""
    one.tick()
    await until_async(lambda: one._task is None, "the end")
    return int(node.log.first_index())


def test_what_is_kept_is_fetched_and_nothing_before_it() -> None:
    async def scene() -> None:
        node, other = begun_from_a_snapshot(), Node(B)
        node.peers[B] = other
        one = filling(node, 3)
        assert one.lacking() == [NUMBER]
        assert await filled(node, one) == 4, "offset 3"
        assert one.lacking() == []
        expected = everything(other, 4)
        assert everything(node, 4) == expected
        node.restart()
        assert node.log.first_index() == 4
        assert everything(node, 4) == expected

    asyncio.run(scene())


def test_each_piece_comes_from_whoever_has_it() -> None:
    """The first one that is asked begins later than the other, in segments of one entry each."""

    async def scene() -> None:
        node = begun_from_a_snapshot()
        node.peers = {B: Node(B, settings=SMALL, begins_at=6), LEADER: Node(LEADER, settings=SMALL)}
        assert await filled(node, filling(node, 0)) == 1
        assert everything(node, 1) == everything(Node(B), 1)

    asyncio.run(scene())


def test_where_nobody_has_more_it_rests_and_goes_on_later() -> None:
    async def scene() -> None:
        node = begun_from_a_snapshot()
        one = filling(node, 0)
        assert await filled(node, one) == BEGINS_AT
        assert one.lacking() == [], "nobody waits for what nobody has"
        node.peers = {B: Node(B, settings=SMALL, begins_at=5)}
        assert await filled(node, one) == BEGINS_AT, "it rests"
        one._rests.clear()
        assert await filled(node, one) == 5, "all that there is"
        node.peers = {LEADER: Node(LEADER)}
        one._rests.clear()
        assert await filled(node, one) == 1

    asyncio.run(scene())


def test_a_group_without_messages_is_left_alone() -> None:
    async def scene() -> None:
        node = begun_from_a_snapshot()
        node.peers[B] = Node(B)
        assert await filled(node, filling(node, None)) == BEGINS_AT

    asyncio.run(scene())


def test_what_retention_let_go_before_does_not_go_again() -> None:
    """It removed entries without messages behind the snapshot; what comes in front of them has some."""

    async def scene() -> None:
        node = begun_from_a_snapshot()
        node.log.log.end_segment()
        node.log.trim_to = Index(LAST)
        node.log.write(Persist(number=0), [])
        assert node.log.first_index() == LAST + 1
        node.peers[B] = Node(B, settings=SMALL)
        assert await filled(node, filling(node, 3)) == 4
        node.log.write(Persist(number=0), [])
        assert node.log.first_index() == 4
        assert everything(node, 4) == everything(Node(B), 4)

    asyncio.run(scene())


def test_what_no_longer_fits_when_it_is_written_is_dropped() -> None:
    """The beginning moved meanwhile: by another snapshot, or by retention."""

    async def scene() -> None:
        node, other = begun_from_a_snapshot(), Node(B)
        node.log.front = other.log.blocks(Index(2), Index(6), 1 << 20)
        node.log.write(Persist(number=0), [])
        assert node.log.first_index() == BEGINS_AT
        assert not node.log.front
        forged = other.log.blocks(Index(6), Index(7), 1 << 20)
        node.log.front = [forged[0], forged[1].stamped(**{**stamps(forged[1]), "base_offset": 3})]
        node.log.write(Persist(number=0), [])
        assert node.log.first_index() == BEGINS_AT, "refused, and the node goes on"
        assert len(node.blocks()) == LAST - BEGINS_AT + 1

    asyncio.run(scene())


def test_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for follows the size of what came; what passes the bound is asked for again, in less."""
    monkeypatch.setattr(backfill, "_PIECE_BYTES", 1)
    monkeypatch.setattr(backfill, "_PIECE_BYTES_MAX", 2)

    async def scene() -> None:
        node = begun_from_a_snapshot()
        node.peers[B] = Node(B, settings=SMALL)
        assert await filled(node, filling(node, 0)) == 1
        assert len(node.log.log.segments()) >= BEGINS_AT - 1
        assert everything(node, 1) == everything(Node(B), 1)

    asyncio.run(scene())
