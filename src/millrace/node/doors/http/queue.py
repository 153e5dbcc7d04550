"""The queue: topics that keep messages until somebody takes them, first in first out.

`PUT /topic` makes the durable group `queue` on that topic, and `POST /message` takes from it; what comes by
MQTT is there too. Every answer has `success`; whether a topic exists or is empty is not an error, and where
`success` is false a `reason` says why. Without
`ack=manual` a message is done when it is taken: an answer that gets lost on the way is a lost message, unless
the request named itself (`Millrace-Request-Id`) and is repeated.

`POST /` takes the same four requests in one form, `{"type": "topic" or "message", "method": "PUT" or "GET",
"topic": ..., "message": ...}`, for clients that know only that.
"""

import asyncio
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError, model_validator

from millrace.broker.access import Role
from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.errors import LocalError
from millrace.limits import PUT_MESSAGES_MAX
from millrace.node.doors.http import forms
from millrace.node.doors.http.answers import groups as answers
from millrace.node.doors.http.answers.base import AnswerRoute, example, long_answer
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.forms import (
    AckForm,
    Count,
    DelayMs,
    Encoding,
    ExtendForm,
    Form,
    LeaseMs,
    NackForm,
    RequestId,
    TakeForm,
    Topic,
    WaitMs,
    readable,
)
from millrace.node.doors.http.guard import CallerIs, identify
from millrace.node.doors.http.problems import Problem
from millrace.node.groups.consumer_groups import GroupExists, NoSuchGroup, Taken, queue_name
from millrace.tracing.sampling import TRACEPARENT

router = APIRouter(tags=["queue"], dependencies=[Depends(identify)], route_class=AnswerRoute)

_EXISTS = "exists"
_EMPTY = "empty"
_NO_TOPIC = "no such topic: make it with PUT /topic"
_STALE = "a receipt is not good any more: its lease ended and the message went to somebody else, or is done"


class TopicForm(Form):
    topic: Topic
    deliveries_max: int = 0
    """After so many deliveries without an acknowledgement a message goes to `dead_letter`; 0 is never."""
    dead_letter: str = ""


class MessageForm(Form):
    topic: Topic
    message: str | None = None
    messages: Annotated[list[str], Field(fail_fast=True, max_length=PUT_MESSAGES_MAX)] | None = None
    encoding: Encoding = "utf-8"
    delay_ms: DelayMs = 0

    @model_validator(mode="after")
    def _one_of_both(self) -> "MessageForm":
        if (self.message is None) == (self.messages is None):
            raise ValueError("give message or messages")
        return self


class GetForm(TakeForm):
    topic: Topic


class QueueRequest(Form):
    """One of the four requests of the queue, named by `type` and `method`."""

    type: Literal["topic", "message"]
    method: Literal["PUT", "GET"]
    topic: Topic | None = None
    message: str | None = None

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> "QueueRequest":
        if self.topic is None and (self.type, self.method) != ("topic", "GET"):
            raise ValueError("give topic")
        if self.message is None and (self.type, self.method) == ("message", "PUT"):
            raise ValueError("give message")
        return self


class QueueAck(AckForm):
    topic: Topic


class QueueNack(NackForm):
    topic: Topic


class QueueExtend(ExtendForm):
    topic: Topic


@router.put(
    "/topic",
    summary="Make the queue of a topic",
    response_model=answers.QueueAnswer,
    responses=example({"success": True}),
)
async def put_topic(request: Request, form: TopicForm, caller: CallerIs) -> dict[str, Any]:
    """Make the queue of a topic; `success` is false if there is one."""
    caller.must_be(Role.OPERATOR)
    topic = form.topic
    if "+" in topic or "#" in topic:
        raise Problem(400, f"{topic!r} is a filter, not a topic")
    spec = DurableGroupSpec(
        name=queue_name(topic),
        filters=(topic,),
        deliveries_max=form.deliveries_max,
        dead_letter=form.dead_letter or (f"dead-letter/{topic}" if form.deliveries_max else ""),
    )
    groups = server_of(request).engine.groups
    try:
        await groups.create(spec)
    except GroupExists:
        return _no(_EXISTS)
    except LocalError:
        if spec.name in groups.by_name:
            return _no(_EXISTS)
        raise
    return {"success": True}


