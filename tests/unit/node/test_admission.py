"""As leader a shard takes each keyed message and each released block once, and what its log refused again."""

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.broker.staging import Place, make_key
from millrace.broker.stream import DEFAULT_SPEC, Stream
from millrace.kernels.blocks import Run
from millrace.limits import DEFAULT_LIMITS
from millrace.node.shard import Shard
from millrace.storage.block import Block, Kind, data_blocks, keyed_block

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
