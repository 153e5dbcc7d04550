"""The words that every room shares: plain values, no behaviour beyond their own consistency.

Nothing here knows a socket, a file or a clock. A `Message` object exists only at the edges; between them
messages travel as runs of packets in bytes (see `kernels`).
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NewType

import msgspec

Term = NewType("Term", int)
Index = NewType("Index", int)
Offset = NewType("Offset", int)
Tick = NewType("Tick", int)
NodeId = NewType("NodeId", str)


class Version(IntEnum):
    """Protocol level as it stands in CONNECT."""

    MQTT_3_1 = 3
    MQTT_3_1_1 = 4
    MQTT_5 = 5


class RetainHandling(IntEnum):
    """What a fresh subscription wants of retained messages (MQTT 5, 3.8.3.1)."""

    SEND = 0
    SEND_IF_NEW = 1
    DO_NOT_SEND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """MQTT 5 properties of a PUBLISH or a will, as the application sees them. All absent by default."""

    payload_format: int | None = None
    message_expiry_s: int | None = None
    topic_alias: int | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    content_type: str | None = None
    subscription_ids: tuple[int, ...] = ()
    user: tuple[tuple[str, str], ...] = ()


NO_PROPERTIES = Properties()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One application message."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default=NO_PROPERTIES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """A message the broker publishes for a client that went without saying goodbye."""

    message: Message
    delay_s: int = 0


class SubscriptionOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How messages that a filter takes are to be sent. A million subscriptions share a few of these."""

    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: RetainHandling = RetainHandling.SEND
    identifier: int | None = None


class Subscription(SubscriptionOptions, frozen=True, kw_only=True, gc=False):
    """One topic filter with its options, as asked for in SUBSCRIBE."""

    filter: str

    @property
    def options(self) -> SubscriptionOptions:
        """The same for all subscriptions that differ in their filters alone."""
        plain = self.qos, self.no_local, self.retain_as_published, self.retain_handling, self.identifier
        known = _options.get(plain)
        if known is None:
            if len(_options) >= _OPTIONS_KEPT:
                _options.clear()
            known = _options[plain] = SubscriptionOptions(
                qos=self.qos,
                no_local=self.no_local,
                retain_as_published=self.retain_as_published,
                retain_handling=self.retain_handling,
                identifier=self.identifier,
            )
        return known


_options: dict[tuple[int, bool, bool, RetainHandling, int | None], SubscriptionOptions] = {}
_OPTIONS_KEPT = 1024
