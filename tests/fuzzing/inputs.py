"""Inputs for the doors of a node: good ones, changed by changing bytes, cutting, repeating and joining."""

import contextlib
import gc
import logging
import os
import tempfile
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.mqtt import wire
from e2e.http_calls import call
from e2e.raw_peer import Peer
from millrace.errors import MalformedPacket
from millrace.local_cluster import PortBlock
from millrace.node.peers.messages import NodeMessage
from millrace.node.peers.registry import decode, encode
from millrace.node.peers.secret import make_secret_file
from millrace.testing import ThreadedBroker
from millrace.wire.peer import NONCE_BYTES, Frames, Handshake, Side
from unit.node.test_peer_messages import all_messages

GOOD_TOPICS = ("a", "a/b", "a/b/c", "b", "\u00fc/x", "x" * 500)
FILTERS = ("a/+", "a/#", "+/b", "$share/g/a", "$share/g/#")
TOPICS = ("a", "a/b", "a/+", "#", "$share/g/a", "$SYS/x", "\u00fc/" * 20, "", "/", "x" * 2_000)


class Errors(logging.Handler):
    """What no input may bring about: an error in the log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


def mutated(random: Random, data: bytes) -> bytes:
    """A good packet, changed a little."""
    body = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2, 8))):
        if not body:
            break
        at = random.randrange(len(body))
        match random.randrange(5):
            case 0:
                body[at] = random.randrange(256)
            case 1:
                del body[at : at + random.randrange(1, 9)]
            case 2:
                body[at:at] = random.randbytes(random.randrange(1, 9))
            case 3:
                body[at] ^= 1 << random.randrange(8)
            case _:
                body += body[at:]
    return bytes(body)


def _made_packet(random: Random, version: int) -> bytes:
    """Right nine times in ten, as far as one packet can tell."""
    is_right = random.random() < 0.9
    topic = random.choice(GOOD_TOPICS if is_right else TOPICS)
    filter = random.choice((*GOOD_TOPICS, *FILTERS) if is_right else TOPICS)
    options = random.randrange(3) | random.choice((0, 0x08, 0x10)) * (version == 5)
    if not is_right:
        version, options = random.choice((3, 4, 5)), random.randrange(64)
    number = random.randrange(1, 0x10000)
    usual: tuple[Callable[[], bytes], ...] = (
        lambda: wire.publish(topic, random.randbytes(20), qos=1, packet_id=number, version=version),
        lambda: wire.publish(topic, b"x", qos=2, packet_id=number, retain=True, version=version),
        lambda: wire.publish(topic, random.randbytes(200), version=version),
        lambda: wire.subscribe(number, (filter, options), version=version),
        lambda: wire.unsubscribe(number, filter, version=version),
        lambda: wire.ack(random.choice((wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP)), number),
        lambda: wire.PING,
    )
    last: tuple[Callable[[], bytes], ...] = (
        lambda: wire.connect(topic, version=version, props={"user": ("a", topic)}),
        lambda: wire.disconnect(random.randrange(256)),
        lambda: wire.auth(random.randrange(256)),
        lambda: random.randbytes(random.randrange(1, 60)),
    )
    return random.choice(usual if is_right else last)() if random.random() < 0.98 else random.choice(last)()


@cache
def _stock(version: int) -> tuple[bytes, ...]:
    return tuple(_made_packet(Random(number), version) for number in range(5_000))


def mqtt_packet(random: Random, version: int | None = None) -> bytes:
    """For a connection of this version. From a stock, as making one takes as long as reading it. Most errors
    end a connection, so most packets are right."""
    packet = random.choice(_stock(version or random.choice((3, 4, 5))))
    return mutated(random, packet) if random.random() < 0.2 else packet


def text_line(random: Random) -> bytes:
    word = random.choice(
        (b"PUBLISH", b"SUBSCRIBE", b"UNSUBSCRIBE", b"CONNECT", b"GET / HTTP/1.1", random.randbytes(6))
    )
    line = word + b"|" + random.choice(TOPICS).encode() + b"|" + random.randbytes(random.randrange(60))
    return mutated(random, line) + b"\n"


# It would end the run, deny the rest of it, or answer for as long as the client listens.
_NOT_ASKED = ("drain", "remove", "live", "tail", "/v1/cluster/", "/v1/rules/")
_BODIES = (
    b'{"topic": "a", "payload": "x", "qos": 1, "retain": true}',
    b'{"messages": [{"topic": "b", "payload": "eA==", "encoding": "base64"}, {"topic": "a"}]}',
    b'{"name": "s", "filters": ["s/#"], "shards": 1, "replication": "routed"}',
    b'{"name": "ann", "password": "pw", "roles": ["observer"]}',
    b'{"count": 3, "lease_ms": 10, "client": "c", "wait_ms": 0}',
    b'{"topic": "q", "message": "m", "receipt": "1-2-3"}',
    b"[1, [2, {}], null, true, 1e400, -0]",
    b"\x00\x00\x00\x01" * 8,
    b"",
)
_NAMES = ("a", "s", "fuzz1", "..%2f..%2fetc%2fpasswd", "%00", "\u00fc".encode().hex(), "0", "9" * 40)
_ADMINISTRATOR = "Authorization: Basic " + b64encode(b"root:pw").decode()
_HEADERS = ("Expect: 100-continue", "Origin: http://evil.example", "X: " + "y" * 500, "Accept: text/html")


@cache
def http_paths() -> tuple[tuple[str, str], ...]:
    """The methods and paths of the API."""
    from millrace.node.doors.http.app import ROUTERS

    found = [("GET", "/"), ("GET", "/nothing"), ("XX", "/v1/publish"), ("PATCH", "/status")]
    for router in ROUTERS:
        for route in router.routes:
            path = getattr(route, "path", "")
            if not any(word in path for word in _NOT_ASKED):
                found += [(method, path) for method in sorted(getattr(route, "methods", None) or ())]
    return tuple(found)


def http_request(random: Random) -> bytes:
    method, path = random.choice(http_paths())
    while "{" in path:
        before, _, rest = path.partition("{")
        path = before + random.choice(_NAMES) + rest.partition("}")[2]
    if random.random() < 0.3:
        path += "?" + mutated(random, b"topic=a&count=3&cursor=x&offset=1&limit=2").hex()
    body = mutated(random, random.choice(_BODIES))
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    if random.random() < 0.7:
        lines.append("Content-Type: application/json")
    if random.random() < 0.9:
        lines.append(_ADMINISTRATOR)
    if random.random() < 0.1:
        lines.append(random.choice(_HEADERS))
    head = ("\r\n".join(lines) + "\r\n\r\n").encode()
    return (mutated(random, head) if random.random() < 0.1 else head) + body


@cache
def known_frames() -> list[bytes]:
    """Good frames of every kind."""
    frames: list[bytes] = []

    @settings(max_examples=400, database=None, deadline=None)
    @given(all_messages(), st.integers(0, 2**32 - 1))
    def collect(message: NodeMessage, number: int) -> None:
        frames.append(bytes(encode(message, number)))

    collect()
    return frames


def peer_frame(random: Random) -> bytes:
    return mutated(random, random.choice(known_frames()))


def peer_bytes(random: Random) -> bytes:
    """What a stranger says: a good hello more often than not, a wrong proof, and frames."""
    hello = Handshake(Side.DIALED, b"guess", random.randbytes(NONCE_BYTES)).hello
    return mutated(random, hello) + random.randbytes(random.choice((0, 31, 32, 40))) + peer_frame(random)


def read_frames(random: Random, count: int) -> None:
    """Frames as a link reads them: a message, or the one error that closes the link."""
    for _ in range(count):
        try:
            for tag, _, body in Frames().receive(peer_frame(random)):
                decode(tag, body)
        except MalformedPacket:
            pass


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def node() -> Iterator[ThreadedBroker]:
    # In memory, where there is such a folder: the speed of a disk is no matter here.
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="millrace-fuzz-", dir=where) as directory:
        secret, ports = Path(directory) / "secret", PortBlock()
        make_secret_file(secret)
        with ThreadedBroker(
            listeners__http="127.0.0.1:0",
            listeners__text="127.0.0.1:0",
            listeners__peer=f"127.0.0.1:{ports.take()}",
            cluster__secret_file=str(secret),
            node__data=f"{directory}/data",
            access__anonymous="always",
            # What a node may keep of anybody's messages is bounded, and here it is soon full.
            limits__retained_messages_max=2_000,
            limits__routes_cached_max=10_000,
            limits__queued_messages_max=1_000,
            limits__queued_bytes_max=2 << 20,
            limits__sessions_max=1_000,
            limits__connections_max=500,
        ) as broker:
            yield broker
        ports.close()


def warm_up(broker: ThreadedBroker) -> None:
    """What is loaded at the first use of a door. Requests are those of an administrator, whose user is made
    here; everybody else may publish and subscribe."""
    # Ours, which would be counted as the node's.
    known_frames()
    for version in (3, 4, 5):
        _stock(version)
    port, name = broker.ports["http"], _ADMINISTRATOR.partition(": ")[2]
    call(port, "POST", "/v1/users", {"name": "root", "password": "pw", "roles": ["admin"]})
    rule = {"user": "*", "effect": "allow", "action": "all", "filter": "#"}
    assert call(port, "POST", "/v1/rules", rule, Authorization=name).status == 201
    assert call(port, "GET", "/v1/users", Authorization=name).status == 200
    with Peer(broker) as peer:
        peer.until_ping()
