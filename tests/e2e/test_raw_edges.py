"""What only bytes can show: no client library sends these, or none shows what came back."""

import socket

from e2e.processes import BrokerProcess

ANSWER_S_MAX = 10.0
PROTOCOL_ERROR, BAD_METHOD, TOO_LARGE = 0x82, 0x8C, 0x95


def string(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((first, len(body))) + body


def connect(client_id: str, properties: bytes = b"") -> bytes:
    """A clean MQTT 5 CONNECT."""
    head = string("MQTT") + bytes((5, 2, 0, 60))
    return packet(0x10, head + bytes((len(properties),)) + properties + string(client_id))


def maximum_packet_size(size: int) -> bytes:
    return b"\x27" + size.to_bytes(4, "big")


def everything(broker: BrokerProcess, *sent: bytes) -> list[bytes]:
    """The packets that the broker sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=ANSWER_S_MAX) as sock:
        sock.sendall(b"".join(sent))
        data = b""
        while chunk := sock.recv(65_536):
            data += chunk
    packets = []
    while data:
        assert data[1] < 128
        packets.append(data[: 2 + data[1]])
        data = data[2 + data[1] :]
    return packets


def test_an_alias_that_was_never_set_is_a_protocol_error(broker: BrokerProcess) -> None:
    """3.3.2.3.4: 0x94 is for values out of range; one that names nothing is 0x82."""
    alias_only = packet(0x30, string("") + b"\x03\x23\x00\x05" + b"x")
    _, goodbye = everything(broker, connect("alias"), alias_only)
    assert goodbye[0] == 0xE0 and goodbye[2] == PROTOCOL_ERROR


def test_a_goodbye_respects_the_clients_packet_size(broker: BrokerProcess) -> None:
    """[MQTT-3.14.2-3]: the reason string is left out where it would make DISCONNECT too large."""
    second = connect("small", maximum_packet_size(20))
    hello, goodbye = everything(broker, second, second)
    assert hello[0] == 0x20 and hello[3] == 0
    assert goodbye[0] == 0xE0 and goodbye[2] == PROTOCOL_ERROR
    assert len(goodbye) <= 20


def test_a_refusal_respects_the_clients_packet_size(broker: BrokerProcess) -> None:
    """[MQTT-3.2.2-19]: the same for CONNACK."""
    (refusal,) = everything(broker, connect("small", maximum_packet_size(8) + b"\x15" + string("magic")))
    assert refusal[0] == 0x20 and refusal[3] == BAD_METHOD
    assert len(refusal) <= 8


def test_a_client_that_can_be_told_nothing_is_closed(broker: BrokerProcess) -> None:
    """[MQTT-3.1.2-24]: no CONNACK fits two bytes, so there is no answer; the client must not wait for one."""
    assert everything(broker, connect("tiny", maximum_packet_size(2))) == []


def test_a_client_in_the_middle_of_a_huge_packet_hears_why_it_ends(broker: BrokerProcess) -> None:
    """The broker stops listening at the header; a reset would cost the client the reason it was given."""
    with socket.create_connection(("127.0.0.1", broker.port), timeout=ANSWER_S_MAX) as sock:
        sock.sendall(connect("huge"))
        assert sock.recv(65_536)[3] == 0
        # A remaining length of 16 MiB, and all of it.
        sock.sendall(b"\x30\x80\x80\x80\x08" + bytes(16 * 1024 * 1024))
        goodbye = sock.recv(65_536)
        assert goodbye[0] == 0xE0 and goodbye[2] == TOO_LARGE
        assert sock.recv(1) == b""
