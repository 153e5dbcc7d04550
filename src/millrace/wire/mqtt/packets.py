"""The fifteen MQTT control packets as plain values, one class for all versions.

A field that a version does not have keeps its default; the codec neither reads nor writes it there. Reason
codes are always those of MQTT 5; the codec maps the few return codes that 3.1.1 knows.
"""

from dataclasses import dataclass
from enum import IntEnum

from millrace.reasons import Reason
from millrace.types import Message, Subscription, Version, Will

UserProperties = tuple[tuple[str, str], ...]

# MQTT 5, 3.1.2.11.3: absent means 65,535.
RECEIVE_MAXIMUM_DEFAULT = 65_535


class PacketType(IntEnum):
    """High nibble of the first byte."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    version: Version
    client_id: str
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    session_expiry_s: int | None = None
    receive_maximum: int | None = None
    packet_bytes_max: int | None = None
    topic_alias_max: int = 0
    request_response_information: bool = False
    request_problem_information: bool = True
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connack:
    reason: Reason
    session_present: bool = False
    session_expiry_s: int | None = None
    receive_maximum: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    packet_bytes_max: int | None = None
    assigned_client_id: str | None = None
    topic_alias_max: int | None = None
    reason_string: str | None = None
    wildcard_available: bool | None = None
    subscription_ids_available: bool | None = None
    shared_available: bool | None = None
    server_keep_alive_s: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    message: Message
    packet_id: int | None = None
    dup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Puback:
    packet_id: int
    reason: Reason = Reason.SUCCESS
    reason_string: str | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pubrec:
    packet_id: int
    reason: Reason = Reason.SUCCESS
    reason_string: str | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pubrel:
    packet_id: int
    reason: Reason = Reason.SUCCESS
    reason_string: str | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pubcomp:
    packet_id: int
    reason: Reason = Reason.SUCCESS
    reason_string: str | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """The identifier of the packet is carried by each `Subscription`."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suback:
    packet_id: int
    reasons: tuple[Reason, ...]
    reason_string: str | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    packet_id: int
    filters: tuple[str, ...]
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsuback:
    packet_id: int
    reasons: tuple[Reason, ...] = ()
    reason_string: str | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True)
class Pingreq:
    pass


@dataclass(frozen=True, slots=True)
class Pingresp:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    reason: Reason = Reason.SUCCESS
    session_expiry_s: int | None = None
    reason_string: str | None = None
    server_reference: str | None = None
    user: UserProperties = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    reason: Reason
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    reason_string: str | None = None
    user: UserProperties = ()


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
