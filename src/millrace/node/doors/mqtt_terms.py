"""What a client asks for and what it is granted: plain functions between CONNECT, the limits and CONNACK."""

from dataclasses import replace

from millrace.broker.access import Principal
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Run
from millrace.broker.sessions.connect_request import ConnectRequest
from millrace.broker.sessions.session import Session, WillPlan
from millrace.broker.topics.routing import Table
from millrace.errors import ProtocolError
from millrace.kernels.publish import after_varint, topic_end
from millrace.limits import PACKET_ID_TOP, Limits
from millrace.node.config import Mqtt
from millrace.node.doors.mqtt_door import MqttDoor
from millrace.reasons import Reason
from millrace.types import Message, Properties, Version, Will
from millrace.wire.mqtt.codec import encode_properties, encode_publish
from millrace.wire.mqtt.packets import Connack, Connect, Disconnect, Puback, Pubcomp, Pubrec, Pubrel

_NOTHING = Properties()
# Before MQTT 5 there is nothing more to say.
_ACCEPTED = Connack(reason=Reason.SUCCESS)
# Member look-ups on an enumeration cost more than the comparison they serve.
_MQTT_5 = Version.MQTT_5
# Retained messages that are taken before a connection looks whether it used up its turn.
_RETAINED_AT_ONCE_MAX = 100
# How an acknowledgement begins, which is what the broker knows it by.
ANSWER_FIRST_BYTES = {Puback: 0x40, Pubrec: 0x50, Pubrel: 0x62, Pubcomp: 0x70}


def expiry_s(packet: Connect, limits: Limits) -> int:
    if packet.version == _MQTT_5:
        return min(packet.session_expiry_s or 0, limits.session_expiry_s_max)
    # 3.1.1 knows only "clean" and "keep"; how long is ours to say.
    return 0 if packet.clean_start else limits.session_expiry_s_max


def keep_alive_s(packet: Connect, settings: Mqtt, limits: Limits) -> int:
    """What the connection is held to: MQTT 5 clients can be told, others keep their own."""
    if packet.version != _MQTT_5:
        return packet.keep_alive_s
    most = limits.keep_alive_s_max
    asked = settings.server_keep_alive_s or packet.keep_alive_s
    return min(asked or most, most) if most else asked


def request_of(
    packet: Connect,
    client_id: str,
    principal: Principal,
    username: str | None,
    address: str,
    limits: Limits,
    now_ms: int,
    door: str,
) -> ConnectRequest:
    """What the client asks the broker for, within the limits."""
    v5 = packet.version == _MQTT_5
    return ConnectRequest(
        client_id=client_id,
        clean_start=packet.clean_start,
        expiry_s=expiry_s(packet, limits),
        v5=v5,
        window=min(packet.receive_maximum or limits.inflight_max, PACKET_ID_TOP),
        packet_bytes_max=packet.packet_bytes_max or 0,
        alias_max=min(packet.topic_alias_max, limits.topic_alias_out_max),
        principal=principal,
        will=None if packet.will is None else will_of(packet.will, v5, now_ms),
        username=username,
        address=address,
        door=door,
    )


NO_MAJORITY = Reason.SERVER_UNAVAILABLE, "no majority of the cluster is there right now"
OF_ANOTHER_USER = Reason.NOT_AUTHORIZED, "the session of this client id belongs to another user"


def connack(
    packet: Connect,
    request: ConnectRequest,
    settings: Mqtt,
    limits: Limits,
    assigned: str | None,
    authentication_data: bytes | None,
) -> Connack:
    """Yes to a CONNECT; whether a session was present is known only once it is opened."""
    if packet.version != _MQTT_5:
        return _ACCEPTED
    keep_s = keep_alive_s(packet, settings, limits)
    return Connack(
        reason=Reason.SUCCESS,
        session_expiry_s=request.expiry_s if request.expiry_s != (packet.session_expiry_s or 0) else None,
        receive_maximum=limits.receive_maximum if limits.receive_maximum < PACKET_ID_TOP else None,
        packet_bytes_max=limits.packet_bytes_max,
        topic_alias_max=limits.topic_alias_in_max or None,
        assigned_client_id=assigned,
        server_keep_alive_s=keep_s if keep_s != packet.keep_alive_s else None,
        retain_available=None if settings.retain else False,
        response_information=(
            settings.response_information or None if packet.request_response_information else None
        ),
        authentication_method=packet.authentication_method,
        authentication_data=authentication_data,
    )


