"""What the kernels promise, shown on the Python ones: spans, bounds, what is left to the codec, rewriting."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kernels.pure import ack_run, acks, packet_ids, reframe, scan, skip
from millrace.types import Message, Properties
from millrace.wire.mqtt.codec import decode, encode, split
from millrace.wire.mqtt.packets import Publish
from unit.kernels.kernel_inputs import (
    BAD_PROPERTIES,
    BYTES_MAX,
    GOOD_PROPERTIES,
    ROUTE_A,
    ROUTE_B,
    ROUTES,
    Inputs,
    acknowledgement,
    publish,
    varint,
)

LONG = b"long/" + b"x" * 140


def spans_of(data: bytes, v5: bool = False, routes: dict[bytes, Any] = ROUTES) -> tuple[int, list[Any]]:
    pos, flat = scan(data, 0, routes, v5, BYTES_MAX)
    return pos, [tuple(flat[at : at + 5]) for at in range(0, len(flat), 5)]


def packets_of(data: bytes, version: int) -> list[Any]:
    """The codec's reading of whole packets laid end to end."""
    out, pos = [], 0
    while pos < len(data):
        found = split(data, pos)
        assert found is not None
        first_byte, start, pos = found
        out.append(decode(first_byte, data[start:pos], version))
    return out


