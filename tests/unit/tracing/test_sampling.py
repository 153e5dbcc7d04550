"""Which messages of a block are traced: by what their publishers say, and by their offsets."""

from millrace.kernels.blocks import Run
from millrace.storage.block import Block, Codec, data_blocks, keyed_block
from millrace.tracing.sampling import is_traceparent, traced_messages
from millrace.types import Properties
from millrace.wire.mqtt.codec import encode_properties, encode_publish

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"


def packet(payload: bytes = b"x", traceparent: str | None = None, topic: bytes = b"t/1") -> bytes:
    user = (("a", "b"), ("traceparent", traceparent)) if traceparent is not None else ()
    return encode_publish(topic, payload, 0x32, 7, encode_properties(Properties(user=user)))


def block(*packets: bytes, version: int = 5, base_offset: int = 0, codec: Codec = Codec.NONE) -> Block:
    run = Run(packets=b"".join(packets), version=version, publisher=b"meter")
    (made,) = data_blocks([run], codec)
    return made.stamped(
        shard=3, term=1, index=1, previous_term=0, base_offset=base_offset, base_time_us=1_700_000_000_000_000
    )


def offsets(made: Block, one_in: int = 0, most: int = 100) -> list[int]:
    return [message.offset for message in traced_messages(made, 3, one_in, most)]


def test_a_publisher_asks_for_a_trace() -> None:
    """Its trace goes on; who publishes, where, and what for is in the block."""
    made = block(packet(), packet(b"hello", SAMPLED, b"t/2"), packet(), base_offset=10)
    (message,) = traced_messages(made, 3, 0, 100)
    assert message.offset == 11 and message.topic == "t/2" and message.publisher == "meter"
    assert (message.qos, message.payload_bytes) == (1, 5)
    assert f"{message.trace_id:032x}" == TRACE and f"{message.parent_id:016x}" == SPAN


def test_a_publisher_that_does_not_sample_is_left_alone() -> None:
    made = block(packet(traceparent=UNSAMPLED), packet(traceparent=SAMPLED), packet())
    assert offsets(made) == [1]
    assert offsets(made, one_in=1) == [1, 2]


def test_the_same_bytes_in_a_payload_say_nothing() -> None:
    inside = encode_properties(Properties(user=(("traceparent", SAMPLED),)))
    assert offsets(block(packet(inside))) == []
    # Packets of MQTT 3.1.1 have no properties: what looks like one is payload.
    plain = encode_publish(b"t/1", inside, 0x32, 7, b"")
    assert offsets(block(plain, version=4)) == []


def test_what_is_no_traceparent_is_passed_over() -> None:
    for wrong in (
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        "",
    ):
        assert offsets(block(packet(traceparent=wrong))) == [], wrong
        assert not is_traceparent(wrong)
    assert is_traceparent(SAMPLED) and is_traceparent(UNSAMPLED) and not is_traceparent("é" * 55)


def test_one_in_so_many_by_offset() -> None:
    """The same messages in whatever blocks they are, so that each reader finds the same."""
    packets = [packet()] * 25
    whole = offsets(block(*packets, base_offset=95), one_in=10)
    parts = offsets(block(*packets[:7], base_offset=95), one_in=10)
    parts += offsets(block(*packets[7:], base_offset=102), one_in=10)
    assert whole == parts == [100, 110]
    assert offsets(block(packet(), base_offset=1), one_in=10) == []


def test_ids_follow_from_the_place_of_a_message() -> None:
    """Every node and Spark know them without being told; another message has others."""
    first = traced_messages(block(packet(), packet(), base_offset=5), 3, 1, 100)
    again = traced_messages(block(packet(), base_offset=6), 3, 1, 100)
    assert (first[1].trace_id, first[1].receive_id) == (again[0].trace_id, again[0].receive_id)
    other = traced_messages(block(packet(), base_offset=6), 4, 1, 100)
    ids = {(one.trace_id, one.receive_id) for one in (*first, *other)}
    assert len(ids) == 3 and all(one.parent_id == 0 for one in first)


def test_a_compressed_block_is_looked_into() -> None:
    made = block(*[packet(b"same " * 20)] * 20, packet(traceparent=SAMPLED), codec=Codec.ZLIB)
    assert made.header.codec is Codec.ZLIB
    assert offsets(made) == [20]


def test_no_more_than_there_is_room_for() -> None:
    made = block(*[packet(traceparent=SAMPLED)] * 10)
    assert offsets(made, most=3) == [0, 1, 2]
    assert offsets(made, one_in=1, most=3) == [0, 1, 2]


def test_what_spark_wrote_is_left_out() -> None:
    run = Run(packets=packet(traceparent=SAMPLED), version=5)
    assert offsets(keyed_block([run], b"writer"), one_in=1) == []
