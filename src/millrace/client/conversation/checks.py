"""What a caller hands in, checked before it is queued: later there would be nobody to tell."""

from collections.abc import Mapping

from millrace.errors import LocalError, RemoteError
from millrace.limits import REMAINING_LENGTH_TOP, STRING_BYTES_TOP
from millrace.types import NO_PROPERTIES, Message, Subscription, Version
from millrace.wire.mqtt.codec import encode_properties
from millrace.wire.mqtt.primitives import check_filter, check_topic

# Lengths and packet id around the parts of a PUBLISH.
_FRAME_BYTES = 4


def check_options(options: Mapping[str, object], own: tuple[str, ...]) -> None:
    """Raises LocalError for an option of `Client` that whoever makes the clients decides."""
    for name in own:
        if name in options:
            raise LocalError(f"{name} is not for the caller to say here; see timeout_s")


def check_message(message: Message, version: Version) -> None:
    """Raises LocalError for a message that no packet of this version can carry."""
    try:
        check_topic(message.topic)
    except RemoteError as error:
        raise LocalError(f"cannot publish to topic {message.topic!r}: {error}") from None
    topic_bytes = _string_bytes(message.topic, "topic")
    _check_qos(message.qos)
    properties = message.properties
    properties_bytes = 1
    if properties != NO_PROPERTIES:
        if version != Version.MQTT_5:
            raise LocalError("message properties need MQTT 5")
        if properties.topic_alias is not None or properties.subscription_ids:
            raise LocalError("topic alias and subscription ids are not the application's to set")
        properties_bytes = len(encode_properties(properties))
    if len(message.payload) + topic_bytes + properties_bytes + _FRAME_BYTES > REMAINING_LENGTH_TOP:
        raise LocalError(f"a payload of {len(message.payload)} bytes does not fit an MQTT packet")


def check_subscription(subscription: Subscription, version: Version) -> None:
    """Raises LocalError for a subscription that a server would have to close the connection for."""
    try:
        shared = check_filter(subscription.filter)
    except RemoteError as error:
        raise LocalError(f"topic filter {subscription.filter!r} is not valid: {error}") from None
    _string_bytes(subscription.filter, "topic filter")
    _check_qos(subscription.qos)
    if shared and subscription.no_local:
        raise LocalError("no_local does not go with a group")  # [MQTT-3.8.3-4]
    plain = Subscription(filter=subscription.filter, qos=subscription.qos)
    if version != Version.MQTT_5 and subscription != plain:
        raise LocalError("subscription options need MQTT 5")


def _string_bytes(text: str, what: str) -> int:
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise LocalError(f"the {what} contains a surrogate, which UTF-8 does not have") from None
    if "\0" in text or size_bytes > STRING_BYTES_TOP:
        raise LocalError(f"a {what} has at most {STRING_BYTES_TOP} bytes and no U+0000")
    return size_bytes


def _check_qos(qos: int) -> None:
    if qos not in (0, 1, 2):
        raise LocalError(f"QoS {qos} does not exist; it is 0, 1 or 2")
