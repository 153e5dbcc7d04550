"""Streams, their messages by offset, and publishing.

A reader names an offset and gets what is there, with the offset to ask for next; at the end of the log it may
wait. What retention has removed is answered 410 with the earliest offset that is left. Raw blocks go to
programs that read columns: whole blocks, so the first may begin before the offset that was asked for.
"""

import asyncio
from typing import Annotated, Any, cast

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from millrace.broker.access import Role
from millrace.broker.streams.stream import DEFAULT_STREAM, Replication, Stream, StreamSpec
from millrace.broker.streams.switching import consequences
from millrace.broker.topics.filters import is_valid, matches
from millrace.errors import LocalError
from millrace.limits import ANSWER_BYTES_MAX, BLOCKS_ANSWER_BYTES_MAX, READ_MESSAGES_MAX, WAIT_MS_MAX
from millrace.node.access.caller import Caller, ServingNode
from millrace.node.doors.http import batches, forms
from millrace.node.doors.http.answers import streams as answers
from millrace.node.doors.http.answers.base import AnswerRoute, example, long_answer
from millrace.node.doors.http.context import ServedNode, server_of
from millrace.node.doors.http.forms import (
    Producer,
    PublishForm,
    Sequence,
    TraceParent,
    key_of,
)
from millrace.node.doors.http.guard import CallerIs, identify, take_part
from millrace.node.doors.http.problems import Problem
from millrace.node.doors.http.settings_forms import Given, asked, changed, made
from millrace.node.groups.shard_consumers import Unavailable
from millrace.node.json_form import Form
from millrace.node.logs.reading import keys_of, matching_rows, stored_rows
from millrace.node.logs.time_lookup import offset_at
from millrace.node.pairs.pair_keeper import admit
from millrace.node.shards.publishing import NotStored, Published
from millrace.node.shards.shard import Shard
from millrace.storage.block import Block, Kind

router = APIRouter(prefix="/v1", dependencies=[Depends(identify)], route_class=AnswerRoute)

_BLOCKS_TYPE = "application/vnd.millrace.blocks"
# One answer looks at no more of the log than this many reads of about 1 MiB.
_READS_MAX = 64


class PurgeForm(Form):
    shard: int | None = None
    before: Annotated[int, Field(ge=0)] | None = None
    """Everything below this offset goes; without it all there is."""


# ------------------------------------------------------------------------------------------- streams


@router.get(
    "/streams",
    tags=["streams"],
    dependencies=[Depends(take_part)],
    summary="All streams",
    response_model=answers.StreamList,
    responses=example({"streams": [answers.STREAM]}),
)
async def list_streams(request: Request) -> dict[str, Any]:
    """All streams with their shards."""
    server = server_of(request)
    streams = server.engine.definitions.table.streams
    return {"streams": [_shown(server, stream) for _, stream in sorted(streams.items())]}


@router.post(
    "/streams",
    status_code=201,
    tags=["streams"],
    summary="Make a stream",
    response_model=answers.StreamShown,
    responses=example(answers.STREAM, 201),
)
async def create_stream(
    request: Request, form: Annotated[Given, asked(StreamSpec)], caller: CallerIs
) -> dict[str, Any]:
    """Make a stream. 409 if there is one of this name."""
    caller.must_be(Role.OPERATOR)
    server = server_of(request)
    spec = made(StreamSpec, form)
    _must_change(server, caller, spec)
    if spec.name in server.engine.definitions.table.streams:
        raise Problem(409, f"stream {spec.name!r} exists")
    if spec.edge:
        await server.engine.edges.functions.check_loading(spec.edge)
    stream = await server.engine.opening.put(spec, create=True)
    return _shown(server, stream, replicas_asked="replicas" in form)


@router.get(
    "/streams/{name}",
    tags=["streams"],
    dependencies=[Depends(take_part)],
    summary="One stream",
    response_model=answers.StreamShown,
    responses=example(answers.STREAM),
)
async def show_stream(request: Request, name: str) -> dict[str, Any]:
    """Figures of the schedule `frame` are those of the primary, whichever node is asked."""
    server = server_of(request)
    shown = _shown(server, _stream(server, name))
    for row in shown["shard_list"]:
        if "measured" in row and row["primary"] and row["primary"] != server.config.node.id:
            row.update(await server.admin.frame_figures(row["primary"], row["shard"]))
    return shown