class TestScan:
    def test_nothing_gives_nothing(self) -> None:
        assert spans_of(b"") == (0, [])

    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_one_packet_is_one_span(self, qos: int) -> None:
        data = publish(b"a", b"payload", qos=qos, packet_id=7)
        assert spans_of(data) == (len(data), [(0x30 | qos << 1, ROUTE_A, 0, len(data), 1)])

    def test_neighbours_with_one_route_join_whatever_their_topics_and_sizes(self) -> None:
        data = publish(b"a", b"1") + publish(b"b", b"22") + publish(b"a", b"") * 3
        assert spans_of(data) == (len(data), [(0x30, ROUTE_A, 0, len(data), 5)])

    def test_another_route_or_qos_begins_a_span(self) -> None:
        parts = [publish(b"a"), publish(LONG), publish(b"b", qos=1), publish(b"b", qos=2)]
        ends = [sum(map(len, parts[: n + 1])) for n in range(4)]
        assert spans_of(b"".join(parts)) == (
            ends[3],
            [
                (0x30, ROUTE_A, 0, ends[0], 1),
                (0x30, ROUTE_B, ends[0], ends[1], 1),
                (0x32, ROUTE_A, ends[1], ends[2], 1),
                (0x34, ROUTE_A, ends[2], ends[3], 1),
            ],
        )

    @pytest.mark.parametrize("first_byte", [0x40, 0x50, 0x62, 0x70])
    def test_acknowledgements_join_while_ids_count_up(self, first_byte: int) -> None:
        data = b"".join(acknowledgement(first_byte, n) for n in (4, 5, 6, 8, 8, 65_535, 1))
        assert spans_of(data) == (
            28,
            [
                (first_byte, 4, 0, 12, 3),
                (first_byte, 8, 12, 16, 1),
                (first_byte, 8, 16, 20, 1),
                (first_byte, 65_535, 20, 24, 1),
                (first_byte, 1, 24, 28, 1),
            ],
        )

    def test_acknowledgements_of_two_types_do_not_join(self) -> None:
        data = acknowledgement(0x40, 1) + acknowledgement(0x50, 2)
        assert spans_of(data)[1] == [(0x40, 1, 0, 4, 1), (0x50, 2, 4, 8, 1)]

    def test_scan_begins_where_it_is_told(self) -> None:
        data = b"\xc0\x00" + publish(b"a")
        assert scan(data, 2, ROUTES, False, BYTES_MAX) == (len(data), [0x30, ROUTE_A, 2, len(data), 1])

    @pytest.mark.parametrize(
        "unusual",
        [
            publish(b"unknown"),
            publish(b"a", flags=1),
            publish(b"a", qos=1, flags=8),
            publish(b"a", qos=3),
            publish(b"a", qos=1, packet_id=0),
            publish(b"a", padding=1),
            b"\xc0\x00",
            b"\xe0\x00",
            b"\x40\x02\x00\x00",
            b"\x40\x03\x00\x01\x10",
            b"\x60\x02\x00\x01",
            b"\x30\x00",
            b"\x30\x02\x00\x01",
            b"\x32\x03\x00\x01a",
            b"\x32\x04\x00\x01a\x01",
            b"\x30\xff\xff\xff\xff\x01a",
        ],
        ids=lambda data: data[:8].hex(),
    )
    def test_what_needs_a_decision_is_left_to_the_codec(self, unusual: bytes) -> None:
        """Its position is returned, and what stood before it is not lost."""
        before = publish(b"a", b"before")
        assert spans_of(before + unusual + before) == (len(before), [(0x30, ROUTE_A, 0, len(before), 1)])

    @pytest.mark.parametrize("qos", [0, 1])
    @pytest.mark.parametrize("v5", [False, True])
    def test_an_incomplete_packet_waits_at_every_cut(self, qos: int, v5: bool) -> None:
        whole = publish(LONG, b"p" * 20, qos=qos, properties=b"\x01\x01" if v5 else None)
        for size in range(len(whole)):
            pos, spans = spans_of(whole + whole[:size], v5)
            assert (pos, len(spans), spans[0][4]) == (len(whole), 1, 1)

    def test_an_incomplete_acknowledgement_waits(self) -> None:
        data = acknowledgement(0x40, 1)
        for size in range(4):
            assert spans_of(data + data[:size]) == (4, [(0x40, 1, 0, 4, 1)])

    def test_a_packet_above_the_bound_is_left(self) -> None:
        data = publish(b"a", b"x" * 50)
        assert scan(data, 0, ROUTES, False, len(data))[0] == len(data)
        assert scan(data, 0, ROUTES, False, len(data) - 1) == (0, [])

    def test_equal_neighbours_are_checked_like_the_first(self) -> None:
        """The short cut for equal packets still sees a packet id of 0 and a cut packet."""
        good, bad = publish(b"a", b"x", qos=1, packet_id=9), publish(b"a", b"x", qos=1, packet_id=0)
        assert spans_of(good * 3 + bad + good) == (len(good) * 3, [(0x32, ROUTE_A, 0, len(good) * 3, 3)])
        assert spans_of(good * 3 + good[:-1])[0] == len(good) * 3

    @pytest.mark.parametrize("block", GOOD_PROPERTIES, ids=lambda block: block.hex())
    def test_properties_that_only_pass_through_stay_in_the_span(self, block: bytes) -> None:
        data = publish(b"a", b"x", properties=block)
        assert spans_of(data, v5=True)[0] == len(data)

    @pytest.mark.parametrize("block", BAD_PROPERTIES, ids=lambda block: block.hex())
    def test_properties_the_broker_acts_on_and_broken_ones_are_left(self, block: bytes) -> None:
        assert spans_of(publish(b"a", b"x", properties=block), v5=True) == (0, [])

    @pytest.mark.parametrize("block", [b"\x01\x00\x01\x00", b"\x03\0\0\x03\0\0", b"\x09\0\0\x09\0\0"])
    def test_a_repeated_property_is_left(self, block: bytes) -> None:
        assert spans_of(publish(b"a", properties=block), v5=True) == (0, [])

    def test_a_property_length_longer_than_needed_is_left(self) -> None:
        """Bytes of a span are forwarded as they are, and a sender's lengths are minimal [MQTT-1.5.5-1]."""
        body = b"\x00\x01a" + varint(2, padding=1) + b"\x01\x00"
        assert spans_of(bytes((0x30, len(body))) + body, v5=True) == (0, [])

    def test_a_property_block_that_runs_past_its_packet_is_left(self) -> None:
        body = b"\x00\x01a\x05\x01\x00"
        assert spans_of(bytes((0x30, len(body))) + body, v5=True) == (0, [])

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("v5", [False, True])
    def test_whatever_a_scan_takes_the_codec_takes_and_would_write_as_long(self, seed: int, v5: bool) -> None:
        """The scan must never be more lenient than the codec: its bytes go to others untouched."""
        inputs, version = Inputs(Random(seed)), 5 if v5 else 4
        taken = 0
        for _ in range(800):
            data = inputs.chunk(v5)
            pos, _ = spans_of(data, v5)
            packets = packets_of(data[:pos], version)
            assert sum(len(encode(packet, version)) for packet in packets) == pos
            taken += len(packets)
        assert taken > 1_000


class TestAcknowledgements:
    def test_a_run_of_acknowledgements_wraps_from_the_last_id_to_1(self) -> None:
        assert ack_run(0x40, 65_534, 4) == b"".join(acknowledgement(0x40, n) for n in (65_534, 65_535, 1, 2))
        assert ack_run(0x62, 3, 0) == b""

    def test_ids_and_acknowledgements_keep_the_order_of_the_run(self) -> None:
        run = b"".join(publish(LONG, b"x" * n, qos=1, packet_id=n) for n in (9, 3, 200, 65_535))
        assert packet_ids(run) == [9, 3, 200, 65_535]
        assert acks(run, 0x50) == b"".join(acknowledgement(0x50, n) for n in (9, 3, 200, 65_535))

    def test_skip_counts_packets_not_bytes(self) -> None:
        parts = [publish(b"a", b"x" * n) for n in (0, 200, 5)]
        run = b"".join(parts)
        assert [skip(run, n) for n in range(4)] == [0, len(parts[0]), len(parts[0] + parts[1]), len(run)]
        assert skip(run, 2, len(parts[0])) == len(run)

    @pytest.mark.parametrize("cut", [1, 2, 4, 6])
    def test_a_run_that_is_not_whole_is_refused(self, cut: int) -> None:
        run = publish(b"a", b"x", qos=1) + publish(b"a", b"x", qos=1)[:cut]
        for broken in (
            lambda: packet_ids(run),
            lambda: acks(run, 0x40),
            lambda: skip(run, 2),
            lambda: reframe(run, False, False, 0x32, 1, b""),
            lambda: reframe(run, False, True, 0x30, 0, b""),
        ):
            with pytest.raises(ValueError, match="whole packets"):
                broken()


