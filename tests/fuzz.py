"""Random and mutated input against a live node, for a given time: `make fuzz` (SECONDS=60 SEED=1).

Packets of MQTT, lines of text, requests of HTTP and frames of peers are made from good ones by changing
bytes, cutting, repeating and joining. At the peer port they come from strangers, who never prove the secret;
`frames` are read as if they had. After each batch a well-behaved client must still get its PINGRESP. At the
end stand how many were sent of each, the longest time that one callback held the loop, in CPU time of its
thread, and the memory at the beginning and at the end. Any error that reaches the log of a node ends the run.
"""

import argparse
import contextlib
import gc
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.mqtt import wire
from e2e.raw_peer import MIB, others_are_served
from loop_watch import HELD_S_MAX, LoopWatch
from millrace.errors import MalformedPacket
from millrace.local_cluster import PortBlock
from millrace.node.peers.messages import NodeMessage
from millrace.node.peers.registry import decode, encode
from millrace.node.peers.secret import make_secret_file
from millrace.testing import ThreadedBroker
from millrace.wire.peer import NONCE_BYTES, Frames, Handshake, Side
from unit.node.test_peer_messages import all_messages

BATCH = 200
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


def mqtt_packet(random: Random) -> bytes:
    topic, number = random.choice(TOPICS), random.randrange(70_000) & 0xFFFF
    version = random.choice((3, 4, 5))
    made: tuple[Callable[[], bytes], ...] = (
        lambda: wire.publish(topic, random.randbytes(20), qos=1, packet_id=number, version=version),
        lambda: wire.publish(
            topic, random.randbytes(20), qos=2, packet_id=number, retain=True, version=version
        ),
        lambda: wire.publish(topic, random.randbytes(200), version=version),
        lambda: wire.subscribe(number, (topic, random.randrange(64)), version=version),
        lambda: wire.unsubscribe(number, topic, version=version),
        lambda: wire.ack(random.choice((wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP)), number),
        lambda: wire.connect(topic, version=version, props={"user": ("a", topic)}),
        lambda: wire.PING,
        lambda: wire.disconnect(random.randrange(256)),
        lambda: wire.auth(random.randrange(256)),
        lambda: random.randbytes(random.randrange(1, 60)),
    )
    return mutated(random, random.choice(made)())


def text_line(random: Random) -> bytes:
    word = random.choice(
        (b"PUBLISH", b"SUBSCRIBE", b"UNSUBSCRIBE", b"CONNECT", b"GET / HTTP/1.1", random.randbytes(6))
    )
    line = word + b"|" + random.choice(TOPICS).encode() + b"|" + random.randbytes(random.randrange(60))
    return mutated(random, line) + b"\n"


def http_request(random: Random) -> bytes:
    path = random.choice(
        ("/v1/publish", "/v1/streams", "/message", "/v1/groups", "/topic", "/v1/users", "/status")
    )
    body = mutated(random, b'{"topic": "a", "payload": "x", "qos": 1, "messages": [{"topic": "b"}]}')
    method = random.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "XX"))
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return (mutated(random, head) if random.random() < 0.3 else head) + body


def known_frames(count: int = 400) -> list[bytes]:
    """Good frames of every kind."""
    frames: list[bytes] = []

    @settings(max_examples=count, database=None, deadline=None)
    @given(all_messages(), st.integers(0, 2**32 - 1))
    def collect(message: NodeMessage, number: int) -> None:
        frames.append(bytes(encode(message, number)))

    collect()
    return frames


_FRAMES: list[bytes] = []


def peer_frame(random: Random) -> bytes:
    if not _FRAMES:
        _FRAMES.extend(known_frames())
    return mutated(random, random.choice(_FRAMES))


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


INPUTS: dict[str, Callable[[Random], bytes]] = {
    "mqtt": mqtt_packet,
    "text": text_line,
    "http": http_request,
    "peer": peer_bytes,
}


def port_of(broker: ThreadedBroker, door: str) -> int:
    return broker.ports[door] if door != "peer" else broker._broker.server.config.listeners.peer.port


def send(broker: ThreadedBroker, door: str, random: Random, count: int) -> None:
    """One connection that sends so many, behind a good CONNECT more often than not."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port_of(broker, door)), 10) as sock,
    ):
        # A text client may still wait for messages when it has said all.
        sock.settimeout(0.3 if door in ("text", "peer") else 5)
        data = b"".join(INPUTS[door](random) for _ in range(count))
        if door == "mqtt" and random.random() < 0.9:
            keep = random.random() < 0.3
            data = wire.connect(f"fuzz{random.randrange(50)}", clean=not keep) + data
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(MIB):
            pass


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def node() -> Iterator[ThreadedBroker]:
    with tempfile.TemporaryDirectory(prefix="millrace-fuzz-") as directory:
        secret, ports = Path(directory) / "secret", PortBlock()
        make_secret_file(secret)
        with ThreadedBroker(
            listeners__http="127.0.0.1:0",
            listeners__text="127.0.0.1:0",
            listeners__peer=f"127.0.0.1:{ports.take()}",
            cluster__secret_file=str(secret),
            node__data=f"{directory}/data",
            access__anonymous="always",
        ) as broker:
            yield broker
        ports.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    errors = Errors()
    logging.getLogger().addHandler(errors)
    random = Random(given.seed)
    sent = dict.fromkeys((*INPUTS, "frames"), 0)
    longest_s, longest = 0.0, ""
    with node() as broker:
        doors = list(INPUTS)
        for door in doors:
            send(broker, door, random, BATCH)
        begin_bytes, end_s = resident_bytes(), time.monotonic() + given.seconds
        while time.monotonic() < end_s and not errors.found:
            with LoopWatch(broker) as watch:
                for door in doors:
                    for _ in range(10 if door in ("mqtt", "text") else 1):
                        count = 1 if door == "peer" else BATCH
                        send(broker, door, random, count)
                        sent[door] += count
                        if time.monotonic() > end_s:
                            break
                others_are_served(broker)
            read_frames(random, 10 * BATCH)
            sent["frames"] += 10 * BATCH
            if watch.longest_s > longest_s:
                longest_s, longest = watch.longest_s, watch.longest
        end_bytes = resident_bytes()
    print(f"seed {given.seed}, {given.seconds:.0f} s, doors {', '.join(doors)}")
    for kind, count in sent.items():
        print(f"{kind:6} {count:>12,}")
    print(f"longest callback {longest_s * 1000:.1f} ms of CPU time: {longest[:120]}")
    print(f"memory {begin_bytes / MIB:.0f} MiB at the beginning, {end_bytes / MIB:.0f} MiB at the end")
    for text in errors.found[:5]:
        print(f"error in the log: {text}")
    return 1 if errors.found or longest_s > HELD_S_MAX else 0


if __name__ == "__main__":
    raise SystemExit(main())
