"""The byte loops of the block: what goes in as packets comes out as columns that point at the same bytes."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kernels.blocks import (
    FLAG_RETAIN,
    NO_NAME,
    Columns,
    Run,
    build_body,
    check_columns,
    is_plain,
    packet_spans,
    read_topics,
    rows_between,
    select_rows,
    split_columns,
)
from unit.storage.making import publish, varint

TOPICS = st.sampled_from([b"a", b"a/b", b"site/1/temp", "größe/µ".encode(), b"x" * 200])


@st.composite
def messages(draw: st.DrawFn, version: int) -> tuple[bytes, bytes, bytes, int, bool]:
    """(packet, topic, payload, qos, retain)"""
    topic, qos, retain = draw(TOPICS), draw(st.integers(0, 2)), draw(st.booleans())
    payload = draw(st.one_of(st.binary(max_size=40), st.integers(100, 300).map(bytes)))
    properties = b""
    if version == 5:
        properties = draw(st.sampled_from([b"", b"\x01\x01", b"\x26\x00\x01k\x00" + b"\x85" + b"v" * 133]))
    packet_id = draw(st.integers(1, 65_535))
    packet = publish(
        topic,
        payload,
        qos=qos,
        retain=retain,
        version=version,
        packet_id=packet_id,
        properties=properties,
    )
    return packet, topic, payload, qos, retain


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Run], list[tuple[bytes, ...]]]:
    """Runs and, for each message of all of them, what a reader must find."""
    made: list[Run] = []
    expected = []
    for _ in range(draw(st.integers(1, 4))):
        version = draw(st.sampled_from([3, 4, 5]))
        few = draw(st.lists(messages(version), min_size=1, max_size=6))
        # Repeats make the equal neighbours that the kernel takes as one.
        several = [message for message in few for _ in range(draw(st.integers(1, 4)))]
        delta = draw(st.integers(0, 2**32 - 1))
        publisher = draw(st.sampled_from([None, b"alice", b"bob"]))
        producer = draw(st.sampled_from([None, b"bob", b"p-7"]))
        sequences = [draw(st.integers(0, 2**64 - 1)) for _ in several] if producer else []
        made.append(
            Run(
                packets=b"".join(message[0] for message in several),
                version=version,
                delta_us=delta,
                publisher=publisher,
                producer=producer,
                sequences=sequences,
            )
        )
        for n, (packet, topic, payload, qos, retain) in enumerate(several):
            key = (producer, sequences[n]) if producer else (None, 0)
            expected.append((packet, topic, payload, qos, retain, version, delta, publisher, *key))
    return made, expected


def built(made: list[Run]) -> tuple[tuple[bytes, ...], Columns]:
    plain, coded, count, topic_count = build_body(made)
    topics = read_topics(plain, topic_count)
    columns = split_columns(plain, b"".join(coded), count)
    check_columns(columns, topic_count)
    return topics, columns


@given(runs())
@settings(max_examples=60, deadline=None)
def test_columns_point_at_what_was_published(made: tuple[list[Run], list[tuple[bytes, ...]]]) -> None:
    """Every field of every message is found again through the columns, and the packets are untouched."""
    topics, columns = built(made[0])
    assert bytes(columns.packets) == b"".join(run.packets for run in made[0])
    assert len(set(topics)) == len(topics)
    has_attributes = len(columns.publisher_ids) > 0
    found = []
    for row in range(len(columns.flags)):
        start, payload = columns.packet_positions[row], columns.payload_positions[row]
        flags = columns.flags[row]
        publisher = columns.publisher_ids[row] if has_attributes else NO_NAME
        producer = columns.producer_ids[row] if has_attributes else NO_NAME
        found.append(
            (
                bytes(columns.packets[start : start + columns.packet_sizes[row]]),
                topics[columns.topic_ids[row]],
                bytes(columns.packets[payload : payload + columns.payload_sizes[row]]),
                flags & 3,
                bool(flags & 4),
                flags >> 4,
                columns.deltas_us[row],
                None if publisher == NO_NAME else columns.names[publisher],
                None if producer == NO_NAME else columns.names[producer],
                columns.sequences[row] if has_attributes else 0,
            )
        )
    assert found == made[1]


def test_no_attributes_cost_no_bytes() -> None:
    packets = publish(b"a", b"x") * 8
    without = build_body([Run(packets, 4)])
    named = build_body([Run(packets, 4, publisher=b"p")])
    assert len(b"".join(named[1])) - len(b"".join(without[1])) == 8 * (4 + 4 + 8) + 8 + 8


def test_a_given_topic_stands_for_packets_that_have_none() -> None:
    """A topic alias leaves the topic of the packet empty; the dictionary has the real one."""
    packet = publish(b"", b"x", version=5, properties=b"\x23\x00\x01")
    topics, columns = built([Run(packet * 2, 5, topic=b"real/topic")])
    assert topics == (b"real/topic",)
    assert bytes(columns.packets) == packet * 2
    with pytest.raises(ValueError, match="topic"):
        build_body([Run(packet, 5)])


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_broken_runs_are_refused(data: st.DataObject) -> None:
    """A run that is cut anywhere but between packets is refused, never misread."""
    version = data.draw(st.sampled_from([4, 5]))
    several = data.draw(st.lists(messages(version), min_size=1, max_size=4))
    packets = b"".join(message[0] for message in several)
    borders, at = {0}, 0
    for message in several:
        at += len(message[0])
        borders.add(at)
    cut = data.draw(st.integers(0, len(packets)).filter(lambda n: n not in borders))
    with pytest.raises(ValueError, match="whole PUBLISH"):
        build_body([Run(packets[:cut], version)])


@pytest.mark.parametrize(
    "packets",
    [
        b"\xc0\x00",
        b"\x30\x80\x80\x80\x80\x01",
        b"\x30\x03\x00\x05a",
        b"\x32\x03\x00\x01a",
        publish(b"a", b"")[:-1] + b"a\x40\x02\x00\x01",
    ],
)
def test_what_is_not_a_publish_is_refused(packets: bytes) -> None:
    with pytest.raises(ValueError, match="whole PUBLISH"):
        build_body([Run(packets, 4)])


def test_numbers_beyond_their_column_are_refused() -> None:
    packet = publish(b"a")
    with pytest.raises(ValueError, match="delta"):
        build_body([Run(packet, 4, delta_us=2**32)])
    with pytest.raises(ValueError, match="sequences"):
        build_body([Run(packet, 4, producer=b"p", sequences=[2**64])])
    with pytest.raises(ValueError, match="sequences"):
        build_body([Run(packet, 4, producer=b"p", sequences=[1, 2])])


@given(runs(), st.data())
@settings(max_examples=60, deadline=None)
def test_changed_columns_are_noticed(
    made: tuple[list[Run], list[tuple[bytes, ...]]], data: st.DataObject
) -> None:
    """`check_columns` lets nothing through that would make a gather read outside the packets."""
    plain, coded, count, topic_count = build_body(made[0])
    body = bytearray(b"".join(coded))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        columns = split_columns(plain, bytes(body), count)
        check_columns(columns, topic_count)
    except ValueError:
        return
    size = len(columns.packets)
    ends = zip(columns.payload_positions, columns.payload_sizes, strict=True)
    assert all(position + length <= size for position, length in ends)
    ends = zip(columns.packet_positions, columns.packet_sizes, strict=True)
    assert all(position + length <= size for position, length in ends)
    assert max(columns.topic_ids) < topic_count
    for ids in (columns.publisher_ids, columns.producer_ids):
        assert all(name < len(columns.names) or name == NO_NAME for name in ids)


@pytest.mark.parametrize("topic_count", [1, 5, 256, 257, 1000])
def test_rows_of_wanted_topics(topic_count: int) -> None:
    """Both ways of selecting give exactly the rows of the wanted topics, as spans of neighbours."""
    order = [n * 7 % topic_count for n in range(3 * topic_count)]
    packets = b"".join(publish(f"t/{n}".encode(), b"x" * (n % 9)) for n in order)
    topics, columns = built([Run(packets, 4)])
    wanted = bytes(int(topic.endswith((b"1", b"2", b"3"))) for topic in topics)
    first, end = topic_count // 3, 3 * topic_count - 1
    spans = select_rows(columns.topic_ids, wanted, first, end)
    rows = [row for start, stop in spans for row in range(start, stop)]
    assert rows == [row for row in range(first, end) if wanted[columns.topic_ids[row]]]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans))
    sent = [bytes(columns.packets[start:stop]) for start, stop in packet_spans(columns, spans)]
    assert b"".join(sent) == b"".join(
        publish(topics[columns.topic_ids[row]], b"x" * (order[row] % 9)) for row in rows
    )


@pytest.mark.parametrize(
    ("first", "end", "rows"),
    [
        (0, 100, (0, 5)),
        (10, 15, (0, 5)),
        (12, 13, (2, 3)),
        (15, 20, (5, 5)),
        (0, 10, (0, 0)),
        (14, 12, (4, 4)),
    ],
)
def test_rows_between_offsets(first: int, end: int, rows: tuple[int, int]) -> None:
    assert rows_between(10, 5, first, end) == rows


def test_parts_of_another_length_are_refused() -> None:
    plain, coded, count, topic_count = build_body([Run(publish(b"a", b"x") * 3, 4, publisher=b"me")])
    body = b"".join(coded)
    with pytest.raises(ValueError, match="bytes, not"):
        split_columns(plain, body + b"x", count)
    with pytest.raises(ValueError, match="longer than"):
        split_columns(plain, body[:60], count)
    with pytest.raises(ValueError, match="longer than"):
        read_topics(plain[:-8], topic_count)
    with pytest.raises(ValueError, match="shorter"):
        read_topics(plain[:20], topic_count)


def test_varint_helper_agrees_with_long_packets() -> None:
    """A packet with a length of three bytes is walked over like a short one."""
    packets = publish(b"big", bytes(20_000)) + publish(b"small", b"s")
    topics, columns = built([Run(packets, 4)])
    assert topics == (b"big", b"small")
    assert columns.payload_sizes.tolist() == [20_000, 1]
    assert len(varint(20_005)) == 3


@settings(max_examples=300)
@given(runs(), st.sampled_from([b"", b"", b"a key"]))
def test_what_is_told_to_be_plain_has_neither_keys_nor_retained_messages(
    made: tuple[list[Run], list[tuple[bytes, ...]]], key: bytes
) -> None:
    """As a look at every message finds it, and nothing else is told so."""
    plain, coded, count, _ = build_body(made[0], key)
    columns = split_columns(plain, b"".join(coded), count)
    has_producer = any(name != NO_NAME for name in columns.producer_ids)
    is_retained = any(flags & FLAG_RETAIN for flags in columns.flags)
    body = b"".join((plain, *coded))
    assert is_plain(body, len(plain), count) == (not has_producer and not is_retained and not key)


def test_a_body_that_is_cut_is_not_told_to_be_plain() -> None:
    plain, coded, count, _ = build_body([Run(publish(b"t", b"x"), 4, publisher=b"alice")])
    body = b"".join((plain, *coded))
    assert is_plain(body, len(plain), count)
    flags_at = len(plain) + 6 * 8
    assert not is_plain(body[:flags_at], len(plain), count)
    assert not is_plain(body[: flags_at + 16], len(plain), count)
    assert not is_plain(body, 8, count)