@router.get(
    "/topic",
    summary="Topics that have a queue",
    response_model=answers.QueueTopics,
    responses=example({"success": True, "topics": ["orders"]}),
)
async def get_topics(request: Request, caller: CallerIs) -> dict[str, Any]:
    """The topics that have a queue."""
    groups = server_of(request).engine.groups.by_name.values()
    topics = sorted(group.spec.filters[0] for group in groups if group.spec.is_queue)
    return {"success": True, "topics": [topic for topic in topics if caller.principal.may_receive(topic)]}


@router.delete(
    "/topic",
    summary="Remove the queue of a topic",
    response_model=answers.QueueAnswer,
    responses=example({"success": True}),
)
async def delete_topic(request: Request, topic: Topic, caller: CallerIs) -> dict[str, Any]:
    """Remove the queue of a topic; its messages stay in the log for other readers."""
    caller.must_be(Role.OPERATOR)
    try:
        await server_of(request).engine.groups.delete(queue_name(topic))
    except NoSuchGroup:
        return _no(_NO_TOPIC)
    return {"success": True}


@router.put(
    "/message",
    summary="Put messages",
    response_model=answers.QueueAnswer,
    responses=example({"success": True}),
)
async def put_message(
    request: Request, form: MessageForm, caller: CallerIs, traceparent: forms.TraceParent = None
) -> dict[str, Any]:
    """Put a message, or several in order; `success` is false without a queue, true means on disk. Where no
    log keeps the topic any more, nothing is put."""
    server = server_of(request)
    caller.must_publish(form.topic)
    groups = server.engine.groups
    queue = groups.by_name.get(queue_name(form.topic))
    if queue is None:
        return _no(_NO_TOPIC)
    groups.check_stored(queue.spec)
    texts = [form.message] if form.message is not None else form.messages or []
    caller.must_be_slow(server, len(texts), sum(map(len, texts)))
    messages = [
        forms.to_message(
            forms.PublishForm(topic=form.topic, payload=text, encoding=form.encoding, delay_ms=form.delay_ms),
            server.wall_us(),
            traceparent,
        )
        for text in texts
    ]
    for message in messages:
        groups.publishing.check(message)
    published = await asyncio.gather(*(groups.publishing.publish(message) for message in messages))
    if any(one.offset is None for one in published):
        # The stream may have lost its log since it was asked for.
        groups.check_stored(queue.spec)
    return {"success": True}


async def _get_form(
    request: Request,
    topic: Annotated[str | None, Query(max_length=65_535)] = None,
    ack: Annotated[str | None, Query(description="auto, or manual for a lease and a receipt")] = None,
    lease_ms: Annotated[LeaseMs | None, Query()] = None,
    wait_ms: Annotated[WaitMs | None, Query(description="Wait for a message.")] = None,
    count: Annotated[Count | None, Query(description="Up to so many; the answer is a list then.")] = None,
) -> GetForm:
    """From the query or from a JSON body, which wins."""
    query = {"topic": topic, "ack": ack, "lease_ms": lease_ms, "wait_ms": wait_ms, "count": count}
    given: dict[str, Any] = {name: value for name, value in query.items() if value is not None}
    body = await request.body()
    if body.strip():
        try:
            fields = json.loads(body)
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None
        except RecursionError:
            raise Problem(400, "the body is nested too deeply") from None
        if not isinstance(fields, dict):
            raise Problem(400, "the body is not a JSON object")
        given.update(fields)
    try:
        return GetForm.model_validate(given)
    except ValidationError as error:
        rows = [{**row, "loc": ("body or query", *row["loc"])} for row in error.errors(include_context=False)]
        raise RequestValidationError(rows) from None


@router.get(
    "/message",
    summary="Take the next message, for programs",
    response_model=answers.QueueTaken,
    responses=example({"success": True, "message": "one"}),
)
async def get_message(
    request: Request,
    caller: CallerIs,
    form: Annotated[GetForm, Depends(_get_form)],
    request_id: RequestId = "",
) -> dict[str, Any] | Response:
    """As `POST /message`. It needs a JSON body, or a header `Millrace-Request-Id` or `X-Requested-With`: a
    link in a page must not take a message."""
    return await take_message(request, caller, form, request_id)


