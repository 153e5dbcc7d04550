"""Random and mutated input against a live node, for a given time: `make fuzz` (SECONDS=60 SEED=1).

Packets of MQTT, lines of text and requests of HTTP are made from good ones by changing bytes, cutting,
repeating and joining. After each batch a well-behaved client must still get its PINGRESP. At
the end stand how many were sent of each, the longest time that one callback held the loop, in CPU time of its
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

from conformance.mqtt import wire
from e2e.raw_peer import MIB, others_are_served
from loop_watch import HELD_S_MAX, LoopWatch
from millrace.testing import ThreadedBroker

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


INPUTS: dict[str, Callable[[Random], bytes]] = {
    "mqtt": mqtt_packet,
    "text": text_line,
    "http": http_request,
}


def send(broker: ThreadedBroker, door: str, random: Random, count: int) -> None:
    """One connection that sends so many, behind a good CONNECT more often than not."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", broker.ports[door]), 10) as sock,
    ):
        # A text client may still wait for messages when it has said all.
        sock.settimeout(0.3 if door == "text" else 5)
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
    with (
        tempfile.TemporaryDirectory(prefix="millrace-fuzz-") as directory,
        ThreadedBroker(
            listeners__http="127.0.0.1:0",
            listeners__text="127.0.0.1:0",
            node__data=f"{directory}/data",
            access__anonymous="always",
        ) as broker,
    ):
        yield broker


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    errors = Errors()
    logging.getLogger().addHandler(errors)
    random = Random(given.seed)
    sent = dict.fromkeys(INPUTS, 0)
    longest_s, longest = 0.0, ""
    with node() as broker:
        doors = [door for door in INPUTS if door in broker.ports]
        for door in doors:
            send(broker, door, random, BATCH)
        begin_bytes, end_s = resident_bytes(), time.monotonic() + given.seconds
        while time.monotonic() < end_s and not errors.found:
            with LoopWatch(broker) as watch:
                for door in doors:
                    for _ in range(1 if door == "http" else 10):
                        send(broker, door, random, BATCH)
                        sent[door] += BATCH
                        if time.monotonic() > end_s:
                            break
                others_are_served(broker)
            if watch.longest_s > longest_s:
                longest_s, longest = watch.longest_s, watch.longest
        end_bytes = resident_bytes()
    print(f"seed {given.seed}, {given.seconds:.0f} s, doors {', '.join(doors)}")
    for door in doors:
        print(f"{door:6} {sent[door]:>12,}")
    print(f"longest callback {longest_s * 1000:.1f} ms of CPU time: {longest[:120]}")
    print(f"memory {begin_bytes / MIB:.0f} MiB at the beginning, {end_bytes / MIB:.0f} MiB at the end")
    for text in errors.found[:5]:
        print(f"error in the log: {text}")
    return 1 if errors.found or longest_s > HELD_S_MAX else 0


if __name__ == "__main__":
    raise SystemExit(main())
