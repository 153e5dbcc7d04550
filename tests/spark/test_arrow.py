"""Blocks to Arrow batches: the same rows that a loop over the messages gives."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kernels.blocks import Run
from millrace.storage.block import Block, BlockDamaged, Codec, Kind, data_blocks, opaque_block
from millrace.types import Message, Properties, Version

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'millrace[spark]'")
pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")

from pyspark.sql.pandas.types import to_arrow_schema  # noqa: E402

from millrace.spark.arrow import Choice, batches  # noqa: E402
from millrace.spark.offsets import Span  # noqa: E402
from millrace.spark.schema import SCHEMA  # noqa: E402
from millrace.wire.mqtt.codec import encode  # noqa: E402
from millrace.wire.mqtt.packets import Publish  # noqa: E402

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ARROW = to_arrow_schema(SCHEMA, timezone="UTC")
BASE_US = 1_800_000_000_000_000

described = st.builds(
    Properties,
    content_type=st.none() | st.sampled_from(["text/plain", "ünï"]),
    correlation_data=st.none() | st.binary(max_size=200),
    message_expiry_s=st.none() | st.integers(0, 2**32 - 1),
    user=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), max_size=2).map(tuple),
)
messages = st.builds(
    lambda topic, payload, qos, retain, properties, is_v5, publisher: (
        Message(
            topic=topic,
            payload=payload,
            qos=qos,
            retain=retain,
            properties=properties if is_v5 else Properties(),
        ),
        Version.MQTT_5 if is_v5 else Version.MQTT_3_1_1,
        publisher,
    ),
    st.sampled_from(["a", "a/b", "ünï/" + "x" * 200, "c"]),
    st.binary(max_size=40) | st.just(b"z" * 20_000),
    st.integers(0, 2),
    st.booleans(),
    described,
    st.booleans(),
    st.none() | st.sampled_from(["ann", "bob"]),
)


def to_block(rows: list[Any], base_offset: int, codec: Codec) -> Block:
    runs = [
        Run(
            packets=encode(Publish(message=message, packet_id=9 if message.qos else None), version),
            version=version,
            delta_us=position,
            publisher=publisher.encode() if publisher else None,
        )
        for position, (message, version, publisher) in enumerate(rows)
    ]
    (block,) = data_blocks(runs, codec)
    return block.stamped(
        shard=7, term=1, index=1, previous_term=0, base_offset=base_offset, base_time_us=BASE_US + base_offset
    )


def expected(message: Message, publisher: str | None, offset: int, time_us: int) -> dict[str, Any]:
    properties = message.properties
    more = {
        "payload_format": None,
        "message_expiry_s": properties.message_expiry_s,
        "response_topic": None,
        "correlation_data": properties.correlation_data,
        "user": [{"name": name, "value": value} for name, value in properties.user] or None,
    }
    return {
        "topic": message.topic,
        "shard": 7,
        "offset": offset,
        "timestamp": time_us,
        "payload": message.payload,
        "qos": message.qos,
        "retain": message.retain,
        "publisher": publisher,
        "content_type": properties.content_type,
        "properties": more if any(value is not None for value in more.values()) else None,
    }


def rows_of(found: list[Any]) -> list[dict[str, Any]]:
    rows = []
    for batch in found:
        assert batch.schema.equals(ARROW)
        batch.validate(full=True)
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        rows += [{**row, "timestamp": time_us} for row, time_us in zip(batch.to_pylist(), times, strict=True)]
    return rows


@settings(max_examples=150, deadline=None)
@given(
    blocks=st.lists(st.lists(messages, min_size=1, max_size=8), min_size=1, max_size=5),
    codec=st.sampled_from(list(Codec)),
    cut=st.tuples(st.integers(0, 12), st.integers(0, 45)),
    wanted=st.none() | st.sets(st.sampled_from([b"a", b"a/b", b"c"])),
    until=st.none() | st.integers(0, 45),
)
def test_batches_are_what_a_loop_gives(
    blocks: list[list[Any]],
    codec: Codec,
    cut: tuple[int, int],
    wanted: set[bytes] | None,
    until: int | None,
) -> None:
    """Any messages, in any blocks, cut anywhere, by topic and by time, compressed or not."""
    data, loop = b"", []
    offset = 100
    span = Span(shard=7, start=100 + cut[0], end=100 + cut[1])
    until_us = BASE_US + 100 + (10**6 if until is None else until)
    for rows in blocks:
        data += to_block(rows, offset, codec).to_bytes()
        for position, (message, _, publisher) in enumerate(rows):
            time_us = BASE_US + offset + position
            is_in = span.start <= offset + position < span.end and time_us <= until_us
            if is_in and (wanted is None or message.topic.encode() in wanted):
                loop.append(expected(message, publisher, offset + position, time_us))
        offset += len(rows)
    takes = None if wanted is None else wanted.__contains__
    choice = Choice(span=span, takes=takes, until_us=until_us)
    assert rows_of(list(batches(data, choice, ARROW))) == loop


def test_small_blocks_share_a_batch_and_large_ones_do_not() -> None:
    """A quiet stream has blocks of one message; a batch for each would cost more than its rows."""
    row = (Message(topic="a", payload=b"x" * 100), Version.MQTT_3_1_1, None)
    data = b"".join(to_block([row], offset, Codec.NONE).to_bytes() for offset in range(500))
    found = list(batches(data, Choice(span=Span(shard=7, start=0, end=500)), ARROW))
    assert [batch.num_rows for batch in found] == [500]
    large = (Message(topic="a", payload=b"x" * (5 << 20)), Version.MQTT_3_1_1, None)
    data = b"".join(to_block([large], offset, Codec.NONE).to_bytes() for offset in range(3))
    found = list(batches(data, Choice(span=Span(shard=7, start=0, end=3)), ARROW))
    assert [batch.num_rows for batch in found] == [1, 1, 1]


def test_a_dictionary_is_that_of_its_own_block() -> None:
    """Blocks in a row often have one dictionary, which is read once; another one in between is read again."""
    names = [("a", "b"), ("a", "b"), ("ab",), ("a", "b"), ("b", "a"), ("b", "a")]
    data = b""
    for number, topics in enumerate(names):
        rows = [(Message(topic=topic, payload=b""), Version.MQTT_3_1_1, "ann") for topic in topics]
        data += to_block(rows, 2 * number, Codec.NONE).to_bytes()
    whole = Span(shard=7, start=0, end=2 * len(names))
    found = rows_of(list(batches(data, Choice(span=whole), ARROW)))
    assert [row["topic"] for row in found] == [topic for topics in names for topic in topics]
    assert {row["publisher"] for row in found} == {"ann"}
    found = rows_of(list(batches(data, Choice(span=whole, takes={b"a"}.__contains__), ARROW)))
    assert [row["offset"] for row in found] == [0, 2, 6, 9, 11]


def test_words_count_for_the_size_of_a_batch() -> None:
    """A client id is in a block once and in a batch once for each row; edges in Arrow have 31 bits."""
    rows = [(Message(topic="a", payload=b""), Version.MQTT_3_1_1, "n" * 60_000)] * 100
    data = b"".join(to_block(rows, 100 * number, Codec.NONE).to_bytes() for number in range(3))
    found = list(batches(data, Choice(span=Span(shard=7, start=0, end=300)), ARROW))
    assert [batch.num_rows for batch in found] == [100, 100, 100]


def test_blocks_without_messages_are_passed_over_and_damage_is_not() -> None:
    row = (Message(topic="a", payload=b"x"), Version.MQTT_3_1_1, None)
    whole = to_block([row], 0, Codec.NONE).to_bytes()
    choice = Choice(span=Span(shard=7, start=0, end=1))
    data = opaque_block(Kind.NOOP).to_bytes() + whole
    assert [batch.num_rows for batch in batches(data, choice, ARROW)] == [1]
    for position in (0, 50, len(whole) - 12):
        broken = bytearray(whole)
        broken[position] ^= 1
        with pytest.raises(BlockDamaged):
            list(batches(bytes(broken), choice, ARROW))
    with pytest.raises(BlockDamaged):
        list(batches(whole[:-8], choice, ARROW))
