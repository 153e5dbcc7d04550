"""Bytes that no client should send, at every state of a connection, and clients that do not behave.

A broker process takes them all and goes on: a witness that was connected before is still served, nothing
raised inside, no connection is left over, and the memory stays where it was.
"""

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import urlopen

import pytest

from e2e.conftest import StartBroker
from e2e.processes import BrokerProcess
from millrace.reasons import Reason
from millrace.types import Message, Subscription, Version
from millrace.wire.mqtt.codec import decode, encode, encode_publish, split
from millrace.wire.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    Unsubscribe,
)
from unit.node.house import will
from waiting import until

ANSWER_S_MAX = 10.0
KIB = 1024
MIB = 1024 * KIB
CONNECT_DEADLINE_MS = 1_000
OUTPUT_BYTES_MAX = 256 * KIB
PACKET_BYTES_MAX = 64 * KIB
# What a run may add to the broker's memory: buffers of sockets and interpreter, no more with more packets.
GROWTH_BYTES_MAX = 12 * MIB
FLOOD_GROWTH_BYTES_MAX = 32 * MIB
# Millions of tiny messages on their way into the log: what building its blocks takes at most.
LOG_GROWTH_BYTES_MAX = 128 * MIB
LIMITS = (
    *("--set", f"limits.output_buffer_bytes_max={OUTPUT_BYTES_MAX}"),
    *("--set", f"limits.packet_bytes_max={PACKET_BYTES_MAX}"),
    *("--set", f"limits.queued_bytes_max={OUTPUT_BYTES_MAX}"),
    *("--set", "mqtt.sys_interval_s=0"),
)


@pytest.fixture(scope="module")
def sturdy(start_shared: StartBroker) -> BrokerProcess:
    return start_shared("--ws", "127.0.0.1:0", *LIMITS)


@pytest.fixture(scope="module")
def impatient(start_shared: StartBroker) -> BrokerProcess:
    """A deadline that no other test has to keep."""
    return start_shared(*LIMITS, "--set", f"limits.connect_deadline_ms={CONNECT_DEADLINE_MS}")


# ------------------------------------------------------------------------------------------- clients


class Raw:
    """A socket that says anything and reads packets."""

    def __init__(self, port: int, version: Version = Version.MQTT_5) -> None:
        self.version = version
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MAX)
        self._data = b""

    def send(self, *parts: Any) -> None:
        """Bytes as they are, packets encoded. The broker may have closed: that is seen when reading."""
        data = b"".join(p if isinstance(p, bytes) else encode(p, self.version) for p in parts)
        with suppress(BrokenPipeError, ConnectionResetError):
            self.socket.sendall(data)

    def receive(self) -> Any:
        """The next packet, or None at the end."""
        while (found := split(self._data)) is None:
            try:
                chunk = self.socket.recv(65_536)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                return None
            self._data += chunk
        first_byte, start, end = found
        body, self._data = self._data[start:end], self._data[end:]
        return decode(first_byte, body, self.version)

    def rest(self) -> list[Any]:
        """Everything until the broker closes."""
        packets = []
        while (packet := self.receive()) is not None:
            packets.append(packet)
        return packets

    def connect(self, client_id: str, **fields: Any) -> "Raw":
        self.send(Connect(version=self.version, client_id=client_id, **fields))
        answer = self.receive()
        assert isinstance(answer, Connack) and answer.reason is Reason.SUCCESS, answer
        return self

    def subscribe(self, filter: str, qos: int = 0) -> "Raw":
        self.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=filter, qos=qos),)))
        self.receive()
        return self

    def ping(self) -> None:
        self.send(Pingreq())
        assert self.receive() == Pingresp()

    def close(self) -> None:
        self.socket.close()


@contextmanager
def witness(broker: BrokerProcess, port: int | None = None) -> Iterator[Raw]:
    """A client that was there before and must be served after; then the broker is looked over."""
    before = figures(broker)["clients_connected"]
    client = Raw(port or broker.port).connect("witness").subscribe("witness/#", qos=1)
    try:
        yield client
        client.ping()
        client.send(Publish(message=Message(topic="witness/1", payload=b"still here", qos=1), packet_id=7))
        answers = [client.receive(), client.receive()]
        assert Puback(packet_id=7) in answers
        assert any(isinstance(p, Publish) and p.message.payload == b"still here" for p in answers)
        until(lambda: figures(broker)["clients_connected"] == before + 1, "the others to be gone")
        assert "Traceback" not in broker.log and "ERROR" not in broker.log, broker.log[-4000:]
        assert broker.process.poll() is None
    finally:
        client.close()


