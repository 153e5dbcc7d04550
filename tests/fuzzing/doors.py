"""Random and mutated input given to the doors' protocol objects of one node, without sockets: as many packets
of MQTT, lines of text, requests of HTTP and frames of peers as asked for. `make fuzz` runs it.

A socket carries about a thousand packets a second here, most of which nobody reads, because they come behind
one that ends the connection. So the transports are stand-ins, and what stands in the figures was read: input
goes to a connection piece by piece until that is closed, and then to the next one. Everything else is a whole
node, with its loop, its logs and its limits.
"""

import argparse
import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from conformance.mqtt import wire
from e2e.raw_peer import MIB, others_are_served
from fuzzing import inputs
from fuzzing.inputs import Errors, resident_bytes
from loop_watch import HELD_S_MAX, LoopWatch
from millrace.testing import ThreadedBroker

# Connections at the same time of each door.
CONNECTIONS = 20
# Inputs that are read in one turn of the loop, by one connection.
AT_ONCE = 8
# As much as a node that was fed for a while may have taken more than at the beginning.
GROWTH_BYTES_MAX = 48 * MIB


class Transport:
    """What a door sees of a socket whose peer takes all."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Any) -> None:
        self._loop = loop
        self.protocol = protocol
        self.is_reading = True
        self.is_closed = False
        self.answers = 0
        # The input that took longest to read, for whoever looks for the reason, and how long.
        self.slowest, self.slowest_s = b"", 0.0
        # That an MQTT client said.
        self.version = 4
        protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        begin_s = time.thread_time()
        self.protocol.data_received(data)
        if (taken_s := time.thread_time() - begin_s) > self.slowest_s:
            self.slowest, self.slowest_s = data, taken_s

    def write(self, data: bytes) -> None:
        self.answers += data.count(b"HTTP/1.1 ")

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000) if name in ("peername", "sockname") else default


class Feeder:
    """Feeds so many inputs to the connections of one door, in turns of the node's loop."""

    def __init__(self, broker: ThreadedBroker, random: Random, wanted: int) -> None:
        self._server = broker._broker.server
        self._loop: asyncio.AbstractEventLoop = broker._loop
        self._random, self._wanted = random, wanted
        self._transports: list[Transport] = []
        self._next = 0
        self.fed = self.connections = 0
        self.slowest, self.slowest_s = b"", 0.0

    async def run(self) -> None:
        done = asyncio.Event()

        def turn() -> None:
            if self.fed >= self._wanted:
                done.set()
                return
            try:
                self._turn()
            except Exception:
                # A real transport logs it and goes on.
                logging.getLogger("millrace.fuzz").exception("a protocol object failed")
            self._loop.call_soon(turn)

        turn()
        await done.wait()
        for transport in self._transports:
            transport.close()
        await asyncio.sleep(0)

    def _turn(self) -> None:
        if len(self._transports) < CONNECTIONS:
            self._transports.append(self._opened())
            return
        self._next = (self._next + 1) % CONNECTIONS
        transport = self._transports[self._next]
        if transport.slowest_s > self.slowest_s:
            self.slowest, self.slowest_s = transport.slowest, transport.slowest_s
        if transport.is_closed:
            self._transports[self._next] = self._opened()
        elif transport.is_reading:
            self._feed(transport)

    def _opened(self) -> Transport:
        self.connections += 1
        return self._open()

    def _open(self) -> Transport:
        raise NotImplementedError

    def _feed(self, transport: Transport) -> None:
        """Give it some inputs one by one, as long as it takes them."""
        for _ in range(AT_ONCE):
            data = self._input(transport)
            self.fed += 1
            if len(data) > 2 and self._random.random() < 0.1:
                # In two reads.
                at = self._random.randrange(1, len(data))
                transport.feed(data[:at])
                data = data[at:]
                if transport.is_closed:
                    return
            transport.feed(data)
            if transport.is_closed or not transport.is_reading:
                return

    def _input(self, transport: Transport) -> bytes:
        raise NotImplementedError


class MqttFeeder(Feeder):
    def _open(self) -> Transport:
        transport = Transport(self._loop, self._server._tcp_connection("mqtt", False))
        if self._random.random() < 0.95:
            keep = self._random.random() < 0.1
            version = self._random.choice((3, 4, 5))
            client_id = f"fuzz{self._random.randrange(200)}"
            transport.feed(wire.connect(client_id, clean=not keep, version=version))
            transport.version = version
        return transport

    def _input(self, transport: Transport) -> bytes:
        return inputs.mqtt_packet(self._random, transport.version)


class TextFeeder(Feeder):
    def _open(self) -> Transport:
        return Transport(self._loop, self._server._text_connection("text", False))

    def _input(self, transport: Transport) -> bytes:
        return inputs.text_line(self._random)


