"""Random and mutated input against a live node, for a given time: `make fuzz` (SECONDS=60 SEED=1).

Packets of MQTT, lines of text, requests of HTTP and frames of peers are made from good ones by changing
bytes, cutting, repeating and joining. At the peer port they come from strangers, who never prove the secret;
`frames` are read as if they had. After each batch a well-behaved client must still get its PINGRESP. At the
end stand how many were sent of each, the longest time that one callback held the loop, in CPU time of its
thread, and the memory at the beginning and at the end. Any error that reaches the log of a node ends the run.
"""

import argparse
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from random import Random

from conformance.mqtt import wire
from e2e.raw_peer import MIB, others_are_served
from fuzzing.inputs import (
    Errors,
    http_request,
    mqtt_packet,
    node,
    peer_bytes,
    read_frames,
    resident_bytes,
    text_line,
    warm_up,
)
from loop_watch import HELD_S_MAX, LoopWatch
from millrace.testing import ThreadedBroker

BATCH = 200

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
        warm_up(broker)
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
