"""A client core against the real broker without sockets, the connection cut anywhere and made again.

Bytes on the way are lost with a cut, in both directions, in the middle of packets too. Whatever the cuts,
QoS 2 arrives once and in order both ways, and QoS 1 arrives at least once, its first copies in order.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.client.conversation.events import Connected, Delivered, Event, Published
from millrace.client.conversation.incoming import Message
from millrace.client.conversation.protocol import Options, Protocol, State
from millrace.limits import Limits
from millrace.node.config import Mqtt
from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.node.doors.mqtt_door import MqttDoor
from millrace.reasons import Reason
from millrace.types import Message as PlainMessage
from millrace.types import Subscription, Version


class Wire:
    """A connection whose bytes stay where they are until a test moves them. The broker's transport."""

    def __init__(self, world: "World", core: Protocol) -> None:
        self.core = core
        self.to_broker = b""
        self.to_client = b""
        self._world = world
        self._connection = MqttConnection(world.door)
        self._connection.connection_made(self)
        core.connect(0.0)

    def move(self, up_bytes: int, down_bytes: int) -> None:
        self.to_broker += self.core.data_to_send(0.0)
        up, self.to_broker = self.to_broker[:up_bytes], self.to_broker[up_bytes:]
        if up:
            self._connection.data_received(up)
        self._world.door.flush()
        down, self.to_client = self.to_client[:down_bytes], self.to_client[down_bytes:]
        if down:
            self.core.receive_data(down, 0.0)

    def cut(self) -> None:
        self._connection.connection_lost(None)
        self._world.door.flush()
        self.core.connection_lost()

    def write(self, data: bytes) -> None:
        self.to_client += data

    def close(self) -> None:
        raise AssertionError("the broker closed the connection of a correct client")

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_extra_info(self, name: str) -> Any:
        return None


class World:
    """A broker, the client under test, and a steady one that sees and sends everything."""

    def __init__(self, version: Version, qos: int, window: int) -> None:
        self.door = MqttDoor(
            Broker(Limits(receive_maximum=window), AccessRules(())),
            Mqtt(),
            now_ms=lambda: 0,
            wake=lambda: None,
            authenticate=lambda connection, packet, done: done(True),
            random=Random(0),
        )
        self.qos = qos
        self.tickets = 0
        self.steady = Protocol(Options(client_id="steady"))
        self.steady_wire = Wire(self, self.steady)
        self.seen: list[bytes] = []
        self._subscribe(self.steady, "up")
        self._settle_steady()

        self._options = Options(
            client_id="tested",
            version=version,
            session_expiry_s=100,
            clean_start=False,
            receive_maximum=window,
        )
        self.wire: Wire | None = None
        self.taken: list[bytes] = []
        self.finished: set[int] = set()
        self.sessions: list[bool] = []
        self.up_sent: list[bytes] = []
        self.down_sent: list[bytes] = []
        self.process = 0
        self.restart()

    def _subscribe(self, core: Protocol, topic: str) -> None:
        core.subscribe(self._ticket(), 1, (Subscription(filter=topic, qos=self.qos),))

    def _ticket(self) -> int:
        self.tickets += 1
        return self.tickets

    def _settle_steady(self) -> None:
        """The steady client's bytes never wait."""
        while True:
            self.steady_wire.move(1 << 30, 1 << 30)
            event = self.steady.next_event()
            if event is None and not self.steady_wire.to_client:
                data = self.steady.data_to_send(0.0)
                if not data:
                    return
                self.steady_wire.to_broker += data
            while event is not None:
                if isinstance(event, Delivered):
                    self.seen.append(event.message.payload)
                    self.steady.take(event.message)
                event = self.steady.next_event()

    # ------------------------------------------------------------------------------------- actions

    def restart(self) -> None:
        """The client's process dies and another takes its place: only the broker remembers."""
        self.cut()
        self.process += 1
        self.core = Protocol(self._options)
        self.buffer: list[Message] = []
        self._subscribe(self.core, "down")

    def publish_up(self) -> None:
        payload = b"%d: up %d" % (self.process, len(self.up_sent))
        self.up_sent.append(payload)
        self.core.publish(self._ticket(), PlainMessage(topic="up", payload=payload, qos=self.qos))

    def publish_down(self) -> None:
        payload = b"down %d" % len(self.down_sent)
        self.down_sent.append(payload)
        self.steady.publish(self._ticket(), PlainMessage(topic="down", payload=payload, qos=self.qos))
        self._settle_steady()

    def connect(self) -> None:
        if self.wire is None:
            self.wire = Wire(self, self.core)

    def cut(self) -> None:
        if self.wire is not None:
            self.wire.cut()
            self.wire = None

    def move(self, up_bytes: int, down_bytes: int) -> None:
        if self.wire is not None:
            self.wire.move(up_bytes, down_bytes)
            self._settle_steady()
        while (event := self.core.next_event()) is not None:
            self._on_event(event)

    def take(self, count: int) -> None:
        for message in self.buffer[:count]:
            self.taken.append(message.payload)
            self.core.take(message)
        del self.buffer[:count]

    def _on_event(self, event: Event) -> None:
        match event:
            case Delivered():
                self.buffer.append(event.message)
            case Published():
                assert event.reason is Reason.SUCCESS
                assert event.ticket not in self.finished
                self.finished.add(event.ticket)
            case Connected():
                self.sessions.append(event.connack.session_present)
            case _:
                pass

    def settle(self) -> None:
        """A healthy end: connected, and everything moved and taken."""
        for _ in range(1000):
            self.connect()
            assert self.wire is not None
            before = (len(self.taken), len(self.seen), len(self.finished), self.core.state)
            self.move(1 << 30, 1 << 30)
            self.take(1 << 30)
            idle = not self.wire.to_broker and not self.wire.to_client
            if idle and before == (len(self.taken), len(self.seen), len(self.finished), self.core.state):
                data = self.core.data_to_send(0.0)
                if not data:
                    return
                self.wire.to_broker += data
        raise AssertionError("no rest")


