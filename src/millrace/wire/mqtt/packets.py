"""The fifteen MQTT control packets as plain values, one class for all versions.

A field that a version does not have keeps its default; the codec neither reads nor writes it there. Reason
codes are always those of MQTT 5; the codec maps the few return codes that 3.1.1 knows.

They are structs, because making a frozen dataclass costs a call for each of its fields.
"""

from enum import IntEnum

import msgspec

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


class Connect(msgspec.Struct, frozen=True, kw_only=True):
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


class Connack(msgspec.Struct, frozen=True, kw_only=True):
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


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    message: Message
    packet_id: int | None = None
    dup: bool = False


class Puback(msgspec.Struct, frozen=True, kw_only=True):
    packet_id: int
    reason: Reason = Reason.SUCCESS
    reason_string: str | None = None
    user: UserProperties = ()


class Pubrec(msgspec.Struct, frozen=True, kw_only=True):
    packet_id: int
    reason: Reason = Reason.SUCCESS
    reason_string: str | None = None
    user: UserProperties = ()


class Pubrel(msgspec.Struct, frozen=True, kw_only=True):
    packet_id: int
    reason: Reason = Reason.SUCCESS
    reason_string: str | None = None
    user: UserProperties = ()


class Pubcomp(msgspec.Struct, frozen=True, kw_only=True):
    packet_id: int
    reason: Reason = Reason.SUCCESS
    reason_string: str | None = None
    user: UserProperties = ()


class Subscribe(msgspec.Struct, frozen=True, kw_only=True):
    """The identifier of the packet is carried by each `Subscription`."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    user: UserProperties = ()


class Suback(msgspec.Struct, frozen=True, kw_only=True):
    packet_id: int
    reasons: tuple[Reason, ...]
    reason_string: str | None = None
    user: UserProperties = ()


class Unsubscribe(msgspec.Struct, frozen=True, kw_only=True):
    packet_id: int
    filters: tuple[str, ...]
    user: UserProperties = ()


class Unsuback(msgspec.Struct, frozen=True, kw_only=True):
    packet_id: int
    reasons: tuple[Reason, ...] = ()
    reason_string: str | None = None
    user: UserProperties = ()


class Pingreq(msgspec.Struct, frozen=True):
    pass


class Pingresp(msgspec.Struct, frozen=True):
    pass


class Disconnect(msgspec.Struct, frozen=True, kw_only=True):
    reason: Reason = Reason.SUCCESS
    session_expiry_s: int | None = None
    reason_string: str | None = None
    server_reference: str | None = None
    user: UserProperties = ()


class Auth(msgspec.Struct, frozen=True, kw_only=True):
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
