"""The queue (`node/queue/queue.py`) by HTTP.

`PUT /topic` makes the durable group `queue` on that topic, and `POST /message` takes from it. Without
`ack=manual` a message is done when it is taken: an answer that gets lost on the way is a lost message, unless
the request named itself (`Millrace-Request-Id`) and is repeated.

`POST /` takes the same four requests in one form, `{"type": "topic" or "message", "method": "PUT" or "GET",
"topic": ..., "message": ...}`, for clients that know only that.
"""

import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Field, ValidationError, model_validator

from millrace.limits import PUT_MESSAGES_MAX
from millrace.node.access.caller import Caller
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
    LeaseMs,
    NackForm,
    RequestId,
    TakeForm,
    WaitMs,
)
from millrace.node.doors.http.guard import CallerIs, identify
from millrace.node.doors.http.problems import Problem
from millrace.node.json_form import Form
from millrace.node.queue.forms import QueueRequest, Topic
from millrace.node.queue.queue import Queue, one_of_many, shown
from millrace.tracing.sampling import TRACEPARENT
from millrace.types import Message

router = APIRouter(tags=["queue"], dependencies=[Depends(identify)], route_class=AnswerRoute)


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
    return await _queue(request, caller).make(form.topic, form.deliveries_max, form.dead_letter)


@router.get(
    "/topic",
    summary="Topics that have a queue",
    response_model=answers.QueueTopics,
    responses=example({"success": True, "topics": ["orders"]}),
)
async def get_topics(request: Request, caller: CallerIs) -> dict[str, Any]:
    """The topics that have a queue."""
    return _queue(request, caller).topics()


@router.delete(
    "/topic",
    summary="Remove the queue of a topic",
    response_model=answers.QueueAnswer,
    responses=example({"success": True}),
)
async def delete_topic(request: Request, topic: Topic, caller: CallerIs) -> dict[str, Any]:
    """Remove the queue of a topic; its messages stay in the log for other readers."""
    return await _queue(request, caller).remove(topic)


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
    texts = [form.message] if form.message is not None else form.messages or []

    def make() -> list[Message]:
        return [
            _message(request, form.topic, text, traceparent, encoding=form.encoding, delay_ms=form.delay_ms)
            for text in texts
        ]

    return await _queue(request, caller).put(form.topic, list(map(len, texts)), make)


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
    taken = await _queue(request, caller).take(
        form.topic, count=form.count, lease_us=form.lease_us, wait_ms=form.wait_ms, request_id=request_id
    )
    if not isinstance(taken, list):
        return taken
    is_leased = form.ack == "manual"
    if "count" in form.model_fields_set:
        rows = (one_of_many(one, is_leased=is_leased) for one in taken)
        return await long_answer("messages", rows, success=True)
    return shown(taken[0], is_leased=is_leased)


@router.post(
    "/",
    summary="Any request of the queue, named in its body",
    response_model=answers.QueueReply,
    responses=example({"success": True, "message": "one"}),
)
async def queue_request(
    request: Request, caller: CallerIs, form: QueueRequest, request_id: RequestId = ""
) -> dict[str, Any]:
    """`type` and `method` choose what is done: `topic` and `PUT` is `PUT /topic`, `topic` and `GET` is
    `GET /topic`, `message` and `PUT` is `PUT /message`, `message` and `GET` is `POST /message`."""
    traceparent = request.headers.get(TRACEPARENT)
    return await _queue(request, caller).answer(
        form, lambda topic, text: _message(request, topic, text, traceparent), request_id
    )


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
    return await _queue(request, caller).settle(form.topic, how, form.receipts, *extra)


def _queue(request: Request, caller: Caller) -> Queue:
    return Queue(server_of(request), caller)


def _message(
    request: Request,
    topic: str,
    text: str,
    traceparent: str | None,
    *,
    encoding: Encoding = "utf-8",
    delay_ms: int = 0,
) -> Message:
    form = forms.PublishForm(topic=topic, payload=text, encoding=encoding, delay_ms=delay_ms)
    return forms.to_message(form, server_of(request).wall_us(), traceparent)
