"""As leader a shard takes each keyed message and each released block once, and what its log refused again."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from millrace import Broker as Node
from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.broker.messages import message
from millrace.broker.messages.intake import Arrival
from millrace.broker.shards.producers import Verdict
from millrace.broker.shards.staging import Place, make_key
from millrace.broker.streams.stream import DEFAULT_SPEC, Stream
from millrace.kernels.blocks import Run
from millrace.limits import DEFAULT_LIMITS, PRODUCER_RANGES_MAX
from millrace.node.replicas.app import Pending
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.shards.batch import Batch
from millrace.node.shards.shard import Shard
from millrace.reasons import Reason
from millrace.replication.contract import Entry, EntryKind
from millrace.storage.block import Block, Kind, data_blocks, keyed_block
from millrace.types import Index, Term
from unit.node.stand_ins import Waiter, tell_waiters
from waiting import until_async

_PACKET = b"\x32\x06\0\1t\0\1x"


def make_shard() -> Shard:
    stream = Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,))
    broker = Broker(DEFAULT_LIMITS, AccessRules(()))
    return Shard(16, stream, broker, now_ms=lambda: 0, wall_us=lambda: 0, wake=lambda: None)


def keyed_messages(*sequences: int) -> Block:
    run = Run(packets=_PACKET * len(sequences), version=4, producer=b"p", sequences=sequences)
    (block,) = data_blocks([run])
    return block


def released(block: int) -> Block:
    return keyed_block([Run(packets=_PACKET, version=4)], make_key("w", 0, "a", block).encode())


def test_a_keyed_message_that_the_log_refused_is_not_a_repeat() -> None:
    """Offered again it is stored: it was never acknowledged, and must not be as a repeat of itself."""
    shard = make_shard()
    block = keyed_messages(1, 2)
    assert shard.admit(block) is block
    assert shard.admit(block).header.kind is Kind.CONTROL
    shard.withdraw(block)
    assert shard.admit(block) is block
    assert shard.admit(keyed_messages(2, 3)).header.count == 1


def test_a_block_of_which_messages_were_left_out_is_not_taken_for_the_one_that_was_offered() -> None:
    """It has the number and the time of the one that was offered. The node that offered that one must not
    write it in place of what the leader put into the log, or its log differs from all others."""
    offered = keyed_messages(1, 2, 3).timed(7).offered(origin=5, sequence=1)
    shard = make_shard()
    shard.admit(keyed_messages(2))
    admitted = shard.admit(offered)
    assert admitted.header.count == 2
    entry = admitted.offered(origin=5, sequence=1)
    group: Any = ReplicationGroup.__new__(ReplicationGroup)
    group._origin = 5
    group._pending = deque([Pending(offered, EntryKind.DATA, None, True)])

    def written(block: Block) -> Block | None:
        found: Block | None = group._parsed(
            Entry(term=Term(1), index=Index(1), kind=EntryKind.DATA, payload=block.to_bytes())
        )
        return found

    assert written(offered) is offered
    assert written(entry) is None


def test_a_released_block_is_taken_in_turn_and_once() -> None:
    shard = make_shard()
    for number in range(3):
        place = Place(index=number + 1, size_bytes=1, rows=1)
        shard.staging.state.stage(make_key("w", 0, "a", number), place, user="", time_us=0)
    first, second, third = map(released, range(3))
    assert shard.admit(second).header.kind is Kind.CONTROL
    assert shard.admit(first) is first and shard.admit(second) is second
    assert shard.admit(first).header.kind is Kind.CONTROL
    shard.withdraw(second)
    assert shard.admit(third).header.kind is Kind.CONTROL and shard.admit(second) is second
    # Another term: what is applied counts, and nothing else.
    shard.staging.state.release(make_key("w", 0, "a", 0))
    shard.begin_term()
    assert shard.admit(first).header.kind is Kind.CONTROL and shard.admit(second) is second


class Line:
    """In place of a replication group of several nodes: keeps what is proposed until the test applies it."""

    is_alone = False

    def __init__(self) -> None:
        self.entries: list[tuple[Block, Any]] = []

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        self.entries += zip(blocks, tokens, strict=True)
        return True


def keyed_arrival(broker: Broker, producer: bytes, sequence: int) -> Arrival:
    arrival = Arrival(None, broker.router.route("t"), 0, message.Run(_PACKET, 1, 1, False), "t", b"")
    arrival.producer, arrival.sequence, arrival.is_doubtful = producer, sequence, True
    return arrival


@pytest.mark.parametrize("is_alone", [False, True], ids=["by itself", "with others"])
@pytest.mark.parametrize("stored", [1, 5], ids=["not stored", "stored"])
def test_what_the_leader_leaves_out_is_acknowledged_only_if_it_is_stored(stored: int, is_alone: bool) -> None:
    """It was new when it was proposed. Others of its producer were quicker by another node: now it is among
    them, or below what is remembered of them. Where the group had one replica until now, those that go
    together are judged by the leader as well."""
    shard, line = make_shard(), Line()
    shard.group = line  # type: ignore[assignment]
    line.is_alone = is_alone
    late, other = keyed_arrival(shard._broker, b"p", 5), keyed_arrival(shard._broker, b"q", 1)
    answers: list[tuple[str, Reason | None]] = []
    late.waiter = Waiter(lambda offset: answers.append(("late", late.reason)))
    other.waiter = Waiter(lambda offset: answers.append(("other", other.reason)))
    shard.intake.arrivals = [late, other]
    shard.cut(0, False)
    if stored == 5:
        shard.producers.store(b"p", 5)
    else:
        for sequence in range(10, 12 + 2 * PRODUCER_RANGES_MAX, 2):
            shard.producers.store(b"p", sequence)
    stamp = {"shard": 16, "term": 1, "index": 1, "previous_term": 1, "base_time_us": 0}
    for block, token in line.entries:
        shard.apply(shard.admit(block).stamped(base_offset=shard.next_offset, **stamp), token)
    is_refused = Reason.IMPLEMENTATION_SPECIFIC if stored != 5 else None
    tell_waiters(shard._broker)
    assert answers == [("late", is_refused), ("other", None)]
    assert shard.next_offset == 1
    assert not shard._keys_in_flight


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_repeat_is_answered_as_the_message_that_the_leader_left_out(is_stored: bool) -> None:
    """It came to the same node while the first was on its way to the leader."""
    shard, line = make_shard(), Line()
    shard.group = line  # type: ignore[assignment]
    reasons: list[Reason | None] = []
    for _ in range(2):
        one = keyed_arrival(shard._broker, b"p", 5)
        one.waiter = Waiter(lambda offset, one=one: reasons.append(one.reason))
        shard.intake.arrivals = [one]
        shard.cut(0, False)
    for sequence in (5,) if is_stored else range(10, 12 + 2 * PRODUCER_RANGES_MAX, 2):
        shard.producers.store(b"p", sequence)
    (data, first), (answer, second) = line.entries
    assert answer.header.kind is Kind.CONTROL
    shard.apply(shard.admit(data), first)
    shard.apply(answer, second)
    tell_waiters(shard._broker)
    assert reasons == [None if is_stored else Reason.IMPLEMENTATION_SPECIFIC] * 2
    assert not shard._keys_in_flight


def test_a_leader_that_is_alone_judges_what_others_forwarded() -> None:
    """Members were removed with blocks still on the link, one of them a repeat of the other."""

    async def scene() -> None:
        async with Node() as node:
            shard = node.server.engine.shards[16]
            assert shard.group.is_alone
            for origin in (5, 6):
                shard.group.take(keyed_messages(1).offered(origin=origin, sequence=1), EntryKind.DATA)
            shard.group.take(keyed_messages(2).offered(origin=5, sequence=2), EntryKind.DATA)
            await until_async(lambda: shard.producers.judge(b"p", 2) is not Verdict.NEW, "all to be applied")
            assert shard.next_offset == 2

    asyncio.run(scene())


def test_what_its_own_node_knows_to_be_plain_is_admitted_unless_the_log_is_sealed() -> None:
    """Without keys there is nothing to judge; but a sealed log takes no more [rule 16]."""
    shard = make_shard()
    (block,) = data_blocks([Run(packets=_PACKET, version=4)])
    plain = Batch(shard, [], 1, 0)
    assert plain.is_plain and shard.admit(block, plain) is block
    shard.intake.is_sealed = True
    assert shard.admit(block, plain).header.kind is Kind.CONTROL