@router.post(
    "/message",
    summary="Take the next message",
    response_model=answers.QueueTaken,
    responses=example({"success": True, "message": "one"}),
)
async def take_message(
    request: Request,
    caller: CallerIs,
    form: Annotated[GetForm, Depends(_get_form)],
    request_id: RequestId = "",
) -> dict[str, Any] | Response:
    """Take the next message, first in first out; `success` is false if there is none, or no such topic.

    The parameters may also stand in a JSON body. Without `ack=manual` the message is done with this answer:
    an answer that gets lost is a lost message, unless the request had a `Millrace-Request-Id` and is
    repeated. With `ack=manual` the message is leased and the answer has a `receipt`: acknowledge it before
    the lease ends, or the message comes again.
    """
    caller.must_subscribe(form.topic)
    server = server_of(request)
    groups = server.engine.groups
    try:
        taken = await groups.take(
            queue_name(form.topic),
            count=form.count,
            lease_us=form.lease_us,
            wait_ms=form.wait_ms,
            request=caller.key(request_id),
            check=lambda group: caller.now(server).must_subscribe(form.topic),
        )
    except NoSuchGroup:
        return _no(_NO_TOPIC)
    is_leased = form.ack == "manual"
    if not taken:
        return _no(_EMPTY)
    server.broker.stats.read += len(taken)
    if "count" in form.model_fields_set:
        return await long_answer("messages", (_shown(one, is_leased) for one in taken), success=True)
    return {"success": True, **_shown(taken[0], is_leased)}


@router.post(
    "/",
    summary="Any request of the queue, named in its body",
    response_model=answers.QueueReply,
    responses=example({"success": True, "message": "one"}),
)
async def queue_request(
    request: Request, caller: CallerIs, form: QueueRequest, request_id: RequestId = ""
) -> dict[str, Any] | Response:
    """`type` and `method` choose what is done: `topic` and `PUT` is `PUT /topic`, `topic` and `GET` is
    `GET /topic`, `message` and `PUT` is `PUT /message`, `message` and `GET` is `POST /message`."""
    topic = form.topic or ""
    match form.type, form.method:
        case "topic", "PUT":
            return await put_topic(request, TopicForm(topic=topic), caller)
        case "topic", _:
            return await get_topics(request, caller)
        case _, "PUT":
            put = MessageForm(topic=topic, message=form.message)
            return await put_message(request, put, caller, request.headers.get(TRACEPARENT))
        case _:
            return await take_message(request, caller, GetForm(topic=topic), request_id)


@router.put(
    "/message/ack",
    summary="Acknowledge",
    response_model=answers.QueueSettled,
    responses=example({"success": True, "results": [True]}),
)
async def ack_messages(request: Request, form: QueueAck, caller: CallerIs) -> dict[str, Any]:
    """Done with these; `success` if every receipt was still good, `results` tells each."""
    return await _settle(request, caller, form, "ack")


@router.put(
    "/message/nack",
    summary="Give back",
    response_model=answers.QueueSettled,
    responses=example({"success": True, "results": [True]}),
)
async def nack_messages(request: Request, form: QueueNack, caller: CallerIs) -> dict[str, Any]:
    """Give these back: they come again, after `delay_ms`, or go to the dead letters."""
    return await _settle(request, caller, form, "nack", form.delay_ms * 1000)


@router.put(
    "/message/extend",
    summary="Extend leases",
    response_model=answers.QueueSettled,
    responses=example({"success": True, "results": [True]}),
)
async def extend_messages(request: Request, form: QueueExtend, caller: CallerIs) -> dict[str, Any]:
    """Go on with these: the lease ends `lease_ms` from now."""
    return await _settle(request, caller, form, "extend", form.lease_ms * 1000)


async def _settle(
    request: Request, caller: CallerIs, form: QueueAck | QueueNack | QueueExtend, how: str, *extra: int
) -> dict[str, Any]:
    caller.must_subscribe(form.topic)
    groups = server_of(request).engine.groups
    try:
        results = await groups.settle(queue_name(form.topic), how, form.receipts, *extra)
    except NoSuchGroup:
        return {**_no(_NO_TOPIC), "results": [False] * len(form.receipts)}
    if not all(results):
        return {**_no(_STALE), "results": results}
    return {"success": True, "results": results}


def _no(reason: str) -> dict[str, Any]:
    return {"success": False, "reason": reason}


def _shown(taken: Taken, is_leased: bool) -> dict[str, Any]:
    shown: dict[str, Any] = readable("message", taken.message.payload)
    if is_leased:
        shown |= {"receipt": taken.receipt, "deliveries": taken.delivery}
    return shown
