"""The PROXY header: whom a balancer speaks for, in both versions, and nothing else before the connection."""

import ipaddress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.errors import MalformedPacket
from millrace.node.doors.listeners import ProxyHeader, Tuned
from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.types import Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connect, Pingreq
from millrace.wire.proxy import parse
from unit.node.house import House, Wire

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def binary(family: int, body: bytes, command: int = 0x21) -> bytes:
    return SIGNATURE + bytes((command, family)) + len(body).to_bytes(2, "big") + body


V4 = bytes((192, 0, 2, 1, 192, 0, 2, 2)) + b"\x12\x34\x07\x5b"
V6 = bytes.fromhex("20010db8" + "00" * 11 + "01" + "20010db8" + "00" * 11 + "02") + b"\x00\x50\x07\x5b"

GOOD = [
    (b"PROXY TCP4 192.0.2.1 192.0.2.2 4660 1883\r\n", ("192.0.2.1", 4660)),
    (b"PROXY TCP6 2001:db8::1 2001:db8::2 80 1883\r\n", ("2001:db8::1", 80)),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:f...f:ffff 65535 65535\r\n", None),
    (binary(0x11, V4), ("192.0.2.1", 4660)),
    (binary(0x11, V4 + b"\x04\x00\x02hi"), ("192.0.2.1", 4660)),
    (binary(0x21, V6), ("2001:db8::1", 80)),
    (binary(0x00, b""), None),
    (binary(0x11, V4, command=0x20), None),
    (binary(0x31, b"\0" * 216), None),
]
BAD = [
    b"GET / HTTP/1.1\r\n",
    b"\x10\x10\x00\x04MQTT",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 4660\r\n",
    b"PROXY TCP5 192.0.2.1 192.0.2.2 4660 1883\r\n",
    b"PROXY TCP4 2001:db8::1 2001:db8::2 80 1883\r\n",
    b"PROXY TCP6 192.0.2.1 192.0.2.2 80 1883\r\n",
    b"PROXY TCP4 192.0.2.999 192.0.2.2 80 1883\r\n",
    b"PROXY TCP4 192.0.2.1 x 80 1883\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 99999 1883\r\n",
    b"PROXY TCP4 192.0.2.1 192.0.2.2 -1 1883\r\n",
    b"PROXY \r\n",
    b"PROXY TCP4 \xff\xff 192.0.2.2 80 1883\r\n",
    b"PROXY " + b"x" * 110,
    binary(0x11, V4[:-1]),
    binary(0x21, V4),
    binary(0x11, V4, command=0x31),
    binary(0x11, V4, command=0x22),
    binary(0x11, b"\0" * 3000),
    SIGNATURE[:-1] + b"\0\x21\x11\x00\x0c" + V4,
]


class TestParse:
    @pytest.mark.parametrize(("header", "source"), GOOD, ids=lambda value: repr(value)[:40])
    def test_a_header_is_found_however_it_arrives(
        self, header: bytes, source: tuple[str, int] | None
    ) -> None:
        for size in range(len(header)):
            assert parse(header[:size]) is None, "an incomplete header is waited for"
        assert parse(header) == (len(header), source)
        assert parse(header + b"\x10\x00rest") == (len(header), source)

    @pytest.mark.parametrize("data", BAD, ids=lambda value: repr(value)[:40])
    def test_anything_else_is_refused(self, data: bytes) -> None:
        with pytest.raises(MalformedPacket):
            parse(data)

    @settings(max_examples=200, deadline=None)
    @given(st.sampled_from((b"", SIGNATURE, b"PROXY ")), st.binary(max_size=200))
    def test_any_bytes_give_an_answer_within_bounds(self, begin: bytes, rest: bytes) -> None:
        data = begin + rest
        try:
            found = parse(data)
        except MalformedPacket:
            return
        if found is None:
            assert len(data) < 2048 + 16
        else:
            used, source = found
            assert 0 < used <= len(data)
            if source is not None:
                ipaddress.ip_address(source[0])
                assert 0 <= source[1] <= 65_535


class Balanced:
    """A connection behind the adapters, as a listener makes it."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.connection = MqttConnection(house.door)
        self.wire = LimitedWire(house.limits.output_buffer_bytes_max)

        def set_peer(source: tuple[str, int]) -> None:
            self.connection.peer = source

        tuned = Tuned(lambda: ProxyHeader(self.connection, set_peer), house.limits.output_buffer_bytes_max)
        self.wire.protocol = tuned
        tuned.connection_made(self.wire)
        house.wires.append(self.wire)

    def send_bytes(self, data: bytes) -> None:
        if not self.wire.is_closing:
            self.wire.protocol.data_received(data)
        self.house.turn()


class LimitedWire(Wire):
    def set_protocol(self, protocol: object) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        assert low < high
        self.high_bytes = high


CONNECT = encode(Connect(version=Version.MQTT_5, client_id="c"), 5)


class TestHandOver:
    @pytest.mark.parametrize("cut", [1, 13, 28, 40])
    def test_the_connection_gets_the_address_and_the_bytes_behind_the_header(self, cut: int) -> None:
        house = House()
        client = Balanced(house)
        data = binary(0x11, V4) + CONNECT + encode(Pingreq(), 5)
        client.send_bytes(data[:cut])
        client.send_bytes(data[cut:])
        assert client.connection.peer == ("192.0.2.1", 4660)
        assert client.wire.protocol is client.connection
        assert bytes(client.wire.taken).endswith(b"\xd0\x00")

    def test_a_balancer_that_speaks_for_itself_leaves_the_address(self) -> None:
        client = Balanced(House())
        client.send_bytes(binary(0x00, b"", command=0x20) + CONNECT)
        assert client.connection.peer == ("127.0.0.1", 50_000)

    @pytest.mark.parametrize("data", BAD, ids=lambda value: repr(value)[:40])
    def test_what_is_no_header_ends_the_connection(self, data: bytes) -> None:
        house = House()
        client = Balanced(house)
        client.send_bytes(data)
        assert client.wire.is_aborted and not client.wire.taken
        assert not house.door.connections

    def test_a_header_that_trickles_in_is_not_waited_for(self) -> None:
        house = House(connect_deadline_ms=5_000)
        client = Balanced(house)
        for byte in binary(0x11, V4):
            client.send_bytes(bytes((byte,)))
            house.pass_s(1)
        assert client.wire.is_closing

    @pytest.mark.parametrize("seed", range(3))
    def test_random_bytes_never_raise(self, seed: int) -> None:
        random = Random(seed)
        house = House()
        for _ in range(300):
            client = Balanced(house)
            data = bytearray(random.choice((binary(0x11, V4), binary(0x21, V6), GOOD[0][0])) + CONNECT)
            for _ in range(random.randint(1, 3)):
                data[random.randrange(len(data))] = random.randrange(256)
            cut = random.randint(0, len(data))
            client.send_bytes(bytes(data[:cut]))
            client.send_bytes(bytes(data[cut:]))
            client.wire.lose()
            house.turn()
        assert not house.door.connections
