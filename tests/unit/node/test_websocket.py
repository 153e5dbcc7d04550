"""MQTT inside WebSocket frames: the frames may be anything, the bytes inside are one stream."""

import base64
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, Request, TextMessage

from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.node.doors.websocket import WebSocketAdapter
from millrace.types import Message, Subscription, Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connect, Pingreq, Publish, Subscribe
from unit.node.house import House, Wire


class Browser:
    """A WebSocket client over a wire without sockets. The house is turned after everything it sends."""

    def __init__(self, house: House, origins: Iterable[str] = (), high_bytes: int = 1 << 20) -> None:
        self.house = house
        self.wire = Wire(high_bytes)
        inner = MqttConnection(house.door)
        self.adapter = WebSocketAdapter(house.door, inner, frozenset(origins), None)
        self.wire.protocol = self.adapter
        self.adapter.connection_made(self.wire)
        house.wires.append(self.wire)
        self.frames = WSConnection(ConnectionType.CLIENT)
        self.events: list[Any] = []

    def send_bytes(self, data: bytes) -> None:
        if data and not self.wire.is_closing:
            self.adapter.data_received(data)
        self.house.turn()

    def upgrade(self, **fields: Any) -> None:
        fields.setdefault("subprotocols", ["mqtt"])
        self.send_bytes(self.frames.send(Request(host="broker:1", target="/mqtt", **fields)))
        self.read()

    def send(self, *events: Any) -> None:
        self.send_bytes(b"".join(self.frames.send(event) for event in events))

    def mqtt(self, *packets: Any) -> None:
        self.send(*(BytesMessage(data=encode(packet, 5)) for packet in packets))

    def read(self) -> list[Any]:
        data = bytes(self.wire.taken)
        self.wire.taken.clear()
        if data:
            self.frames.receive_data(data)
        fresh = list(self.frames.events())
        self.events += fresh
        return fresh

    def payload(self) -> bytes:
        return b"".join(bytes(event.data) for event in self.read() if isinstance(event, BytesMessage))


def connected(house: House, **fields: Any) -> Browser:
    browser = Browser(house, **fields)
    browser.upgrade()
    browser.mqtt(Connect(version=Version.MQTT_5, client_id="browser"))
    assert browser.payload()[0] == 0x20
    return browser


