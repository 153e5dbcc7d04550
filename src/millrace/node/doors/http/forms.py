"""What requests and answers look like, and messages on their way between JSON and the broker.

A payload is text where it is UTF-8, otherwise base64, and then `encoding` says so.
"""

import base64
import binascii
from typing import Annotated, Any, Literal

from fastapi import Header
from pydantic import Field

from millrace.broker.messages.inbound import Key
from millrace.limits import (
    DELAY_MS_MAX,
    LEASE_MS_MAX,
    PRODUCER_CHARACTERS_MAX,
    TAKEN_MAX,
    WAIT_MS_MAX,
)
from millrace.node.doors.http.problems import Problem
from millrace.node.groups.consumer_groups import Taken
from millrace.node.groups.shard_consumers import NOT_BEFORE
from millrace.node.json_form import Form
from millrace.node.logs.reading import Stored
from millrace.node.queue.forms import Topic
from millrace.node.queue.queue import readable
from millrace.node.shards.producer_keys import SEQUENCE_TOP, client_key
from millrace.tracing.sampling import TRACEPARENT, is_traceparent
from millrace.types import NO_PROPERTIES, Message, Properties

Encoding = Literal["utf-8", "base64"]
WaitMs = Annotated[int, Field(ge=0, le=WAIT_MS_MAX)]
LeaseMs = Annotated[int, Field(ge=1, le=LEASE_MS_MAX)]
DelayMs = Annotated[int, Field(ge=0, le=DELAY_MS_MAX)]
Count = Annotated[int, Field(ge=1, le=TAKEN_MAX)]
Receipts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=TAKEN_MAX)]

RequestId = Annotated[
    str, Header(alias="Millrace-Request-Id", max_length=128, description="Repeat it to get the same answer.")
]
Producer = Annotated[
    str | None,
    Header(
        alias="Millrace-Producer",
        max_length=PRODUCER_CHARACTERS_MAX,
        description="Who sends, for idempotence.",
    ),
]
Sequence = Annotated[
    int | None,
    Header(
        alias="Millrace-Sequence",
        ge=0,
        le=SEQUENCE_TOP,
        description="Number of the (first) message by this producer; a repeat is not stored again.",
    ),
]


TraceParent = Annotated[
    str | None,
    Header(
        alias=TRACEPARENT,
        description="Trace and span of the caller (W3C Trace Context); readers get it as a user property.",
    ),
]


class PublishForm(Form):
    topic: Topic
    payload: str = ""
    encoding: Encoding = "utf-8"
    qos: Annotated[int, Field(ge=1, le=2)] = 1
    retain: bool = False
    content_type: str | None = None
    response_topic: str | None = None
    expiry_s: Annotated[int, Field(ge=0, le=2**32 - 1)] | None = None
    user_properties: list[tuple[str, str]] = Field(default_factory=list, max_length=100)
    delay_ms: DelayMs = 0


class TakeForm(Form):
    count: Count = 1
    ack: Literal["auto", "manual"] = "auto"
    lease_ms: LeaseMs = 30_000
    wait_ms: WaitMs = 0

    @property
    def lease_us(self) -> int:
        return self.lease_ms * 1000 if self.ack == "manual" else 0


class AckForm(Form):
    receipts: Receipts


class NackForm(AckForm):
    delay_ms: DelayMs = 0


class ExtendForm(AckForm):
    lease_ms: LeaseMs = 30_000


def to_bytes(text: str, encoding: Encoding) -> bytes:
    try:
        return text.encode() if encoding == "utf-8" else base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(400, f"the payload is not {encoding}") from None


def to_message(form: PublishForm, wall_us: int, traceparent: str | None = None) -> Message:
    """The message of a form. A `traceparent` that is none is passed over, as W3C Trace Context asks for."""
    user = tuple(form.user_properties)
    if traceparent is not None and is_traceparent(traceparent) and TRACEPARENT not in dict(user):
        user += ((TRACEPARENT, traceparent),)
    if any(name.startswith("millrace-") for name, _ in user):
        raise Problem(400, "user properties that begin with millrace- are the broker's")
    if form.delay_ms:
        user += ((NOT_BEFORE, str(wall_us + form.delay_ms * 1000)),)
    properties = Properties(
        content_type=form.content_type,
        response_topic=form.response_topic,
        message_expiry_s=form.expiry_s,
        user=user,
    )
    return Message(
        topic=form.topic,
        payload=to_bytes(form.payload, form.encoding),
        qos=form.qos,
        retain=form.retain,
        properties=properties if properties != Properties() else NO_PROPERTIES,
    )


def from_stored(message: Stored) -> dict[str, Any]:
    properties = message.properties
    shown: dict[str, Any] = {
        "shard": message.shard,
        "offset": message.offset,
        "topic": message.topic,
        **readable("payload", message.payload),
        "qos": message.qos,
        "retain": message.retain,
        "time_us": message.time_us,
    }
    named = {
        "publisher": message.publisher,
        "content_type": properties.content_type,
        "response_topic": properties.response_topic,
        "expiry_s": properties.message_expiry_s,
        "user_properties": [list(pair) for pair in properties.user] or None,
    }
    if properties.correlation_data is not None:
        named["correlation_data"] = base64.b64encode(properties.correlation_data).decode()
    return {**shown, **{name: value for name, value in named.items() if value is not None}}


def from_taken(taken: Taken, *, is_leased: bool) -> dict[str, Any]:
    more = {"deliveries": taken.delivery, "receipt": taken.receipt} if is_leased else {}
    return {**from_stored(taken.message), **more}


def key_of(username: str | None, producer: str | None, sequence: int | None, position: int = 0) -> Key | None:
    if producer is None and sequence is None:
        return None
    if not producer or sequence is None:
        raise Problem(400, "Millrace-Producer and Millrace-Sequence go together")
    return client_key(username, producer, sequence + position)
