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


class Reason(IntEnum):
    """MQTT 5 reason codes (section 2.4). MQTT 3.1.1 return codes are mapped from these by the codec."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USER_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARD_NOT_SUPPORTED = 0xA2


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


class Subscription(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One topic filter with its options, as asked for in SUBSCRIBE. There may be a million of them."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: RetainHandling = RetainHandling.SEND
    identifier: int | None = None
