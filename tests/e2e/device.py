"""A paho client as the tests use it: blocking calls that return once the broker has answered.

Every wait is for a condition and bounded. paho does not reconnect by itself here: a closed connection is
something tests look at.
"""

import itertools
import os
import socket
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from waiting import until

V311, V5 = paho.MQTTv311, paho.MQTTv5
both = pytest.mark.parametrize("version", [V311, V5], ids=["v311", "v5"])

_numbers = itertools.count(1)


def unique(stem: str) -> str:
    """A name or topic that no other test uses."""
    return f"{stem}-{os.getpid()}-{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Got:
    """A message that arrived."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Any


class Device:
    """`connect` first; `expect` takes messages in order; `closed` is the reason the connection ended with."""

    def __init__(
        self,
        port: int,
        *,
        version: int = V5,
        client_id: str | None = None,
        clean: bool = True,
        expiry_s: int = 0,
        user: tuple[str, str] | None = None,
        transport: str = "tcp",
        will: tuple[str, bytes, int, bool] | None = None,
        connect_properties: dict[str, Any] | None = None,
        keep_alive_s: int = 60,
    ) -> None:
        self.version = version
        self.client_id = unique("device") if client_id is None else client_id
        self._port = port
        self._clean = clean
        self._keep_alive_s = keep_alive_s
        self._properties: Properties | None = None
        if version == V5:
            self._properties = Properties(PacketTypes.CONNECT)
            if expiry_s:
                self._properties.SessionExpiryInterval = expiry_s
            for name, value in (connect_properties or {}).items():
                setattr(self._properties, name, value)
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self.client_id,
            clean_session=clean if version == V311 else None,
            protocol=version,
            transport=transport,
            reconnect_on_failure=False,
        )
        if user is not None:
            self.paho.username_pw_set(*user)
        if will is not None:
            topic, payload, qos, retain = will
            self.paho.will_set(topic, payload, qos, retain)
        self.answer: ReasonCode | None = None
        self.session_present = False
        self.connack_properties: Any = None
        self.closed: ReasonCode | None = None
        self._messages: list[Got] = []
        self._granted: dict[int, list[ReasonCode]] = {}
        self._published: dict[int, ReasonCode] = {}
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = self._on_message
        self.paho.on_subscribe = self._on_subscribe
        self.paho.on_unsubscribe = self._on_subscribe
        self.paho.on_publish = self._on_publish

    # ------------------------------------------------------------------------- called by paho

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        self.session_present = flags.session_present
        self.connack_properties = properties
        self.answer = reason

    def _on_disconnect(self, _: Any, __: Any, ___: Any, reason: ReasonCode, ____: Any) -> None:
        self.closed = reason

    def _on_message(self, _: Any, __: Any, message: paho.MQTTMessage) -> None:
        self._messages.append(
            Got(message.topic, message.payload, message.qos, message.retain, message.properties)
        )

    def _on_subscribe(self, _: Any, __: Any, number: int, reasons: list[ReasonCode], ___: Any) -> None:
        self._granted[number] = reasons

    def _on_publish(self, _: Any, __: Any, number: int, reason: ReasonCode, ___: Any) -> None:
        self._published[number] = reason

    # ------------------------------------------------------------------------- called by tests

    def connect(self) -> "Device":
        """Connect and be accepted."""
        self.try_connect()
        assert self.answer is not None and not self.answer.is_failure, f"refused: {self.answer}"
        return self

    def try_connect(self) -> ReasonCode:
        """Connect and return the broker's answer, yes or no."""
        options: dict[str, Any] = {}
        if self.version == V5:
            options = {"clean_start": self._clean, "properties": self._properties}
        self.paho.connect("127.0.0.1", self._port, self._keep_alive_s, **options)
        self.paho.loop_start()
        until(lambda: self.answer is not None or self.closed is not None, "an answer to CONNECT")
        answer = self.answer if self.answer is not None else self.closed
        assert answer is not None
        return answer

    def subscribe(self, filter: str, qos: int = 0, **options: Any) -> int:
        """Subscribe; the code in SUBACK."""
        properties = options.pop("properties", None)
        if self.version == V5:
            wanted = SubscribeOptions(qos=qos, **options)
            _, number = self.paho.subscribe(filter, options=wanted, properties=properties)
        else:
            _, number = self.paho.subscribe(filter, qos)
        return self._answered(number)

    def unsubscribe(self, filter: str) -> None:
        _, number = self.paho.unsubscribe(filter)
        assert number is not None
        until(lambda: number in self._granted, "UNSUBACK")

    def _answered(self, number: int | None) -> int:
        assert number is not None
        until(lambda: number in self._granted, "SUBACK")
        return int(self._granted[number][0].value)

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, **properties: Any
    ) -> int:
        """Publish; returns once the broker has it, with the code of PUBACK or PUBREC (0 for QoS 0)."""
        wanted = None
        if properties:
            wanted = Properties(PacketTypes.PUBLISH)
            for name, value in properties.items():
                setattr(wanted, name, value)
        info = self.paho.publish(topic, payload, qos, retain, wanted)
        until(lambda: info.mid in self._published, f"the answer to a publish with QoS {qos}")
        if qos == 0:
            # Nothing answers it; but what follows on this connection is handled after it.
            self.publish(unique("barrier"), b"", 1)
        return int(self._published[info.mid].value)

    def expect(self, count: int = 1) -> list[Got]:
        """The next `count` messages, in order."""
        until(lambda: len(self._messages) >= count, f"{count} messages at {self.client_id}")
        taken, self._messages[:count] = self._messages[:count], []
        return taken

    def expect_payloads(self, *payloads: bytes) -> None:
        assert [got.payload for got in self.expect(len(payloads))] == list(payloads)

    @property
    def arrived(self) -> list[Got]:
        """What came and was not taken yet."""
        return list(self._messages)

    @property
    def waiting(self) -> int:
        """Messages that arrived and were not taken yet."""
        return len(self._messages)

    def nothing_came(self) -> bool:
        """Whether everything that was published before this call has left nothing here.

        The broker keeps order toward one client, so a message of its own that comes back shows it."""
        topic = unique("mark")
        self.subscribe(topic)
        self.publish(topic, b"mark")
        until(lambda: any(got.topic == topic for got in self._messages), "the mark to come back")
        arrival_number = [got for got in self._messages if got.topic != topic]
        self._messages.clear()
        return arrival_number == []

    def wait_closed(self) -> ReasonCode:
        until(lambda: self.closed is not None, "the connection to close")
        assert self.closed is not None
        return self.closed

    def disconnect(self) -> None:
        """Say goodbye and wait for the end."""
        self.paho.disconnect()
        self.wait_closed()
        self.paho.loop_stop()

    def drop(self) -> None:
        """Go without a goodbye."""
        sock = self.paho.socket()
        assert isinstance(sock, socket.socket)
        sock.shutdown(socket.SHUT_RDWR)
        self.wait_closed()

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()