def refused_login(packet: Connect, is_busy: bool, why: str) -> tuple[Reason, str]:
    """Why a client does not come in: its login is wrong, or could not be checked."""
    if is_busy:
        return Reason.SERVER_BUSY, "too many logins at once; try again"
    if packet.username is None:
        return Reason.NOT_AUTHORIZED, why or "anonymous clients may not connect"
    return Reason.BAD_USER_OR_PASSWORD, "user name or password not accepted"


def refusal(reason: Reason, detail: str | None, elsewhere: str) -> tuple[Connack, Connack]:
    """No to a CONNECT, and the same in short for a client that takes small packets only."""
    reference = (elsewhere or None) if reason is Reason.USE_ANOTHER_SERVER else None
    said = Connack(reason=reason, reason_string=detail, server_reference=reference)
    return said, Connack(reason=reason, server_reference=reference)


def goodbye(reason: Reason, detail: str, elsewhere: str) -> tuple[Disconnect, Disconnect]:
    """The last packet of a connection, and the same in short."""
    reference = (elsewhere or None) if reason is Reason.USE_ANOTHER_SERVER else None
    said = Disconnect(reason=reason, reason_string=detail, server_reference=reference)
    return said, Disconnect(reason=reason, server_reference=reference)


def refused_client(
    packet: Connect, client_id: str, username: str | None, address: str, door: MqttDoor
) -> tuple[Reason, str] | None:
    """Why a client of this id, perhaps one that was given to it, is not served; None where it is."""
    broker, limits = door.broker, door.limits
    if not packet.client_id and (
        packet.version == Version.MQTT_3_1 or (packet.version != _MQTT_5 and not packet.clean_start)
    ):
        # [MQTT-3.1.3-8] of 3.1.1; 3.1 knows no empty id
        return Reason.CLIENT_ID_NOT_VALID, "a session without a client id cannot be kept"
    if len(client_id.encode()) > limits.client_id_bytes_max:
        broker.limits_reached.count("client_id_bytes")
        return Reason.CLIENT_ID_NOT_VALID, f"a client id has at most {limits.client_id_bytes_max} bytes"
    if broker.connected >= limits.connections_max or (
        len(broker.sessions) >= limits.sessions_max and client_id not in broker.sessions
    ):
        full = "connections" if broker.connected >= limits.connections_max else "sessions"
        broker.limits_reached.count(full)
        return Reason.QUOTA_EXCEEDED, "no more clients can be served"
    if broker.belongs_to_another(client_id, username):
        return OF_ANOTHER_USER
    session = broker.sessions.get(client_id)
    if (bound := broker.shares.full(username, address, session)) is not None:
        broker.limits_reached.count(bound)
        whose, _, what = bound.partition("_")
        return Reason.QUOTA_EXCEEDED, f"no more {what} of this {whose} can be served"
    if not door.quotas.admits_user(username):
        return Reason.CONNECTION_RATE_EXCEEDED, "this user connects too often; try again"
    return None


def refused_will(
    will: Will | None, principal: Principal, settings: Mqtt, limits: Limits
) -> tuple[Reason, str] | None:
    """Why this will cannot be taken: it is a publish, and what a PUBLISH may not do it may not do either."""
    if will is None:
        return None
    if not is_topic_within(limits, will.message.topic):
        return Reason.TOPIC_NAME_INVALID, "the will's topic has too many levels or bytes"
    if not principal.may_publish(will.message.topic):
        return Reason.NOT_AUTHORIZED, "the will's topic may not be published to"
    if will.message.retain and not settings.retain:
        return Reason.RETAIN_NOT_SUPPORTED, "retained messages are off here"
    return None