class HttpFeeder(Feeder):
    """One request after the other is answered before the next one comes, or its connection is closed."""

    def __init__(self, broker: ThreadedBroker, random: Random, wanted: int) -> None:
        super().__init__(broker, random, wanted)
        self._asked: dict[Transport, int] = {}
        self._turns: dict[Transport, int] = {}

    def _open(self) -> Transport:
        return Transport(self._loop, self._server._http._application.connection())

    def _feed(self, transport: Transport) -> None:
        asked, turns = self._asked.get(transport, 0), self._turns.get(transport, 0)
        if transport.answers < asked and turns < 100:
            # A head or a body that was cut waits for its rest: the client gives up in the end.
            self._turns[transport] = turns + 1
            return
        if transport.answers < asked:
            transport.close()
            return
        self._turns[transport] = 0
        self._asked[transport] = transport.answers + 1
        self.fed += 1
        transport.feed(self._input(transport))

    def _opened(self) -> Transport:
        for transport in [one for one in self._asked if one.is_closed]:
            del self._asked[transport], self._turns[transport]
        return super()._opened()

    def _input(self, transport: Transport) -> bytes:
        return inputs.http_request(self._random)


FEEDERS: dict[str, Callable[[ThreadedBroker, Random, int], Feeder]] = {
    "mqtt": MqttFeeder,
    "text": TextFeeder,
    "http": HttpFeeder,
}


class Found:
    """What a run saw: by door how many inputs, and over all the longest callback."""

    def __init__(self) -> None:
        self.fed: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        self.connections: dict[str, int] = {}
        self.longest_s, self.longest = 0.0, "nothing"
        self.slowest, self.slowest_s = b"", 0.0
        self.begin_bytes = self.end_bytes = 0

    def watched(self, watch: LoopWatch, feeder: Feeder) -> None:
        if feeder.slowest_s > self.slowest_s:
            self.slowest, self.slowest_s = feeder.slowest, feeder.slowest_s
        if watch.longest_s > self.longest_s:
            self.longest_s, self.longest = watch.longest_s, watch.longest


def feed(broker: ThreadedBroker, door: str, random: Random, wanted: int, found: Found) -> None:
    """So many inputs to one door, and see that others are served still."""
    feeder = FEEDERS[door](broker, random, wanted)
    begin_s = time.monotonic()
    with LoopWatch(broker) as watch:
        asyncio.run_coroutine_threadsafe(feeder.run(), broker._loop).result()
    found.watched(watch, feeder)
    found.fed[door] = found.fed.get(door, 0) + feeder.fed
    found.connections[door] = found.connections.get(door, 0) + feeder.connections
    found.seconds[door] = found.seconds.get(door, 0.0) + time.monotonic() - begin_s
    others_are_served(broker)


def portions(wanted: dict[str, int], size: int) -> Iterator[tuple[str, int]]:
    """All doors in turns, some at a time."""
    left = dict(wanted)
    while any(left.values()):
        for door, remaining in list(left.items()):
            some = min(remaining, size)
            left[door] -= some
            if some:
                yield door, some


def run(wanted: dict[str, int], frames: int, seed: int, errors: Errors, portion: int = 5_000) -> Found:
    found, random = Found(), Random(seed)
    with inputs.node() as broker:
        inputs.warm_up(broker)
        # What is remembered and bounded fills first.
        for door, number in wanted.items():
            feed(broker, door, random, min(number, portion), Found())
        found.begin_bytes = resident_bytes()
        for door, some in portions(wanted, portion):
            feed(broker, door, random, some, found)
            if errors.found:
                break
        inputs.read_frames(random, frames)
        found.end_bytes = resident_bytes()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mqtt", type=int, default=10_000_000)
    parser.add_argument("--text", type=int, default=1_000_000)
    parser.add_argument("--http", type=int, default=1_000_000)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    errors = Errors()
    logging.getLogger().addHandler(errors)
    wanted = {door: getattr(given, door) for door in FEEDERS}
    found = run(wanted, given.frames, given.seed, errors, 50_000)
    print(f"seed {given.seed}, without sockets")
    for door, fed in found.fed.items():
        rate = fed / found.seconds[door]
        print(f"{door:6} {fed:>12,} in {found.connections[door]:,} connections, {rate:,.0f}/s")
    print(f"frames {given.frames:>12,}")
    print(f"longest callback {found.longest_s * 1000:.1f} ms of CPU time: {found.longest[:120]}")
    print(
        f"memory {found.begin_bytes / MIB:.0f} MiB at the beginning, {found.end_bytes / MIB:.0f} at the end"
    )
    for text in errors.found[:5]:
        print(f"error in the log: {text}")
    has_grown = found.end_bytes - found.begin_bytes > GROWTH_BYTES_MAX
    return 1 if errors.found or found.longest_s > HELD_S_MAX or has_grown else 0


if __name__ == "__main__":
    raise SystemExit(main())