@router.patch(
    "/streams/{name}",
    tags=["streams"],
    summary="Change a stream",
    response_model=answers.StreamShown | answers.Preview,
    responses=example(answers.STREAM),
)
async def alter_stream(
    request: Request,
    name: str,
    form: Annotated[Given, asked(StreamSpec, is_change=True)],
    caller: CallerIs,
    preview: Annotated[bool, Query(description="Change nothing; say what the change would mean.")] = False,
) -> dict[str, Any]:
    """Change what is given. Other shards, filters or replication seal the shards and open new ones."""
    caller.must_be(Role.OPERATOR)
    server = server_of(request)
    known = _stream(server, name)
    spec = changed(known.spec, form)
    _must_change(server, caller, known.spec, spec)
    if preview:
        return {"name": name, "means": list(consequences(known, spec))}
    if spec.edge != known.spec.edge and spec.edge:
        await server.engine.edges.functions.check_loading(spec.edge)
    stream = await server.engine.opening.put(spec, create=False)
    return _shown(server, stream, replicas_asked="replicas" in form)


@router.post(
    "/edge/reload",
    tags=["streams"],
    summary="Load edge functions anew",
    response_model=answers.Reloaded,
    responses=example({"reloaded": 1}),
)
async def reload_edge_functions(request: Request, caller: CallerIs) -> dict[str, Any]:
    """Load the edge functions of this node anew; calls under way end with the code they began with."""
    caller.must_be(Role.OPERATOR)
    return {"reloaded": await server_of(request).engine.edges.functions.reload()}


@router.delete("/streams/{name}", status_code=204, tags=["streams"], summary="Delete a stream")
async def delete_stream(request: Request, name: str, caller: CallerIs) -> None:
    """Remove a stream with everything in it; its topics belong to `default` from then on."""
    caller.must_be(Role.OPERATOR)
    server = server_of(request)
    _must_change(server, caller, _stream(server, name).spec)
    if name == DEFAULT_STREAM:
        raise Problem(409, "the stream 'default' stays: it takes what no other stream does")
    await server.engine.opening.delete(name)


@router.post(
    "/streams/{name}/purge",
    tags=["streams"],
    summary="Forget messages",
    response_model=answers.StreamShown,
    responses=example(answers.STREAM),
)
async def purge_stream(request: Request, name: str, form: PurgeForm, caller: CallerIs) -> dict[str, Any]:
    """Forget messages: below an offset, or all there are. Offsets go on counting."""
    caller.must_be(Role.OPERATOR)
    server = server_of(request)
    stream = _stream(server, name)
    _must_change(server, caller, stream.spec)
    if stream.leaderless:
        raise Problem(
            409,
            f"stream {name!r} is leaderless and cannot be purged: its groups and its retention decide which "
            "messages are removed",
        )
    numbers = [*stream.sealed, *stream.shards] if form.shard is None else [form.shard]
    if not numbers:
        raise Problem(409, f"stream {name!r} is routed: it has no stored messages that could be removed")
    if server.engine.space.is_refusing:
        raise Unavailable("the disk of the node is full; a purge needs a little room as well")
    for number in numbers:
        shard = _shard(server, name, number)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        offset = shard.next_offset if form.before is None else form.before
        if not shard.trim(offset, done):
            raise Unavailable("the log accepts no messages right now; try again")
        await done
    return _shown(server, stream)


@router.post(
    "/streams/{name}/switch",
    tags=["streams"],
    summary="Planned switch-over",
    response_model=answers.SwitchedList,
    responses=example({"switched": [{"shard": 17, "epoch": 2, "primary": "b4a0d6c2"}]}),
)
async def switch_stream(request: Request, name: str, caller: CallerIs) -> dict[str, Any]:
    """Planned switch-over of a primary-backup stream: every backup that is in sync becomes primary."""
    caller.must_be(Role.OPERATOR)
    server = server_of(request)
    numbers = _stream(server, name).shards
    try:
        switched = [await server.engine.pairs.switch(number) for number in numbers]
        return {"switched": [msgspec.structs.asdict(one) for one in switched]}
    except LocalError as error:
        raise Problem(409, str(error)) from None


# ------------------------------------------------------------------------------------------ messages


