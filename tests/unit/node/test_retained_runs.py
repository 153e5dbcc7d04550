"""Retained messages at QoS 0 that follow each other are taken together, and each as it would be by itself."""

import pytest

from millrace.types import Version
from unit.node.house import Client, House

BOTH = pytest.mark.parametrize("version", [Version.MQTT_3_1_1, Version.MQTT_5])


def packet(topic: bytes, payload: bytes, version: Version, first: int = 0x31) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + (b"\0" if version is Version.MQTT_5 else b"") + payload
    size = len(body)
    return bytes((first,)) + (bytes((size,)) if size < 128 else bytes((size & 127 | 128, size >> 7))) + body


def values(house: House) -> dict[str, bytes]:
    """What a new subscriber of everything gets."""
    reader = house.connect("reader", version=Version.MQTT_3_1_1)
    reader.subscribe("#", qos=0)
    found = {message.message.topic: message.message.payload for message in reader.messages()}
    reader.disconnect()
    return found


def writer_in(house: House, version: Version) -> Client:
    return house.connect("writer", version=version)


@BOTH
@pytest.mark.parametrize("piece_bytes", [1 << 20, 1, 37])
def test_a_chunk_of_retained_messages_leaves_the_same_however_it_is_cut(
    version: Version, piece_bytes: int
) -> None:
    """Among them longer ones, deletions, the same topic twice, and one that is not retained."""
    house = House()
    writer = writer_in(house, version)
    data = b"".join(packet(b"t/%d" % n, b"%d" % n, version) for n in range(300))
    data += packet(b"t/7", b"x" * 200, version) + packet(b"t/8", b"", version)
    data += packet(b"t/9", b"not kept", version, 0x30) + packet(b"t/10", b"last", version)
    for start in range(0, len(data), piece_bytes):
        writer.send_bytes(data[start : start + piece_bytes])
    house.turn()
    expected = {f"t/{n}": b"%d" % n for n in range(300)}
    expected |= {"t/7": b"x" * 200, "t/10": b"last"}
    del expected["t/8"]
    assert values(house) == expected and not writer.is_closed


@BOTH
def test_a_message_beyond_the_bound_ends_the_connection_and_those_before_it_stay(version: Version) -> None:
    house = House(packet_bytes_max=200)
    writer = writer_in(house, version)
    good = packet(b"t", b"a", version) + packet(b"t", b"b", version)
    writer.send_bytes(good + packet(b"t", b"x" * 300, version) + packet(b"t", b"c", version))
    assert writer.is_closed and values(house) == {"t": b"b"}


def test_they_count_against_the_messages_of_a_second() -> None:
    """And their client is not read until a later one."""
    house = House(publishes_per_s_max=10)
    writer = writer_in(house, Version.MQTT_3_1_1)
    messages = [packet(b"t/%d" % n, b"v", Version.MQTT_3_1_1) for n in range(20)]
    writer.send_bytes(b"".join(messages[:10]))
    assert writer.wire.is_reading
    writer.send_bytes(b"".join(messages[10:]))
    assert not writer.wire.is_reading