def is_topic_within(limits: Limits, topic: str) -> bool:
    return topic.count("/") < limits.topic_levels_max and len(topic.encode()) <= limits.topic_bytes_max


def plain_topic(data: bytes, pos: int, body: int, end: int, v5: bool) -> bytes:
    """The topic of the PUBLISH at QoS 0 from `pos` to `end`, whose variable header begins at `body`; nothing
    where it has properties, or is not such as we may send it on."""
    if body + 2 > end or (not data[body - 1] and body - pos > 2):
        return b""
    after = topic_end(data, body)
    if after > end or (v5 and data[after:end][:1] != b"\0"):
        return b""
    return data[body + 2 : after]


def accept_retained(
    broker: Broker, session: Session, table: Table, data: bytes, pos: int, bytes_max: int, now_ms: int
) -> tuple[int, int]:
    """Take the retained messages at QoS 0 without properties, of known topics, that follow each other from
    `pos` on, up to a bound. Returns how many, and where what was not taken begins: that is left to the codec,
    as any other, and with it what is wrong."""
    size, v5, count = len(data), session.v5, 0
    accept = broker.inbound.accept
    while count < _RETAINED_AT_ONCE_MAX and size - pos >= 2 and data[pos] == 0x31:
        body, length = pos + 2, data[pos + 1]
        if length > 127:
            if size - pos < 5 or min(data[pos + 1 : pos + 5]) > 127:
                break
            length, body = after_varint(data, pos + 1)
        end = body + length
        if end > size or end - pos > bytes_max:
            break
        topic = plain_topic(data, pos, body, end, v5)
        route = table.get(topic)
        if route is None:
            break
        run = Run(b"\x30" + data[pos + 1 : end], 1, 0, v5, True)
        is_empty = body + 2 + len(topic) + v5 >= end
        accept(session, topic.decode(), run, 0, now_ms, route=route, is_empty=is_empty)
        pos = end
        count += 1
    return count, pos


def run_of(message: Message, topic: str, packet_id: int, v5: bool, now_ms: int) -> Run:
    """One message in the framing that runs have: no DUP, no RETAIN, no alias."""
    properties, expires_ms = b"", None
    if v5:
        given = message.properties
        properties = b"\0"
        if given != _NOTHING:
            properties = encode_properties(replace(given, topic_alias=None))
        if given.message_expiry_s is not None:
            expires_ms = now_ms + given.message_expiry_s * 1000
    data = encode_publish(
        topic.encode(),
        message.payload,
        0x30 | message.qos << 1,
        packet_id if message.qos else 0,
        properties,
    )
    return Run(data, 1, message.qos, v5, message.retain, expires_ms)


def will_of(will: Will, v5: bool, now_ms: int) -> WillPlan:
    run = run_of(will.message, will.message.topic, 1, v5, now_ms)
    return WillPlan(will.message.topic, run, will.delay_s, will.message.properties.message_expiry_s)


def level_of(body: bytes) -> int:
    """The protocol level of a CONNECT that could not be decoded, 0 where there is none."""
    if len(body) < 2:
        return 0
    at = 2 + (body[0] << 8 | body[1])
    return body[at] if at < len(body) and body[2:at] == b"MQTT" else 0


def aliased_topic(message: Message, aliases: dict[int, str], limits: Limits) -> str:
    """The topic of a publish that has an alias, which it sets or uses (3.3.2.3.4)."""
    alias = message.properties.topic_alias
    assert alias is not None
    if alias > limits.topic_alias_in_max:
        raise ProtocolError(f"topic alias {alias} is above the maximum", Reason.TOPIC_ALIAS_INVALID)
    if message.topic:
        aliases[alias] = message.topic
        return message.topic
    try:
        return aliases[alias]
    except KeyError:
        raise ProtocolError(f"topic alias {alias} is not set") from None
