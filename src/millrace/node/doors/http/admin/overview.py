"""The cluster at a glance, once or live; events; where the next message of a topic would go."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse

from millrace.broker.access import Role
from millrace.broker.topics.filters import is_valid
from millrace.errors import LocalError
from millrace.limits import LIVE_LISTENERS_MAX, TAIL_FILTERS_MAX, TAIL_MESSAGES_PER_S_MAX
from millrace.node.admin.events import KINDS, Event
from millrace.node.admin.live import as_sent, written
from millrace.node.admin.shapes import Overview, Trace
from millrace.node.admin.tail import Tail
from millrace.node.doors.http.admin import examples, paging
from millrace.node.doors.http.admin.paging import Cursor, Limit, NodeName, Search, admin_of
from millrace.node.doors.http.answers.base import Page, example, model_of
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.guard import CallerIs, identify, observe
from millrace.node.doors.http.problems import Problem

router = APIRouter(prefix="/v1", tags=["administration"], dependencies=[Depends(identify)])

_EVENT_STREAM = "text/event-stream"
_NOT_KEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def _sent(text: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": "Server-sent events.", "content": {_EVENT_STREAM: {"example": text}}}}


@router.get(
    "/overview",
    dependencies=[Depends(observe)],
    summary="The whole cluster at a glance",
    response_model=model_of(Overview),
    responses=example(examples.OVERVIEW),
)
async def overview(request: Request) -> Response:
    """Nodes, replication groups, streams and totals. Every node answers for all; one that does not answer
    within a second has `is_answering` false and no figures, and the rest is there all the same."""
    return paging.answer(await admin_of(request).overview())


@router.get(
    "/live",
    dependencies=[Depends(observe)],
    summary="Overview and events as they happen",
    response_class=Response,
    responses=_sent('event: overview\ndata: {"time_us": 1795000000000000, ...}\n\n'),
)
async def live(request: Request, caller: CallerIs) -> Response:
    """Server-sent events: `overview` (as of /v1/overview) once a second, `event` (as of /v1/events) as it
    happens, `skipped` with a count where a slow reader missed events, and a comment where nothing else is
    sent for ten seconds."""
    hub, server = admin_of(request).live, server_of(request)
    listener = hub.join(lambda: caller.is_still(server, Role.OBSERVER))
    if listener is None:
        raise Problem(503, f"{LIVE_LISTENERS_MAX} listeners are at this node, the most; ask another node")

    async def body() -> AsyncIterator[bytes]:
        try:
            async for piece in written(listener):
                yield piece
        finally:
            hub.leave(listener)

    return StreamingResponse(body(), media_type=_EVENT_STREAM, headers=_NOT_KEPT)


@router.get(
    "/tail",
    summary="Messages of some topics as they pass",
    response_class=Response,
    responses=_sent('event: message\ndata: {"topic": "plant/1/temp", "payload": "21.5", ...}\n\n'),
)
async def tail(
    request: Request,
    caller: CallerIs,
    filter: Annotated[
        list[str], Query(min_length=1, max_length=TAIL_FILTERS_MAX, description="Topic filters, as of MQTT.")
    ],
    limit_per_s: Annotated[
        int,
        Query(
            ge=1, le=TAIL_MESSAGES_PER_S_MAX, description="Messages per second at most; the rest is counted."
        ),
    ] = 100,
) -> Response:
    """Server-sent events: `message` for each message from now on, `skipped` with a count where there were
    more. The answering node subscribes at QoS 0 in the caller's name: the access rules hold as for any
    subscriber. Payloads are cut at 64 KiB."""
    for one in filter:
        if not is_valid(one) or one.startswith("$share/"):
            raise Problem(400, f"{one!r} is not a topic filter")
    caller.must_subscribe(*filter)
    admin = admin_of(request)
    try:
        begun = admin.tail(filter, caller.identity, caller.peer, limit_per_s)
    except LocalError as error:
        raise paging.problem_of(error) from None
    return StreamingResponse(_pieces(admin, begun), media_type=_EVENT_STREAM, headers=_NOT_KEPT)


async def _pieces(admin: Any, begun: Tail) -> AsyncIterator[bytes]:
    try:
        # At once: a reader knows by it that the subscription is made.
        yield b": listening\n\n"
        while (piece := await begun.next()) is not None:
            yield as_sent(*piece)
    finally:
        admin.end_tail(begun)


@router.get(
    "/events",
    dependencies=[Depends(observe)],
    summary="What happened, newest first",
    response_model=Page[model_of(Event)],  # type: ignore[misc]
    responses=example(examples.page(examples.EVENT)),
)
async def events(
    request: Request,
    limit: Limit = 100,
    cursor: Cursor = None,
    after: Annotated[
        str | None,
        Query(max_length=300, description="Only what is newer than this event id or time in microseconds."),
    ] = None,
    kind: Annotated[str | None, Query(description=f"One of {', '.join(KINDS)}.")] = None,
    search: Search = "",
    node: NodeName = None,
) -> Response:
    """Elections, members, links, streams, groups, clients, refusals, storage. Each node keeps its last 10,000
    events in memory; of what clients cause it takes 50 a second and counts the rest."""
    if kind is not None and kind not in KINDS:
        raise Problem(400, f"there is no kind {kind!r}; there are {', '.join(KINDS)}")
    found, next, missing = await admin_of(request).event_page(
        limit=limit,
        before=paging.place(cursor, int),
        after_us=_time_of(after),
        kind=kind,
        search=search,
        node=node,
    )
    return paging.page(found, next, missing)


def _time_of(after: str | None) -> int | None:
    """An event id begins with its time."""
    if after is None:
        return None
    digits = after.partition("-")[0]
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise Problem(400, f"after = {after[:50]!r} is neither the id of an event nor a time in microseconds")
    return int(digits)


@router.get(
    "/trace",
    dependencies=[Depends(observe)],
    summary="Where the next message of a topic would go",
    response_model=model_of(Trace),
    responses=example(examples.TRACE),
)
async def trace(
    request: Request,
    topic: Annotated[str | None, Query(max_length=65_535, description="A topic, without wildcards.")] = None,
    client: Annotated[str | None, Query(max_length=65_535, description="A client id.")] = None,
) -> Response:
    """The stream and log of a topic, and everybody who gets its next message. With a client, what of that is
    for this client; with a client alone, what it subscribed to."""
    if topic is None and client is None:
        raise Problem(400, "give a topic, a client, or both")
    if topic is not None and (not is_valid(topic) or "+" in topic or "#" in topic):
        raise Problem(400, f"{topic!r} is not a topic")
    return paging.answer(await admin_of(request).trace(topic, client))
