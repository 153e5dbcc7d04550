"""What everyday operations of single devices cost, and how the cost grows with their number.

Each row runs one operation a number of times against a fresh broker and takes the broker's CPU time and
memory from the accounts of the kernel, so that a busy machine changes the figures little. Ours and the peer's
are measured in turn. A row is run at several sizes: the cost of one unit at the largest must stay near that
at the size before, else it grows faster than the work.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from millrace.lab.bench import idle_streams, peers
from millrace.lab.bench.accounts import Account, Cost
from millrace.types import Subscription, Version
from millrace.wire.mqtt.codec import encode, encode_publish
from millrace.wire.mqtt.packets import Connect, Disconnect, Pingreq, Subscribe

_HOST = "127.0.0.1"
_SOCKET_S_MAX = 120.0
_READ_BYTES = 1 << 18
_LOOK_S = 0.25
# The cost of one unit may rise by so much from the last size but one to the last: caches, and the machine.
GROWTH_MAX = 2.0
_PAYLOAD = bytes(64)
_FILTERS_PER_CLIENT = 1_000
_FILTERS_PER_PACKET = 100
_DEVICES_AT_ONCE = 100
_PONG = b"\xd0\x00"


class Device:
    """A client that knows just what is measured here."""

    def __init__(self, port: int, name: str, *, keeps: bool = False, waits: bool = True) -> None:
        """`keeps`: its session stays when it leaves. `waits`: for the answer, else `accepted` does."""
        self.socket = socket.create_connection((_HOST, port), timeout=_SOCKET_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connect = Connect(version=Version.MQTT_3_1_1, client_id=name, clean_start=not keeps, keep_alive_s=600)
        self.socket.sendall(encode(connect, Version.MQTT_3_1_1))
        if waits:
            self.accepted()

    def accepted(self) -> None:
        self.read(4)

    def __enter__(self) -> "Device":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def read(self, wanted_bytes: int) -> None:
        while wanted_bytes > 0:
            got = self.socket.recv(min(wanted_bytes, _READ_BYTES))
            if not got:
                raise ConnectionError("the broker closed the connection")
            wanted_bytes -= len(got)

    def subscribe(self, filters: Sequence[str], qos: int = 0) -> None:
        self.ask_for(filters, qos)
        self.granted(len(filters))

    def ask_for(self, filters: Sequence[str], qos: int) -> None:
        wanted = tuple(Subscription(filter=filter, qos=qos) for filter in filters)
        packet = Subscribe(packet_id=1, subscriptions=wanted)
        self.socket.sendall(encode(packet, Version.MQTT_3_1_1))

    def granted(self, count: int) -> None:
        body_bytes = 2 + count
        self.read(body_bytes + (2 if body_bytes < 128 else 3))

    def leave(self) -> None:
        self.socket.sendall(encode(Disconnect(), Version.MQTT_3_1_1))
        self.socket.close()


def _publishes(topics: Iterator[str], first: int = 0x30) -> bytes:
    return b"".join(encode_publish(topic.encode(), _PAYLOAD, first, 0, b"") for topic in topics)


# --------------------------------------------------------------------------------------------- rows


def _new_topics(account: Account, count: int) -> None:
    """Topics that the broker has never seen, to one subscriber of everything."""
    _publish_topics(account, count, rounds=1)


def _topics_again(account: Account, count: int) -> None:
    """Topics in turn, twice all of them: more than the routes that a node remembers."""
    _publish_topics(account, count // 2, rounds=2)


def _publish_topics(account: Account, topics: int, rounds: int) -> None:
    data = _publishes(f"site/{number % 100}/device/{number}/t" for number in range(topics))
    with Device(account.port, "reader") as reader, Device(account.port, "writer") as writer:
        reader.subscribe(["#"])
        waiting = threading.Thread(target=reader.read, args=(len(data) * rounds,))
        waiting.start()
        for _ in range(rounds):
            writer.socket.sendall(data)
        waiting.join()


def _filters(account: Account, count: int, form: str) -> None:
    with ExitStack() as stack:
        for first in range(0, count, _FILTERS_PER_CLIENT):
            device = stack.enter_context(Device(account.port, f"subscriber-{first}"))
            for at in range(first, min(first + _FILTERS_PER_CLIENT, count), _FILTERS_PER_PACKET):
                device.subscribe([form % number for number in range(at, at + _FILTERS_PER_PACKET)])
        account.still_cpu_s()


def _exact_filters(account: Account, count: int) -> None:
    """Subscriptions without wildcards, a hundred in a packet, a thousand of a client."""
    _filters(account, count, "device/%d/command")


def _wildcard_filters(account: Account, count: int) -> None:
    """The same, each with a wildcard."""
    _filters(account, count, "device/%d/+")


def _retained(account: Account, count: int) -> None:
    """Retained messages at QoS 0, each on a topic of its own, in one go."""
    with Device(account.port, "writer") as writer:
        writer.socket.sendall(_retained_packets(count))
        writer.socket.sendall(encode(Pingreq(), Version.MQTT_3_1_1))
        writer.read(len(_PONG))


def _retained_packets(count: int) -> bytes:
    return _publishes((f"r/{n % 100}/d/{n}" for n in range(count)), 0x31)


def _replay(account: Account, count: int) -> None:
    """Retained messages that are there, all of them for one new subscriber."""
    with Device(account.port, "reader") as reader:
        reader.subscribe(["#"])
        reader.read(len(_retained_packets(count)))


def _durable_sessions(account: Account, count: int) -> None:
    """A client connects, subscribes to two filters and leaves; its session stays. One after the other."""
    for number in range(count):
        device = Device(account.port, f"durable-{number}", keeps=True)
        device.subscribe([f"a/{number}", f"b/{number}/+"], qos=1)
        device.leave()


def _sessions_away(account: Account, count: int) -> None:
    """The same, many at once, as a fleet comes back: what turns of the loop share, and what a session that is
    away takes in memory."""
    for first in range(0, count, _DEVICES_AT_ONCE):
        numbers = range(first, min(first + _DEVICES_AT_ONCE, count))
        devices = [Device(account.port, f"away-{number}", keeps=True, waits=False) for number in numbers]
        for number, device in zip(numbers, devices, strict=True):
            device.accepted()
            device.ask_for([f"a/{number}", f"b/{number}/+"], qos=1)
        for device in devices:
            device.granted(2)
            device.leave()


def _connections(account: Account, count: int) -> None:
    """Connections that stay and say nothing."""
    with ExitStack() as stack:
        for number in range(count):
            stack.enter_context(Device(account.port, f"idle-{number}"))
        account.still_cpu_s()


def _starts(broker: peers.Broker, count: int) -> Cost:
    """From the start of the process until it takes connections, with an empty directory, again and again."""
    cpu_s = memory_bytes = seconds = 0.0
    for _ in range(count):
        begin_s = time.monotonic()
        with peers.running(broker, durable=True) as started:
            seconds += time.monotonic() - begin_s
            account = Account(started)
            cpu_s += account.exact_cpu_s()
            memory_bytes += account.memory_bytes()
    return Cost(
        row="start",
        broker=broker.name,
        units=count,
        cpu_us=cpu_s / count * 1e6,
        memory_bytes=memory_bytes / count,
        seconds=seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    units: int
    """At the larger of two sizes."""
    operate: Callable[[Account, int], None] | None = None
    """What is done to a broker that runs."""
    observe: Callable[[peers.Broker, int], Cost] | None = None
    """In its place, for what is more than that."""
    is_ours_alone: bool = False
    """The peer has nothing of the kind."""
    is_long: bool = False
    """Takes minutes, so it is run where it is asked for by name."""
    large_units: int = 0
    """At the largest where many are asked for; 0: no more than that."""
    prepare: Callable[[Account, int], None] | None = None
    """What is done before, and not counted."""

    def sizes(self, *, is_large: bool) -> tuple[int, ...]:
        """Rising. Where many are asked for, a curve by powers of ten; else a quarter and the whole."""
        if not (is_large and self.large_units):
            return self.units // 4, self.units
        return tuple(self.large_units // 10**power for power in range(_POWERS, -1, -1))


# From a thousandth of the largest size on.
_POWERS = 3
# A node keeps a million retained messages by default, and has some of its own.
_RETAINED_LARGE = 900_000
# A cluster has a thousand streams at most, and one by itself.
_STREAMS_MOST = 996
ROWS = (
    Row(name="new-topics", operate=_new_topics, units=100_000, large_units=1_000_000),
    Row(name="topics-again", operate=_topics_again, units=900_000, large_units=2_000_000),
    Row(name="filters-exact", operate=_exact_filters, units=40_000, large_units=1_000_000),
    Row(name="filters-wildcard", operate=_wildcard_filters, units=40_000, large_units=1_000_000),
    Row(name="retained-set", operate=_retained, units=20_000, large_units=_RETAINED_LARGE),
    Row(
        name="retained-replay",
        operate=_replay,
        prepare=_retained,
        units=20_000,
        large_units=_RETAINED_LARGE,
    ),
    Row(name="durable-sessions", operate=_durable_sessions, units=2_000),
    Row(name="sessions-away", operate=_sessions_away, units=8_000),
    Row(name="connections", operate=_connections, units=2_000),
    Row(name="start", observe=_starts, units=8),
    Row(name="idle-streams", observe=idle_streams.at_one_node, units=100, is_ours_alone=True),
    Row(
        name="idle-streams-of-three",
        observe=idle_streams.at_three_nodes,
        units=_STREAMS_MOST,
        is_ours_alone=True,
        is_long=True,
    ),
)


def measure(row: Row, broker: peers.Broker, units: int) -> Cost:
    """One run against a fresh broker."""
    if row.observe is not None:
        return row.observe(broker, units)
    assert row.operate is not None
    with peers.running(broker, durable=True) as started:
        account = Account(started)
        if row.prepare is not None:
            row.prepare(account, units)
        account.still_cpu_s()
        before_s, before_bytes = account.exact_cpu_s(), account.memory_bytes()
        held = _Peak(account)
        begin_s = time.monotonic()
        with held:
            row.operate(account, units)
        seconds = time.monotonic() - begin_s
        account.still_cpu_s()
        cpu_s = account.exact_cpu_s() - before_s
    return Cost(
        row=row.name,
        broker=broker.name,
        units=units,
        cpu_us=cpu_s / units * 1e6,
        memory_bytes=max(0, held.bytes - before_bytes) / units,
        seconds=seconds,
    )


class _Peak:
    """The most memory that was held while something ran; what is freed at its end counts too."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.bytes = 0

    def _look(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            self.bytes = max(self.bytes, self._account.memory_bytes())

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.bytes = max(self.bytes, self._account.memory_bytes())


def growth(costs: Sequence[Cost]) -> float:
    """How much dearer one unit is at the last size than at the one before; of one row and broker, rising."""
    small, large = costs[-2:]
    return large.cpu_us / small.cpu_us if small.cpu_us else 1.0


def by_row(costs: Sequence[Cost]) -> dict[tuple[str, str], list[Cost]]:
    """The sizes of each row and broker."""
    found: dict[tuple[str, str], list[Cost]] = {}
    for cost in costs:
        found.setdefault((cost.row, cost.broker), []).append(cost)
    return found


def table(costs: Sequence[Cost]) -> list[dict[str, object]]:
    """A line for each row and broker: the sizes, their costs, and how the cost of one unit grew."""
    return [
        {
            "row": name,
            "broker": broker,
            "units": " / ".join(f"{cost.units:,}" for cost in sizes),
            "cpu_us": " / ".join(f"{cost.cpu_us:.1f}" for cost in sizes),
            "bytes": f"{sizes[-1].memory_bytes:,.0f}",
            "wall_us": f"{sizes[-1].seconds / sizes[-1].units * 1e6:,.0f}",
            "growth": f"{growth(sizes):.2f}",
        }
        for (name, broker), sizes in by_row(costs).items()
    ]