@router.get(
    "/streams/{name}/shards/{shard}/messages",
    tags=["messages"],
    summary="Messages by offset",
    response_model=answers.MessageList,
    responses=example(answers.MESSAGES),
)
async def read_messages(
    request: Request,
    caller: CallerIs,
    name: str,
    shard: int,
    start: Annotated[str, Query(alias="from", description="An offset, earliest or latest.")] = "earliest",
    limit: Annotated[int, Query(ge=1, le=READ_MESSAGES_MAX)] = 100,
    wait_ms: Annotated[int, Query(ge=0, le=WAIT_MS_MAX, description="Wait at the end of the log.")] = 0,
    filter: Annotated[str, Query(description="Only topics of this MQTT filter.")] = "#",
) -> Response:
    """Messages from an offset on, and the offset to ask for next."""
    if not is_valid(filter):
        raise Problem(400, f"{filter!r} is not a topic filter")
    server = server_of(request)
    found = _shard(server, name, shard)
    offset = _offset(found, start)
    await _wait_for(server, found, offset, wait_ms)
    _must_be_there(found, offset)
    messages, offset = await _messages(server, found, offset, limit, filter, caller.now(server))
    server.broker.stats.read += len(messages)
    return await long_answer(
        "messages",
        messages,
        stream=name,
        shard=shard,
        next_offset=offset,
        end_offset=found.next_offset,
    )


@router.get(
    "/streams/{name}/shards/{shard}/blocks",
    tags=["messages"],
    summary="Blocks as they are in the log",
    response_class=Response,
    responses={200: {"content": {_BLOCKS_TYPE: {}}, "description": "Whole blocks, one after the other."}},
)
async def read_blocks(
    request: Request,
    caller: CallerIs,
    name: str,
    shard: int,
    start: Annotated[int, Query(alias="from", ge=0)],
    end: Annotated[int | None, Query(alias="to", ge=0)] = None,
) -> Response:
    """The blocks that hold [from, to), as they are in the log, cut at about 16 MiB; the header
    `Millrace-Next-Offset` says where to go on."""
    server = server_of(request)
    stream, found = _stream(server, name), _shard(server, name, shard)
    caller.must_subscribe(*(stream.spec.filters or ("#",)))
    stop = found.next_offset if end is None else min(end, found.next_offset)
    _must_be_there(found, start)
    pieces: list[bytes] = []
    proved: set[bytes] | None = None if caller.principal.may_subscribe("#") else set()
    size, offset = 0, start
    while offset < stop and size < BLOCKS_ANSWER_BYTES_MAX:
        blocks = await server.engine.reading.blocks(found, offset)
        if not blocks:
            break
        for block in blocks:
            if offset >= stop or size >= BLOCKS_ANSWER_BYTES_MAX:
                break
            if block.header.kind is Kind.DATA:
                if proved is not None:
                    _must_receive(caller, block, proved)
                pieces += block.buffers()
                server.broker.stats.read += block.header.count
                size += block.header.block_bytes
            offset = max(offset, block.header.next_offset)
    return Response(b"".join(pieces), media_type=_BLOCKS_TYPE, headers={"Millrace-Next-Offset": str(offset)})


def _must_receive(caller: Caller, block: Block, proved: set[bytes]) -> None:
    """All topics of a block: a sealed shard may have others than the stream's filters name now. Most blocks
    have the topics of one before, and `proved` knows these [rule 30]."""
    for topic in block.topics():
        if topic not in proved:
            if not caller.principal.may_receive(topic.decode()):
                # Without its name, which is not for this user either.
                raise Problem(403, "these blocks hold topics that you may not receive; ask for messages")
            proved.add(topic)


@router.get(
    "/streams/{name}/shards/{shard}/offset",
    tags=["messages"],
    dependencies=[Depends(take_part)],
    summary="The offset of a time",
    response_model=answers.OffsetFound,
    responses=example(
        {"stream": "default", "shard": 16, "offset": 800, "first_offset": 0, "next_offset": 812}
    ),
)
async def find_offset(
    request: Request,
    name: str,
    shard: int,
    time_us: Annotated[int, Query(description="Microseconds since 1970, UTC.")],
) -> dict[str, Any]:
    """The first offset whose message is from this time or later; the next one to come if there is none."""
    server = server_of(request)
    found = _shard(server, name, shard)
    offset = await offset_at(server.engine.reading, found, time_us)
    return {
        "stream": name,
        "shard": shard,
        "offset": offset,
        "first_offset": found.first_offset,
        "next_offset": found.next_offset,
    }