def raw_request(**headers: str) -> bytes:
    lines = {
        "Host": "broker:1",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return b"GET / HTTP/1.1\r\n" + b"".join(f"{k}: {v}\r\n".encode() for k, v in lines.items()) + b"\r\n"


class TestFrames:
    def test_packets_lie_across_frames_in_any_way(self) -> None:
        """[MQTT-6.0.0-2]."""
        house = House()
        witness = house.connect("witness")
        witness.subscribe("#")
        stream = b"".join(
            encode(packet, 5)
            for packet in (
                Connect(version=Version.MQTT_5, client_id="b"),
                *(Publish(message=Message(topic="t", payload=b"%d" % n)) for n in range(20)),
                Pingreq(),
            )
        )
        for seed in range(10):
            random = Random(seed)
            browser = Browser(house)
            browser.upgrade()
            pos, sent = 0, b""
            while pos < len(stream):
                size = random.choice((1, 2, 7, 50))
                sent += browser.frames.send(BytesMessage(data=stream[pos : pos + size]))
                pos += size
            cut = random.randint(1, len(sent))
            browser.send_bytes(sent[:cut])
            browser.send_bytes(sent[cut:])
            assert browser.payload().endswith(b"\xd0\x00")
            assert witness.payloads() == [b"%d" % n for n in range(20)]

    def test_a_text_frame_ends_the_connection(self) -> None:
        """[MQTT-6.0.0-1]."""
        house = House()
        browser = connected(house)
        browser.send(TextMessage(data="hello"))
        assert [event.code for event in browser.read() if isinstance(event, CloseConnection)] == [1003]
        assert browser.wire.is_closing and not house.broker.sessions

    def test_nothing_after_the_end_is_looked_at_or_answered(self) -> None:
        """A chunk may hold more frames behind the one that ended it: none may raise or be served."""
        house = House()
        witness = house.connect("witness")
        witness.subscribe("#")
        browser = connected(house)
        publish = encode(Publish(message=Message(topic="t", payload=b"late")), 5)
        browser.send(
            TextMessage(data="x"), Ping(payload=b"p"), BytesMessage(data=publish), Ping(payload=b"p")
        )
        assert not any(isinstance(event, Pong) for event in browser.read())
        assert witness.read() == []

    def test_nothing_after_a_protocol_error_inside_is_looked_at(self) -> None:
        house = House()
        browser = connected(house)
        browser.send(BytesMessage(data=b"\x00\x00"), Ping(payload=b"p"), BytesMessage(data=b"\xc0\x00"))
        browser.read()
        assert browser.wire.is_closing and not house.broker.sessions

    def test_pings_are_answered_and_a_close_is_returned(self) -> None:
        house = House()
        browser = connected(house)
        browser.send(Ping(payload=b"are you there"))
        assert [bytes(event.payload) for event in browser.read() if isinstance(event, Pong)] == [
            b"are you there"
        ]
        browser.send(CloseConnection(code=1000))
        assert any(isinstance(event, CloseConnection) for event in browser.read())
        assert browser.wire.is_closing and not house.broker.sessions

    def test_output_for_a_peer_that_broke_the_framing_is_dropped(self) -> None:
        """What waits for this client in the same turn must not stop the output of the others."""
        house = House()
        browser = connected(house)
        browser.mqtt(Subscribe(packet_id=1, subscriptions=(Subscription(filter="t"),)))
        witness, publisher = house.connect("witness"), house.connect("p")
        witness.subscribe("t")
        publisher.connection.data_received(encode(Publish(message=Message(topic="t", payload=b"x")), 5))
        for garbage in (b"\xff\xff\xff\xff", b"\x82\x80"):
            if not browser.wire.is_closing:
                browser.adapter.data_received(garbage)
        publisher.connection.data_received(encode(Publish(message=Message(topic="t", payload=b"y")), 5))
        house.turn()
        assert witness.payloads() == [b"x", b"y"]
        witness.ping()

    def test_a_peer_that_does_not_read_stops_being_read(self) -> None:
        house = House(output_buffer_bytes_max=65_536, packet_bytes_max=8_192, queued_bytes_max=65_536)
        browser = connected(house, high_bytes=65_536)
        browser.wire.stall()
        pings = browser.frames.send(Ping(payload=b"x" * 100)) * 100
        for _ in range(1_000):
            if not browser.wire.is_reading:
                break
            browser.send_bytes(pings)
        assert not browser.wire.is_reading
        assert len(browser.wire.held) < 65_536 + len(pings) * 2


class TestHandshake:
    @pytest.mark.parametrize("subprotocols", [["mqtt"], ["mqttv3.1"], ["other", "mqtt"]])
    def test_the_subprotocol_is_chosen(self, subprotocols: list[str]) -> None:
        browser = Browser(House())
        browser.upgrade(subprotocols=subprotocols)
        (accepted,) = [event for event in browser.events if isinstance(event, AcceptConnection)]
        assert accepted.subprotocol == subprotocols[-1]

    def test_without_one_it_is_refused(self) -> None:
        """[MQTT-6.0.0-3]."""
        browser = Browser(House())
        browser.send_bytes(raw_request(Sec_WebSocket_Protocol="chat"))
        assert bytes(browser.wire.taken).startswith(b"HTTP/1.1 400") and browser.wire.is_closing

    @pytest.mark.parametrize(
        ("origin", "origins", "allowed"),
        [
            ("http://broker:1", "", True),
            ("https://BROKER:1", "", True),
            ("http://evil.example", "", False),
            ("http://evil.example", "http://evil.example", True),
            ("http://evil.example", "*", True),
            ("null", "", False),
            ("http://[", "", False),
            ("http://[::1", "", False),
            ("http://broker:1@evil.example", "", False),
        ],
    )
    def test_pages_of_other_sites_are_refused(self, origin: str, origins: str, allowed: bool) -> None:
        browser = Browser(House(), origins.split())
        browser.send_bytes(raw_request(Origin=origin))
        status = b"HTTP/1.1 101" if allowed else b"HTTP/1.1 403"
        assert bytes(browser.wire.taken).startswith(status)
        assert browser.wire.is_closing is not allowed

    @pytest.mark.parametrize(
        "data",
        [
            b"\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x01c",
            b"GET / HTTP/1.1\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
            b"\r\n\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            raw_request(Sec_WebSocket_Version="12"),
            raw_request(Upgrade="h2c"),
            b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000,
        ],
        ids=range(8),
    )
    def test_what_is_no_handshake_is_refused(self, data: bytes) -> None:
        house = House()
        browser = Browser(house)
        browser.send_bytes(data)
        assert browser.wire.is_closing
        assert not house.door.connections

    def test_a_handshake_that_trickles_in_is_not_waited_for(self) -> None:
        house = House(connect_deadline_ms=5_000)
        browser = Browser(house)
        for byte in raw_request():
            if browser.wire.is_closing:
                break
            browser.send_bytes(bytes((byte,)))
            house.pass_s(1)
        assert browser.wire.is_closing


@pytest.mark.parametrize("seed", range(3))
def test_random_bytes_never_raise(seed: int) -> None:
    """Before, during and after the handshake; frames damaged here and there."""
    random = Random(seed)
    house = House()
    witness = house.connect("witness")
    for _ in range(250):
        browser = Browser(house)
        if random.random() < 0.8:
            browser.upgrade()
        data = bytearray()
        for _ in range(random.randint(1, 6)):
            kind = random.random()
            if kind < 0.5 and browser.frames.connection is not None:
                packet = random.choice((Connect(version=Version.MQTT_5, client_id="r"), Pingreq()))
                data += browser.frames.send(BytesMessage(data=encode(packet, 5)))
            elif kind < 0.7 and browser.frames.connection is not None:
                data += browser.frames.send(Ping(payload=random.randbytes(random.randint(0, 125))))
            else:
                data += random.randbytes(random.randint(1, 20))
        if data and random.random() < 0.7:
            data[random.randrange(len(data))] = random.randrange(256)
        cut = random.randint(0, len(data))
        browser.send_bytes(bytes(data[:cut]))
        browser.send_bytes(bytes(data[cut:]))
        browser.wire.lose()
        house.turn()
    witness.ping()
    assert list(house.door.connections) == [witness.connection]