messages = st.builds(
    Message,
    topic=st.sampled_from(["a", "grün/☃", "x" * 120]),
    payload=st.binary(max_size=30) | st.just(b"p" * 128),
    properties=st.builds(
        Properties,
        payload_format=st.none() | st.integers(0, 1),
        content_type=st.none() | st.text("ab", max_size=3),
        correlation_data=st.none() | st.binary(max_size=3),
        user=st.lists(st.tuples(st.text("kü"), st.text("v")), max_size=2).map(tuple),
    ),
)


class TestReframe:
    @settings(max_examples=200, deadline=None)
    @given(
        st.lists(messages, min_size=1, max_size=4),
        st.tuples(st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.booleans(), st.booleans()),
        st.tuples(st.booleans(), st.booleans()),
        st.sampled_from((1, 40_000, 65_534, 65_535)),
        st.sampled_from(((), (7,), (1, 268_435_455))),
    )
    def test_a_rewritten_run_is_the_same_messages_in_the_framing_asked_for(
        self,
        given_messages: list[Message],
        levels: tuple[int, int],
        versions: tuple[bool, bool],
        flags: tuple[bool, bool],
        first_id: int,
        identifiers: tuple[int, ...],
    ) -> None:
        """Every combination of versions, QoS, flags and identifiers; ids wrap. The codec reads the result."""
        (from_qos, to_qos), (from_v5, to_v5), (retain, dup) = levels, versions, flags
        dup = dup and to_qos > 0
        run = b"".join(
            encode(
                Publish(
                    message=Message(topic=m.topic, payload=m.payload, qos=from_qos, properties=m.properties),
                    packet_id=n if from_qos else None,
                ),
                5 if from_v5 else 4,
            )
            for n, m in enumerate(given_messages, 1)
        )
        extra = b"".join(b"\x0b" + varint(n) for n in identifiers) if to_v5 else b""
        first_byte = 0x30 | to_qos << 1 | retain | dup << 3
        out = reframe(run, from_v5, to_v5, first_byte, first_id if to_qos else 0, extra)
        expected = [
            Publish(
                message=Message(
                    topic=m.topic,
                    payload=m.payload,
                    qos=to_qos,
                    retain=retain,
                    properties=_expected_properties(m.properties, from_v5, to_v5, identifiers),
                ),
                packet_id=(first_id - 1 + n) % 65_535 + 1 if to_qos else None,
                dup=dup,
            )
            for n, m in enumerate(given_messages)
        ]
        assert packets_of(out, 5 if to_v5 else 4) == expected

    def test_an_empty_run_stays_empty(self) -> None:
        assert reframe(b"", True, False, 0x32, 1, b"") == b""

    def test_a_run_that_needs_no_change_is_not_copied(self) -> None:
        run = publish(b"a", b"x")
        assert reframe(run, False, False, 0x30, 0, b"") is run

    def test_the_given_run_is_not_changed(self) -> None:
        run = publish(b"a", b"x", qos=1, packet_id=5)
        assert reframe(run, False, False, 0x3A, 9, b"") == publish(b"a", b"x", qos=1, packet_id=9, flags=8)
        assert run == publish(b"a", b"x", qos=1, packet_id=5)

    def test_lengths_grow_by_a_byte_where_they_must(self) -> None:
        """127 to 128 and 16,383 to 16,384, in the packet and in its properties."""
        for size in (120, 121, 122, 123, 124, 16_370, 16_375, 16_380, 16_384):
            run = publish(b"a", b"x" * size)
            out = reframe(run, False, True, 0x32, 3, b"\x0b\x01")
            assert out == publish(b"a", b"x" * size, qos=1, packet_id=3, properties=b"\x0b\x01")
        for size in (120, 123, 124, 125, 126):
            block = b"\x09" + size.to_bytes(2, "big") + b"c" * size
            out = reframe(publish(b"a", properties=block), True, True, 0x30, 0, b"\x0b\x01")
            assert out == publish(b"a", properties=block + b"\x0b\x01")


def _expected_properties(
    given_properties: Properties, from_v5: bool, to_v5: bool, identifiers: tuple[int, ...]
) -> Properties:
    if not to_v5:
        return Properties()
    kept = given_properties if from_v5 else Properties()
    return Properties(
        payload_format=kept.payload_format,
        content_type=kept.content_type,
        correlation_data=kept.correlation_data,
        user=kept.user,
        subscription_ids=identifiers,
    )