async def _messages(
    server: ServedNode, shard: "Shard", offset: int, limit: int, filter: str, caller: Caller
) -> tuple[list[dict[str, Any]], int]:
    messages: list[dict[str, Any]] = []
    size = 0
    keys = keys_of((filter,))

    def takes(topic: bytes) -> bool:
        text = topic.decode()
        return matches(filter, text) and caller.principal.may_receive(text)

    for _ in range(_READS_MAX):
        end = shard.next_offset
        blocks = await server.engine.reading.blocks(shard, offset, keys)
        if not blocks:
            return messages, max(offset, end)
        for block in blocks:
            for first, after in matching_rows(block, offset, takes):
                for message in stored_rows(shard.number, block, range(first, after)):
                    messages.append(forms.from_stored(message))
                    size += len(message.payload)
                    if len(messages) >= limit or size >= ANSWER_BYTES_MAX:
                        return messages, message.offset + 1
                    if len(messages) % batches.TURN_MESSAGES == 0:
                        await asyncio.sleep(0)
            offset = max(offset, block.header.next_offset)
        if messages:
            break
    return messages, offset


def _offset(shard: "Shard", start: str) -> int:
    if start == "earliest":
        return shard.first_offset
    if start == "latest":
        return shard.next_offset
    if start.isascii() and start.isdigit() and len(start) < 20:
        return int(start)
    raise Problem(400, f"from = {start!r} is not an offset, earliest or latest")


async def _wait_for(server: ServedNode, shard: "Shard", offset: int, wait_ms: int) -> None:
    """Until the message at this offset is committed, for a while."""
    if wait_ms == 0 or offset < shard.next_offset:
        return
    watcher = asyncio.Event()
    shard.consumers.watchers[watcher] = None
    try:
        async with asyncio.timeout(wait_ms / 1000):
            while offset >= shard.next_offset and not server.engine.groups.is_stopping:
                watcher.clear()
                await watcher.wait()
    except TimeoutError:
        return
    finally:
        shard.consumers.watchers.pop(watcher, None)


def _must_change(server: ServingNode, caller: Caller, *specs: StreamSpec) -> None:
    """The stream of the audit is for administrators: whoever is watched must not empty it, nor put a stream
    that keeps nothing in front of it. A stream of all topics is no such stream."""
    filters = {filter for spec in specs for filter in spec.filters} - {"#"}
    if any(map(server.broker.rules.reserves, filters)):
        caller.must_be(Role.ADMIN)


def _must_be_there(shard: "Shard", offset: int) -> None:
    end = shard.next_offset
    if offset > end:
        raise Problem(409, f"offset {offset} is not there yet; the next is {end}", next_offset=end)


def _stream(server: ServedNode, name: str) -> Stream:
    stream = server.engine.definitions.table.streams.get(name)
    if stream is None:
        raise Problem(404, f"there is no stream {name!r}")
    return stream


def _shard(server: ServedNode, name: str, number: int) -> "Shard":
    stream = _stream(server, name)
    leaderless = server.engine.leaderless
    origins = leaderless.numbers(stream)
    if number in origins:
        return cast("Shard", leaderless.logs[number])
    shard = server.engine.shards.get(number)
    numbers = [n for n in (*stream.sealed, *stream.shards) if not stream.is_leaderless(n)]
    if shard is None or number not in numbers:
        known = ", ".join(map(str, (*numbers, *origins)))
        if stream.spec.replication is Replication.ROUTED:
            sealed = f"; sealed shards from before it was: {known}" if known else ""
            raise Problem(
                409, f"stream {name!r} is routed: its messages are stored nowhere and have no offset{sealed}"
            )
        raise Problem(404, f"stream {name!r} has no shard {number}; it has {known}")
    return shard


