"""Any legal packet, every field drawn. `before_5` is what an earlier version keeps of it."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec import Struct, structs

from millrace.reasons import Reason
from millrace.types import NO_PROPERTIES, Message, Properties, RetainHandling, Subscription, Version, Will
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from unit.wire.mqtt_tables import reasons_of

T = TypeVar("T")


def every_field(kind: type[T], **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[T]:
    """`builds` that refuses to leave a field at its default, so that a field added later is not forgotten."""
    described = structs.fields if issubclass(kind, Struct) else fields
    assert strategies.keys() == {field.name for field in described(kind)}  # type: ignore[arg-type]
    return st.builds(kind, **strategies)


def optional(strategy: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    return st.none() | strategy


u16 = st.integers(0, 0xFFFF)
u16_positive = st.integers(1, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
u32_positive = st.integers(1, 0xFFFF_FFFF)
binary = st.binary(max_size=40)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
level = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#/"), max_size=6)
topics = st.lists(level, min_size=1, max_size=4).map("/".join).filter(bool)
users = st.lists(st.tuples(text, text), max_size=3).map(tuple)
bools = st.booleans()


@st.composite
def plain_filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(level | st.just("+"), min_size=1, max_size=4))
    if draw(bools):
        levels.append("#")
    # `$share/` in front would make it a shared filter with rules of its own.
    return "/".join(levels).removeprefix("$share") or "#"


shared_filters = st.tuples(level.filter(bool), plain_filters()).map(
    lambda pair: f"$share/{pair[0]}/{pair[1]}"
)
filters = plain_filters() | shared_filters

properties = every_field(
    Properties,
    payload_format=optional(st.integers(0, 1)),
    message_expiry_s=optional(u32),
    topic_alias=optional(u16_positive),
    response_topic=optional(topics),
    correlation_data=optional(binary),
    content_type=optional(text),
    subscription_ids=st.lists(st.integers(1, 268_435_455), max_size=3).map(tuple),
    user=users,
)
messages = every_field(
    Message,
    topic=topics,
    payload=st.binary(max_size=200),
    qos=st.integers(0, 2),
    retain=bools,
    properties=st.just(NO_PROPERTIES) | properties,
)
wills = every_field(
    Will,
    message=messages.map(
        lambda m: replace(m, properties=replace(m.properties, topic_alias=None, subscription_ids=()))
    ),
    delay_s=u32,
)


def _consistent(packet: Connect) -> Connect:
    if packet.authentication_method is None:
        packet = structs.replace(packet, authentication_data=None)
    if packet.username is None and packet.version != Version.MQTT_5:
        packet = structs.replace(packet, password=None)
    return packet


connects = every_field(
    Connect,
    version=st.sampled_from(Version),
    client_id=text,
    clean_start=bools,
    keep_alive_s=u16,
    username=optional(text),
    password=optional(binary),
    will=optional(wills),
    session_expiry_s=optional(u32),
    receive_maximum=optional(u16_positive),
    packet_bytes_max=optional(u32_positive),
    topic_alias_max=u16,
    request_response_information=bools,
    request_problem_information=bools,
    authentication_method=optional(text),
    authentication_data=optional(binary),
    user=users,
).map(_consistent)

connacks = every_field(
    Connack,
    reason=st.just(Reason.SUCCESS) | st.sampled_from(reasons_of(Connack)),
    session_present=bools,
    session_expiry_s=optional(u32),
    receive_maximum=optional(u16_positive),
    maximum_qos=optional(st.integers(0, 1)),
    retain_available=optional(bools),
    packet_bytes_max=optional(u32_positive),
    assigned_client_id=optional(text),
    topic_alias_max=optional(u16),
    reason_string=optional(text),
    wildcard_available=optional(bools),
    subscription_ids_available=optional(bools),
    shared_available=optional(bools),
    server_keep_alive_s=optional(u16),
    response_information=optional(text),
    server_reference=optional(text),
    authentication_method=optional(text),
    authentication_data=optional(binary),
    user=users,
).map(
    lambda p: structs.replace(
        p,
        session_present=p.session_present and p.reason == Reason.SUCCESS,
        authentication_data=p.authentication_data if p.authentication_method is not None else None,
    )
)


@st.composite
def publishes(draw: st.DrawFn) -> Publish:
    message = draw(messages)
    if message.properties.topic_alias is not None and draw(bools):
        message = replace(message, topic="")
    if message.qos == 0:
        return Publish(message=message)
    return Publish(message=message, packet_id=draw(u16_positive), dup=draw(bools))


def _acknowledgements(kind: type[T]) -> st.SearchStrategy[T]:
    return every_field(
        kind,
        packet_id=u16_positive,
        reason=st.sampled_from(reasons_of(kind)),
        reason_string=optional(text),
        user=users,
    )


@st.composite
def subscribes(draw: st.DrawFn) -> Subscribe:
    subscription = every_field(
        Subscription,
        filter=filters,
        qos=st.integers(0, 2),
        no_local=bools,
        retain_as_published=bools,
        retain_handling=st.sampled_from(RetainHandling),
        identifier=st.just(draw(optional(st.integers(1, 268_435_455)))),
    ).map(lambda s: structs.replace(s, no_local=s.no_local and not s.filter.startswith("$share/")))
    subscriptions = draw(st.lists(subscription, min_size=1, max_size=3).map(tuple))
    return Subscribe(packet_id=draw(u16_positive), subscriptions=subscriptions, user=draw(users))


def _answers(kind: type[T]) -> st.SearchStrategy[T]:
    return every_field(
        kind,
        packet_id=u16_positive,
        reasons=st.lists(st.sampled_from(reasons_of(kind)), min_size=1, max_size=4).map(tuple),
        reason_string=optional(text),
        user=users,
    )


auths = every_field(
    Auth,
    reason=st.sampled_from(reasons_of(Auth)),
    authentication_method=text,
    authentication_data=optional(binary),
    reason_string=optional(text),
    user=users,
) | st.just(Auth(reason=Reason.SUCCESS))

BY_KIND: dict[type, st.SearchStrategy[Any]] = {
    Connect: connects,
    Connack: connacks,
    Publish: publishes(),
    Puback: _acknowledgements(Puback),
    Pubrec: _acknowledgements(Pubrec),
    Pubrel: _acknowledgements(Pubrel),
    Pubcomp: _acknowledgements(Pubcomp),
    Subscribe: subscribes(),
    Suback: _answers(Suback),
    Unsubscribe: every_field(
        Unsubscribe,
        packet_id=u16_positive,
        filters=st.lists(filters, min_size=1, max_size=3).map(tuple),
        user=users,
    ),
    Unsuback: _answers(Unsuback),
    Pingreq: st.just(Pingreq()),
    Pingresp: st.just(Pingresp()),
    Disconnect: every_field(
        Disconnect,
        reason=st.sampled_from(reasons_of(Disconnect)),
        session_expiry_s=optional(u32),
        reason_string=optional(text),
        server_reference=optional(text),
        user=users,
    ),
    Auth: auths,
}
assert BY_KIND.keys() == set(Packet.__args__)

# What MQTT 3.1.1 can say of each refusal.
_RETURN_CODE_MEANING = {
    Reason.UNSUPPORTED_VERSION: Reason.UNSUPPORTED_VERSION,
    Reason.CLIENT_ID_NOT_VALID: Reason.CLIENT_ID_NOT_VALID,
    Reason.BAD_USER_OR_PASSWORD: Reason.BAD_USER_OR_PASSWORD,
    Reason.NOT_AUTHORIZED: Reason.NOT_AUTHORIZED,
    Reason.BANNED: Reason.NOT_AUTHORIZED,
    Reason.SUCCESS: Reason.SUCCESS,
}


def before_5(packet: Packet, version: int) -> Packet:
    """What of a packet survives in MQTT 3.1 or 3.1.1: fields that these do not have are at their default."""
    match packet:
        case Connect(will=will):
            if will is not None:
                will = Will(message=replace(will.message, properties=NO_PROPERTIES))
            return Connect(
                version=packet.version,
                client_id=packet.client_id,
                clean_start=packet.clean_start,
                keep_alive_s=packet.keep_alive_s,
                username=packet.username,
                password=packet.password,
                will=will,
            )
        case Connack():
            reason = _RETURN_CODE_MEANING.get(packet.reason, Reason.SERVER_UNAVAILABLE)
            return Connack(reason=reason, session_present=packet.session_present and version == 4)
        case Publish(message=message):
            return structs.replace(packet, message=replace(message, properties=NO_PROPERTIES))
        case Puback() | Pubrec() | Pubrel() | Pubcomp() | Unsuback():
            return type(packet)(packet_id=packet.packet_id)
        case Subscribe():
            plain = tuple(Subscription(filter=s.filter, qos=s.qos) for s in packet.subscriptions)
            return Subscribe(packet_id=packet.packet_id, subscriptions=plain)
        case Suback():
            reasons = tuple(r if r < Reason.UNSPECIFIED else Reason.UNSPECIFIED for r in packet.reasons)
            return Suback(packet_id=packet.packet_id, reasons=reasons)
        case Unsubscribe():
            return structs.replace(packet, user=())
        case Disconnect():
            return Disconnect()
        case _:
            return packet
