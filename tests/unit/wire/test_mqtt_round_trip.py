"""Every packet, with any legal value in every field, comes back from its bytes; nothing but a `RemoteError`
ever leaves the decoder, whatever the bytes."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import MalformedPacket, RemoteError
from millrace.types import Properties, Version
from millrace.wire.mqtt.codec import (
    decode,
    decode_properties,
    encode,
    encode_properties,
    encode_publish,
    read_varint,
    split,
    varint,
)
from millrace.wire.mqtt.packets import Auth, Connect, Publish
from unit.wire.mqtt_feeding import cut, feed
from unit.wire.mqtt_strategies import BY_KIND, before_5, properties

EARLIER_KINDS = [kind for kind in BY_KIND if kind is not Auth]
packets = st.one_of(*BY_KIND.values())
versions = st.sampled_from([int(version) for version in Version])
bounded = settings(max_examples=80, deadline=None)


def in_version(kind: type, version: int) -> st.SearchStrategy[Any]:
    """Packets that can be sent in a version: a CONNECT of its own, and a topic where there is no alias."""

    def fits(packet: Any) -> bool:
        if isinstance(packet, Connect):
            return packet.version == version
        return version == 5 or not isinstance(packet, Publish) or packet.message.topic != ""

    return BY_KIND[kind].filter(fits)


@pytest.mark.parametrize("kind", BY_KIND, ids=lambda kind: kind.__name__)
@bounded
@given(data=st.data())
def test_round_trip_in_mqtt_5(kind: type, data: Any) -> None:
    packet = data.draw(in_version(kind, 5))
    assert feed(encode(packet, 5), 5) == packet


@pytest.mark.parametrize("kind", EARLIER_KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("version", [3, 4])
@bounded
@given(data=st.data())
def test_round_trip_before_mqtt_5(kind: type, version: int, data: Any) -> None:
    """Fields that the version has come back; the others are neither written nor read."""
    packet = data.draw(in_version(kind, version))
    assert feed(encode(packet, version), version) == before_5(packet, version)


@bounded
@given(value=properties, before=st.binary(max_size=3), after=st.binary(max_size=3))
def test_publish_properties_round_trip_in_place(value: Properties, before: bytes, after: bytes) -> None:
    block = encode_properties(value)
    data = before + block + after
    assert decode_properties(data, len(before), len(data)) == (value, len(before) + len(block))


@bounded
@given(packet=BY_KIND[Publish], version=versions)
def test_publish_from_parts_is_the_same_packet(packet: Publish, version: int) -> None:
    message = packet.message
    whole = encode(packet, version)
    block = encode_properties(message.properties) if version == 5 else b""
    parts = encode_publish(message.topic.encode(), message.payload, whole[0], packet.packet_id or 0, block)
    assert parts == whole


@given(st.integers(0, 268_435_455))
def test_varint_round_trip(value: int) -> None:
    data = varint(value)
    assert read_varint(data, 0, len(data)) == (value, len(data))


def decode_or_refuse(first_byte: int, body: bytes, version: int) -> None:
    """Either a `RemoteError`, or a packet that can be written and read again as itself."""
    try:
        packet = decode(first_byte, body, version)
    except RemoteError as error:
        assert error.reason >= 0x80
        assert error.detail
        return
    again = encode(packet, version)
    assert decode(*cut(again), version) == packet


@settings(max_examples=1500, deadline=None)
@given(first_byte=st.integers(0, 255), body=st.binary(max_size=40), version=versions)
def test_random_bytes_raise_nothing_but_remote_errors(first_byte: int, body: bytes, version: int) -> None:
    decode_or_refuse(first_byte, body, version)


@settings(max_examples=1500, deadline=None)
@given(packet=packets, version=versions, data=st.data())
def test_damaged_packets_raise_nothing_but_remote_errors(packet: Any, version: int, data: Any) -> None:
    """Damage near a legal packet goes deeper into the decoder than random bytes do."""
    written = 5 if isinstance(packet, Auth) else version
    first_byte, body = cut(encode(packet, written))
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged)))
        match data.draw(st.sampled_from(["set", "insert", "cut", "end"])):
            case "set" if at < len(damaged):
                damaged[at] = data.draw(st.integers(0, 255))
            case "insert":
                damaged.insert(at, data.draw(st.integers(0, 255)))
            case "cut":
                del damaged[at : at + 1]
            case _:
                del damaged[at:]
    first_byte ^= data.draw(st.sampled_from([0, 0, 0, 1, 2, 4, 8]))
    decode_or_refuse(first_byte, bytes(damaged), version)


@settings(max_examples=500, deadline=None)
@given(data=st.binary(max_size=12), pos=st.integers(0, 12))
def test_split_never_leaves_the_buffer(data: bytes, pos: int) -> None:
    try:
        found = split(data, pos)
    except MalformedPacket:
        assert all(byte >= 0x80 for byte in data[pos + 1 : pos + 5])
        return
    if found is not None:
        first_byte, start, end = found
        assert first_byte == data[pos]
        assert pos + 2 <= start <= end <= len(data)