def _shown(server: ServedNode, stream: Stream, *, replicas_asked: bool = False) -> dict[str, Any]:
    name = stream.spec.name
    stream = server.engine.definitions.table.streams.get(name, stream)
    rows = [row for row in server.engine.status() if row["stream"] == name]
    shown = {**stream.spec.plain(), "generation": stream.generation, "shard_list": rows}
    warnings = list(server.engine.placement.degraded(stream))
    if server.engine.pairs.takes(stream):
        for row in rows:
            if row["shard"] in server.engine.shards:
                row.update(server.engine.pairs.shown(server.engine.shards[row["shard"]]))
        shown["topic_classes"] = admit(stream.spec.primary_backup)
        warnings += server.engine.pairs.warnings(stream)
    nodes = len(server.engine.definitions.state.members.hosts())
    if replicas_asked and stream.spec.replication is Replication.QUORUM and stream.spec.replicas > nodes:
        there, kept = ("1 node is", "1 is") if nodes == 1 else (f"{nodes} nodes are", f"{nodes} are")
        asked_for = f"{stream.spec.replicas} replicas are asked for and {there} there"
        warnings.append(f"{asked_for}; {kept} kept now, more as nodes join")
    if warnings:
        shown["warnings"] = warnings
    if stream.leaderless:
        shown["groups"] = server.engine.leaderless.groups(stream)
    return shown


# ---------------------------------------------------------------------------------------- publishing


@router.post(
    "/publish",
    tags=["messages"],
    summary="Publish a message",
    response_model=answers.PublishedMessage,
    responses=example(answers.PUBLISHED),
)
async def publish(
    request: Request,
    form: PublishForm,
    caller: CallerIs,
    producer: Producer = None,
    sequence: Sequence = None,
    traceparent: TraceParent = None,
) -> dict[str, Any]:
    """Publish a message; the answer comes when it is on disk and says where it stands."""
    caller.must_be_slow(server_of(request), 1, len(form.payload))
    key = key_of(caller.username, producer, sequence)
    return _outcome(form, await _publish(server_of(request), form, caller, key, traceparent))


@router.post(
    "/publish/batch",
    tags=["messages"],
    summary="Publish many messages",
    response_model=answers.PublishedList,
    responses=example({"published": [answers.PUBLISHED]}),
    openapi_extra=batches.BODY,
)
async def publish_batch(
    request: Request,
    messages: batches.Batch,
    caller: CallerIs,
    producer: Producer = None,
    sequence: Sequence = None,
    traceparent: TraceParent = None,
) -> Response:
    """Publish many messages in order; with a producer they are numbered from the given sequence on. After a
    failure send the same batch again under the same numbers."""
    server = server_of(request)
    for topic in {one.topic for one in messages}:
        caller.must_publish(topic)
    caller.must_be_slow(server, len(messages), sum(len(one.payload) for one in messages))
    under_way: list[asyncio.Future[list[Published | BaseException]]] = []
    for start in range(0, len(messages), batches.TURN_MESSAGES):
        turn = enumerate(messages[start : start + batches.TURN_MESSAGES], start)
        tasks = (
            _publish(server, one, caller, key_of(caller.username, producer, sequence, position), traceparent)
            for position, one in turn
        )
        under_way.append(asyncio.gather(*tasks, return_exceptions=True))
        # These run before the next ones are made, so the messages stay in order.
        await asyncio.sleep(0)
    outcomes = [outcome for turn_outcomes in under_way for outcome in await turn_outcomes]
    failed = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
    if failed is not None:
        raise failed
    rows = (
        _outcome(one, outcome)
        for one, outcome in zip(messages, outcomes, strict=True)
        if isinstance(outcome, Published)
    )
    return await long_answer("published", rows)


async def _publish(
    server: ServedNode, form: PublishForm, caller: Caller, key: Any, traceparent: str | None
) -> Published:
    caller.must_publish(form.topic)
    publishing = server.engine.groups.publishing
    message = forms.to_message(form, server.wall_us(), traceparent)
    try:
        publishing.check(message)
    except NotStored:
        raise
    except LocalError as error:
        raise Problem(400, str(error)) from None
    if message.retain and not server.config.mqtt.retain:
        raise Problem(400, "retained messages are off here")
    return await publishing.publish(message, key, caller.username)


def _outcome(form: PublishForm, published: Published) -> dict[str, Any]:
    return {
        "topic": form.topic,
        "shard": published.shard,
        "offset": published.offset,
        "duplicate": published.is_repeat,
    }