def figures(broker: BrokerProcess) -> dict[str, Any]:
    with urlopen(f"{broker.url}/status", timeout=ANSWER_S_MAX) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def memory_bytes(broker: BrokerProcess) -> int:
    for line in Path(f"/proc/{broker.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIB
    raise AssertionError("no VmRSS")


# -------------------------------------------------------------------------------------------- states


def new(port: int, version: Version) -> Raw:
    return Raw(port, version)


def connected(port: int, version: Version) -> Raw:
    return Raw(port, version).connect("bad", will=will("bad/will", b"gone"))


def subscribed(port: int, version: Version) -> Raw:
    return connected(port, version).subscribe("bad/#", qos=2)


def half_received(port: int, version: Version) -> Raw:
    """QoS 2 from the client: answered with PUBREC, not released."""
    client = connected(port, version)
    client.send(Publish(message=Message(topic="bad/1", qos=2), packet_id=5))
    assert client.receive() == Pubrec(packet_id=5)
    return client


def half_delivered(port: int, version: Version) -> Raw:
    """QoS 2 to the client: not answered."""
    client = subscribed(port, version)
    client.send(Publish(message=Message(topic="bad/1", qos=2), packet_id=5))
    assert {type(client.receive()), type(client.receive())} == {Publish, Pubrec}
    return client


STATES = (new, connected, subscribed, half_received, half_delivered)
VERSIONS = (Version.MQTT_3_1_1, Version.MQTT_5)


def good_packets(version: Version) -> list[bytes]:
    packets = (
        Connect(version=version, client_id="again", username="u", password=b"p", will=will("w", b"x", qos=1)),
        Publish(message=Message(topic="bad/2", payload=b"payload")),
        Publish(message=Message(topic="bad/2", payload=b"payload", qos=1, retain=True), packet_id=9),
        Publish(message=Message(topic="bad/2", payload=b"", qos=2), packet_id=10),
        Subscribe(packet_id=11, subscriptions=(Subscription(filter="bad/+", qos=1),)),
        Unsubscribe(packet_id=12, filters=("bad/+", "$share/g/x")),
        Puback(packet_id=1),
        Pubrec(packet_id=1),
        Pubrel(packet_id=5),
        Pingreq(),
    )
    return [encode(packet, version) for packet in packets]


# A packet that is wrong in itself, wherever it comes.
ILLEGAL = (
    b"\x00\x00",
    b"\xf0\x01\x00",
    b"\x30\xff\xff\xff\xff\x01",
    b"\x36\x05\x00\x01t\x00\x01",
    b"\x30\x03\x00\x01+",
    b"\x30\x04\x00\x02\xff\xff",
    b"\x32\x05\x00\x01t\x00\x00",
    b"\x30\x02\x00\x09",
    b"\x80\x06\x00\x01\x00\x01t\x00",
    b"\x82\x02\x00\x01",
    b"\x82\x06\x00\x01\x00\x01t\x04",
    b"\xa2\x02\x00\x01",
    b"\x60\x02\x00\x01",
    b"\x40\x00",
    b"\x20\x02\x00\x00",
    b"\xd0\x00",
    b"\xc1\x00",
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
class TestAtEveryState:
    def test_packets_cut_anywhere(self, sturdy: BrokerProcess, state: Any, version: Version) -> None:
        """The client goes away in the middle of a packet."""
        random = Random(1)
        with witness(sturdy):
            for packet in good_packets(version):
                for size in sorted({1, 2, len(packet) - 1, random.randrange(1, len(packet))}):
                    client = state(sturdy.port, version)
                    client.send(packet[:size])
                    client.close()

    def test_illegal_packets(self, sturdy: BrokerProcess, state: Any, version: Version) -> None:
        """Closed, with a reason where the version has one, and before CONNECT without a word."""
        with witness(sturdy):
            for packet in ILLEGAL:
                client = state(sturdy.port, version)
                client.send(packet, Pingreq())
                answers = client.rest()
                if state is new or version != Version.MQTT_5:
                    assert answers == [], (packet, answers)
                else:
                    (answer,) = answers
                    assert isinstance(answer, Disconnect)
                    assert answer.reason in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR), packet
                client.close()

    def test_packets_that_announce_too_much(
        self, sturdy: BrokerProcess, state: Any, version: Version
    ) -> None:
        """Refused at the header; what follows it is not waited for."""
        with witness(sturdy):
            for head in (b"\x30\xff\xff\xff\x7f", b"\x82\x81\x80\x04", b"\x10\x81\x80\x04"):
                client = state(sturdy.port, version)
                client.send(head)
                answers = client.rest()
                if state is not new and version == Version.MQTT_5:
                    assert [answer.reason for answer in answers] == [Reason.PACKET_TOO_LARGE]
                else:
                    assert answers == []
                client.close()


# -------------------------------------------------------------------------------------------- random


def damaged(data: bytes, random: Random) -> bytes:
    out = bytearray(data)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(out))
        change = random.random()
        if change < 0.6:
            out[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif change < 0.8:
            del out[at : at + random.randint(1, 3)]
        else:
            out[at:at] = random.randbytes(random.randint(1, 3))
        if not out:
            return b"\x00"
    return bytes(out)


def random_packet(random: Random, version: Version) -> bytes:
    kind = random.random()
    if kind < 0.5:
        return damaged(random.choice(good_packets(version)), random)
    if kind < 0.7:
        return random.choice(good_packets(version)[1:])
    body = random.randbytes(random.randint(0, 30))
    return bytes((random.randrange(256), len(body))) + body


def bombard(port: int, seed: int, count: int) -> int:
    """Send `count` packets over as many connections as it takes; returns how many those were."""
    random = Random(seed)
    sent = connections = 0
    while sent < count:
        version = random.choice(VERSIONS)
        client = Raw(port, version)
        connections += 1
        batch = random.randint(1, 12)
        sent += batch
        # A few names only, kept and clean: sessions are taken over and come back in the middle of it.
        hello = Connect(
            version=version,
            client_id=f"fuzz{random.randint(0, 9)}",
            clean_start=random.random() < 0.5,
            will=will("fuzz/will", b"gone", retain=True) if random.random() < 0.1 else None,
        )
        parts = [encode(hello, version)] if random.random() < 0.9 else []
        parts += [random_packet(random, version) for _ in range(batch)]
        client.send(*parts)
        if random.random() < 0.5:
            # Read what comes until the broker closes or answers; the other half just goes.
            client.socket.settimeout(0.005)
            with suppress(TimeoutError, ConnectionResetError):
                client.socket.recv(65_536)
        client.close()
    return connections


def bombarded(broker: BrokerProcess, count: int) -> None:
    with witness(broker):
        bombard(broker.port, 1, max(count // 4, 3_000))
        before = memory_bytes(broker)
        bombard(broker.port, 2, count)
        until(lambda: figures(broker)["clients_connected"] <= 1 + 10, "the connections to be gone")
        grown = memory_bytes(broker) - before
        assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.1f} MiB more after {count} packets"
        found = figures(broker)
        assert found["sessions"] <= 11
        assert found["counters"]["protocol_errors"] > count / 40


def test_random_packets_leave_the_broker_serving_and_its_memory_flat(start_broker: StartBroker) -> None:
    bombarded(start_broker(*LIMITS), 20_000)


@pytest.mark.slow
def test_ten_times_as_many(start_broker: StartBroker) -> None:
    bombarded(start_broker(*LIMITS), 200_000)


# ------------------------------------------------------------------------------- WebSocket and PROXY


def handshake() -> bytes:
    key = base64.b64encode(bytes(16)).decode()
    return (
        "GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()


def frame(payload: bytes, opcode: int = 2) -> bytes:
    assert len(payload) < 126
    mask = b"\1\2\3\4"
    masked = bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))
    return bytes((0x80 | opcode, 0x80 | len(payload))) + mask + masked


def test_websocket_garbage(sturdy: BrokerProcess) -> None:
    """No handshake, a broken one, frames of every kind, damaged frames with MQTT inside."""
    random = Random(1)
    hello = encode(Connect(version=Version.MQTT_5, client_id="ws"), 5)
    with witness(sturdy):
        for number in range(300):
            client = Raw(sturdy.ports["ws"])
            if number % 5 == 0:
                client.send(random.randbytes(random.randint(1, 200)))
            elif number % 5 == 1:
                client.send(damaged(handshake(), random))
            else:
                frames = [frame(hello)] + [
                    frame(random.choice((b"\xc0\x00", random.randbytes(9))), random.randrange(16))
                    for _ in range(5)
                ]
                data = b"".join(frames)
                client.send(handshake(), damaged(data, random) if number % 5 == 2 else data)
            if random.random() < 0.5:
                client.socket.settimeout(0.005)
                with suppress(TimeoutError, ConnectionResetError):
                    client.socket.recv(4096)
            client.close()


def test_proxy_garbage(start_broker: StartBroker) -> None:
    """Where a balancer is expected, anything but its header is cut off at once, and its header is served."""
    broker = start_broker(*LIMITS, "--set", "listeners.proxy_protocol=true")
    header = b"PROXY TCP4 127.0.0.9 127.0.0.1 4660 1883\r\n"
    random = Random(1)
    hello = encode(Connect(version=Version.MQTT_5, client_id="p"), 5)
    for number in range(200):
        client = Raw(broker.port)
        if number % 2:
            client.send(damaged(header + hello, random))
        else:
            client.send(random.randbytes(random.randint(1, 300)))
        client.close()
    refused = Raw(broker.port)
    refused.send(hello)
    assert refused.rest() == []
    served = Raw(broker.port)
    served.send(header, hello, Pingreq())
    assert isinstance(served.receive(), Connack) and served.receive() == Pingresp()
    served.close()
    assert "Traceback" not in broker.log and "ERROR" not in broker.log


# -------------------------------------------------------------------------------- slow and deaf ones


@pytest.mark.parametrize("begin", [b"", b"\x10\xff", b"\x10\xff\x7f\x00\x04MQTT\x05\x02\x00\x00\x00\x3f\x00"])
def test_a_connect_that_never_ends_is_cut_off(impatient: BrokerProcess, begin: bytes) -> None:
    """Byte after byte, each one well within the time: the deadline is that of the whole packet."""
    client = Raw(impatient.port)
    client.send(begin or b"\x10")
    client.socket.settimeout(0.005)

    def closed() -> bool:
        try:
            client.socket.sendall(b"a" if begin else b"")
            return client.socket.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    with witness(impatient):
        until(closed, "the broker to lose patience", timeout_s=CONNECT_DEADLINE_MS / 1000 + 6)
    client.close()


def small_receiver(port: int) -> Raw:
    """A client whose own socket takes little, so that what it does not read stays with the broker."""
    client = Raw.__new__(Raw)
    client.version = Version.MQTT_5
    client._data = b""
    client.socket = socket.socket()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.socket.settimeout(ANSWER_S_MAX)
    client.socket.connect(("127.0.0.1", port))
    return client


def test_a_client_that_never_reads_costs_its_buffer_and_nobody_else(start_broker: StartBroker) -> None:
    """QoS 0: what it does not take is dropped and counted; the other subscriber gets every message."""
    broker = start_broker(*LIMITS)
    count, payload = 4_000, b"x" * 10_000
    with witness(broker):
        deaf = small_receiver(broker.port).connect("deaf").subscribe("flood")
        other = Raw(broker.port).connect("other").subscribe("flood")
        publisher = Raw(broker.port).connect("publisher")
        before = memory_bytes(broker)
        most = 0
        for number in range(count):
            publisher.send(encode_publish(b"flood", b"%06d" % number + payload, 0x30, 0, b"\0"))
            packet = other.receive()
            assert isinstance(packet, Publish) and int(packet.message.payload[:6]) == number
            if number % 500 == 0:
                most = max(most, memory_bytes(broker))
        assert most - before < FLOOD_GROWTH_BYTES_MAX
        assert figures(broker)["counters"]["dropped_qos0"] > count // 4
        for client in (deaf, other, publisher):
            client.close()


@pytest.mark.long
def test_a_publisher_that_leaves_its_acknowledgements_is_not_read_any_more(start_broker: StartBroker) -> None:
    """QoS 1: the broker stops reading it instead of keeping its answers; once it reads, all are there."""
    broker = start_broker(*LIMITS, "--set", "log.level=warning")
    with witness(broker) as other:
        client = small_receiver(broker.port).connect("greedy")
        before = memory_bytes(broker)
        chunk = b"".join(encode_publish(b"t", b"", 0x32, n, b"\0") for n in range(1, 5_001))
        sent, pending = 0, b""
        client.socket.settimeout(1.0)
        for _ in range(2_000):
            pending = pending or chunk
            try:
                written = client.socket.send(pending)
            except TimeoutError:
                break
            sent += written
            pending = pending[written:]
            if sent % (50 * len(chunk)) < len(chunk):
                other.ping()
        else:
            raise AssertionError("the broker reads on and on")
        assert memory_bytes(broker) - before < LOG_GROWTH_BYTES_MAX
        other.ping()
        whole = sent // len(chunk) * 5_000
        client.socket.settimeout(ANSWER_S_MAX)
        got = 0
        while got < whole * 4:
            data = client.socket.recv(MIB)
            assert data, "closed while it was owed acknowledgements"
            got += len(data)
        client.close()