_ACTIONS = st.one_of(
    st.tuples(st.just("publish_up")),
    st.tuples(st.just("publish_down")),
    st.tuples(st.just("connect")),
    st.tuples(st.just("cut")),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.tuples(st.just("move"), st.integers(0, 200), st.integers(0, 200)),
    st.tuples(st.just("move"), st.just(10_000), st.just(10_000)),
)


def _run(version: Version, qos: int, window: int, actions: list[tuple[Any, ...]]) -> World:
    world = World(version, qos, window)
    # The session exists before anything can go wrong with it.
    world.connect()
    world.move(10_000, 10_000)
    world.move(10_000, 10_000)
    assert world.core.state is State.CONNECTED
    for name, *arguments in actions:
        getattr(world, name)(*arguments)
    world.settle()
    assert all(world.sessions[1:]), "the broker lost the session"
    return world


@pytest.mark.parametrize("version", [Version.MQTT_5, Version.MQTT_3_1_1])
@settings(max_examples=150, deadline=None)
@given(window=st.integers(1, 5), actions=st.lists(_ACTIONS, max_size=60))
def test_qos_2_arrives_once_and_in_order_both_ways(
    version: Version, window: int, actions: list[tuple[Any, ...]]
) -> None:
    world = _run(version, 2, window, actions)
    assert world.seen == world.up_sent
    assert world.taken == world.down_sent
    assert len(world.finished) == len(world.up_sent)


@pytest.mark.parametrize("version", [Version.MQTT_5, Version.MQTT_3_1_1])
@settings(max_examples=100, deadline=None)
@given(
    window=st.integers(1, 5),
    actions=st.lists(st.one_of(_ACTIONS, st.tuples(st.just("restart"))), max_size=60),
)
def test_a_new_process_publishes_once_whatever_the_old_one_left_unfinished(
    version: Version, window: int, actions: list[tuple[Any, ...]]
) -> None:
    world = _run(version, 2, window, actions)
    # Of an old process some may be missing, because nobody was left to send them again.
    assert len(set(world.seen)) == len(world.seen)
    assert world.seen == [payload for payload in world.up_sent if payload in set(world.seen)]
    last = b"%d:" % world.process
    assert {p for p in world.up_sent if p.startswith(last)} <= set(world.seen)
    # What an old process took and had not acknowledged comes again.
    assert set(world.taken) == set(world.down_sent)


@pytest.mark.parametrize("version", [Version.MQTT_5, Version.MQTT_3_1_1])
@settings(max_examples=100, deadline=None)
@given(window=st.integers(1, 5), actions=st.lists(_ACTIONS, max_size=60))
def test_qos_1_arrives_and_its_first_copies_are_in_order(
    version: Version, window: int, actions: list[tuple[Any, ...]]
) -> None:
    world = _run(version, 1, window, actions)
    assert list(dict.fromkeys(world.seen)) == world.up_sent
    assert list(dict.fromkeys(world.taken)) == world.down_sent
    assert len(world.finished) == len(world.up_sent)
