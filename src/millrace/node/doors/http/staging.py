"""Two-step publishing for programs that write in batches: stage, then commit or abort.

A body that is staged is a sequence of sections: shard, block, MQTT version and length (u32 each, little
endian), then that many bytes of PUBLISH packets end to end. A section becomes one block of its shard. Packets
are what the log keeps, so nothing is turned into anything else here: a kernel walks over them and makes the
columns, and each distinct topic, not each message, is looked up and checked against the access rules.
"""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field

from millrace.broker.access import Role
from millrace.broker.meta.pipelines import Fence
from millrace.broker.meta.writers import Winners, winners_from
from millrace.broker.shards.staging import SECTION, BlockKey, check_name, make_key
from millrace.broker.streams.stream import Capture, Replication
from millrace.broker.topics.filters import is_valid
from millrace.errors import LocalError, RemoteError
from millrace.kernels.blocks import FLAG_RETAIN, Columns, Run, packet_types
from millrace.kernels.publish import after_packet_id
from millrace.limits import STAGE_SECTIONS_MAX
from millrace.node.access.caller import Caller
from millrace.node.doors.http.answers import streams as answers
from millrace.node.doors.http.answers.base import AnswerRoute, example
from millrace.node.doors.http.context import ServedNode, server_of
from millrace.node.doors.http.guard import CallerIs, identify, observe
from millrace.node.doors.http.problems import Problem
from millrace.node.json_form import Form
from millrace.node.shards.shard import Shard
from millrace.node.shards.staging import NoRoom
from millrace.node.shards.writers import Conflict, NotYours, Superseded
from millrace.storage.block import Block, BlockDamaged, Codec, keyed_block
from millrace.wire.mqtt.properties import decode_properties

router = APIRouter(
    prefix="/v1", tags=["staged publishing"], dependencies=[Depends(identify)], route_class=AnswerRoute
)

_STAGE_S = 30.0
# PUBLISH at QoS 0, 1 and 2, retained or not, never marked as sent before (MQTT 5, 3.3.1).
_FIRST_BYTES = frozenset(0x30 | qos << 1 | retain for qos in range(3) for retain in range(2))
_BATCH_TOP = 1 << 53

Batch = Annotated[int, Field(ge=0, lt=_BATCH_TOP)]


class CommitForm(Form):
    batch: Batch
    attempts: dict[str, dict[str, int]]
    """For each attempt that won: how many blocks it staged at each shard."""
    run: Annotated[str, Field(max_length=50)] | None = None
    """The run of a pipeline of the cluster that decides; 412 where it is not the newest."""


class AbortForm(Form):
    batch: Batch | None = None
    attempts: Annotated[list[str], Field(fail_fast=True)] | None = None
    """With a batch: these attempts. Without: all that is staged, of the batch or of the writer."""


@router.post(
    "/streams/{name}/stage",
    summary="Stage blocks",
    response_model=answers.StagedBlocks,
    responses=example({"blocks": 1, "rows": 1000}),
)
async def stage(
    request: Request,
    caller: CallerIs,
    name: str,
    writer: Annotated[str, Query()],
    batch: Annotated[int, Query(ge=0, lt=_BATCH_TOP)],
    attempt: Annotated[str, Query()],
) -> dict[str, Any]:
    """Stage blocks under an attempt: on disk on a majority and visible to nobody. Sections that are staged
    already are passed over, so a request may be sent again, to any node."""
    server = server_of(request)
    stream = server.engine.definitions.table.streams.get(name)
    if stream is None:
        raise Problem(404, f"there is no stream {name!r}")
    if stream.spec.replication is not Replication.QUORUM or stream.spec.capture is Capture.NONE:
        raise Problem(400, f"stream {name!r} cannot be staged to: it is not a log with quorum replication")
    user = _owner(request, caller, writer)
    try:
        server.engine.writing.check_owner(writer, user)
    except NotYours as error:
        raise Problem(403, str(error)) from None
    codec = Codec.ZLIB if stream.spec.compression == "zlib" else Codec.NONE
    topics = _Topics(server, caller, name)
    made: dict[int, list[tuple[BlockKey, Block]]] = {}
    waiting = []
    blocks = rows = 0
    body = await request.body()
    # Whatever is staged is written once more when it is released.
    staged_bytes = sum(shard.staging.state.size_bytes for shard in server.engine.shards.values())
    if not server.engine.space.has_room(staged_bytes + 2 * len(body)):
        raise Problem(507, "the disk has no room to stage this and to release what is staged; try again")
    try:
        for number, version, key, packets in _sections(body, writer, batch, attempt):
            _open_shard(server, name, stream.shards, number)
            block = _block(server, topics, number, version, key, packets, codec)
            caller.must_be_slow(server, block.header.count, len(packets))
            made.setdefault(number, []).append((key, block))
            blocks, rows = blocks + 1, rows + block.header.count
            # One section takes about a millisecond; others want their turn.
            await asyncio.sleep(0)
        for number, pairs in made.items():
            shard = _open_shard(server, name, stream.shards, number)
            waiting.append(asyncio.ensure_future(shard.staging.stage(pairs, user)))
        await asyncio.wait_for(asyncio.gather(*waiting), _STAGE_S)
    except NoRoom as error:
        raise Problem(507, str(error)) from None
    except TimeoutError:
        raise Problem(503, "the blocks are not on a majority's disks yet; send them again") from None
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    server.broker.stats.staged += rows
    return {"blocks": blocks, "rows": rows}


def _sections(body: bytes, writer: str, batch: int, attempt: str) -> "list[tuple[int, int, BlockKey, bytes]]":
    sections: list[tuple[int, int, BlockKey, bytes]] = []
    position = 0
    while position < len(body):
        if len(sections) >= STAGE_SECTIONS_MAX or len(body) - position < SECTION.size:
            raise Problem(400, f"a body has at most {STAGE_SECTIONS_MAX} whole sections")
        shard, block, version, size = SECTION.unpack_from(body, position)
        position += SECTION.size
        packets = body[position : position + size]
        position += size
        if len(packets) != size or version not in (4, 5):
            raise Problem(400, "a section is cut off, or its packets are of another version than 4 and 5")
        try:
            sections.append((shard, version, make_key(writer, batch, attempt, block), packets))
        except LocalError as error:
            raise Problem(400, str(error)) from None
    return sections


def _open_shard(server: ServedNode, name: str, shards: tuple[int, ...], number: int) -> "Shard":
    shard = server.engine.shards.get(number)
    if shard is None or number not in shards or shard.intake.is_sealed:
        raise Problem(409, f"stream {name!r} has no open shard {number}; look up the stream again")
    return shard


class _Topics:
    """The topics of a request: each is judged once."""

    def __init__(self, server: ServedNode, caller: Caller, stream: str) -> None:
        self._server, self._caller, self._stream = server, caller, stream
        self._shards: dict[bytes, int] = {}

    def check(self, topic: bytes, shard: int) -> None:
        """Problem unless the caller may publish to it and it belongs here."""
        number = self._shards.get(topic)
        if number is None:
            number = self._shards[topic] = self._look_up(topic)
        if number != shard:
            raise Problem(409, f"topic {topic.decode()!r} belongs to shard {number}, not {shard}")

    def _look_up(self, data: bytes) -> int:
        try:
            topic = data.decode()
        except UnicodeDecodeError:
            raise Problem(400, f"{data!r} is not UTF-8") from None
        limits = self._server.config.limits
        if not is_valid(topic) or "+" in topic or "#" in topic or topic.startswith("$"):
            raise Problem(400, f"{topic!r} is not a topic to publish to")
        if topic.count("/") >= limits.topic_levels_max or len(data) > limits.topic_bytes_max:
            raise Problem(
                400, f"{topic[:100]!r}... has more than {limits.topic_levels_max} levels or is long"
            )
        self._caller.must_publish(topic)
        table = self._server.engine.definitions.table
        stream = table.find(topic)
        if stream is None or stream.spec.name != self._stream:
            owner = "no stream" if stream is None else f"stream {stream.spec.name!r}"
            raise Problem(409, f"topic {topic!r} belongs to {owner}, not to {self._stream!r}")
        return table.shard(stream, data)


def _block(
    server: ServedNode, topics: _Topics, shard: int, version: int, key: BlockKey, packets: bytes, codec: Codec
) -> Block:
    """The block of a section. What a client sent is believed in nothing."""
    try:
        block = keyed_block([Run(packets=packets, version=version)], key.encode(), codec)
        columns = block.columns()
    except (ValueError, BlockDamaged) as error:
        raise Problem(400, f"block {key.block}: {error}") from None
    for topic in block.topics():
        topics.check(topic, shard)
    if not _FIRST_BYTES.issuperset(packet_types(packets, columns)):
        raise Problem(400, f"block {key.block}: a packet has QoS 3 or is marked as a duplicate")
    limit = server.config.limits.packet_bytes_max
    if len(packets) > limit and max(columns.packet_sizes) > limit:
        raise Problem(413, f"block {key.block}: a message of more than {limit} bytes")
    if not server.config.mqtt.retain and any(flag & FLAG_RETAIN for flag in set(columns.flags)):
        raise Problem(400, "retained messages are off here")
    if version == 5:
        _check_properties(columns, packets, key.block)
    return block


def _check_properties(columns: Columns, packets: bytes, block: int) -> None:
    """Decode each distinct set of properties: a subscriber gets them as they are here."""
    distinct = set()
    for start, payload in zip(columns.packet_positions, columns.payload_positions, strict=True):
        distinct.add(packets[after_packet_id(packets, start) : payload])
    for section in distinct:
        try:
            properties, _ = decode_properties(section, 0, len(section))
        except RemoteError as error:
            raise Problem(400, f"block {block}: {error}") from None
        if properties.topic_alias is not None or properties.subscription_ids:
            raise Problem(400, f"block {block}: a topic alias or subscription identifier has no meaning here")


# ------------------------------------------------------------------------------------------- decisions


@router.post(
    "/writers/{writer}/commit",
    summary="Decide a batch",
    response_model=answers.Committed,
    responses=example({"writer": "etl", "batch": 41, "repeated": False, "visible": True}),
)
async def commit(request: Request, caller: CallerIs, writer: str, form: CommitForm) -> dict[str, Any]:
    """Decide a batch in one replicated step: these attempts won. From then on it becomes visible, whoever
    dies. A batch that is not above the last one was decided before; then nothing changes."""
    winners = _winners(writer, form.attempts)
    try:
        is_repeat, is_visible = await server_of(request).engine.writing.commit(
            writer, form.batch, winners, _owner(request, caller, writer), caller.principal, _run(form)
        )
    except Superseded as error:
        raise Problem(412, str(error)) from None
    except Conflict as error:
        raise Problem(409, str(error)) from None
    except NotYours as error:
        raise Problem(403, str(error)) from None
    return {"writer": writer, "batch": form.batch, "repeated": is_repeat, "visible": is_visible}


@router.post(
    "/writers/{writer}/abort",
    summary="Give up what is staged",
    response_model=answers.WriterShown,
    responses=example(answers.WRITER),
)
async def abort(request: Request, caller: CallerIs, writer: str, form: AbortForm) -> dict[str, Any]:
    """Give up what was staged and not decided. It is dropped once that is recorded."""
    _winners(writer, {attempt: {} for attempt in form.attempts or ()})
    if form.attempts is not None and form.batch is None:
        raise Problem(400, "attempts need their batch")
    try:
        await server_of(request).engine.writing.abort(
            writer, form.batch, form.attempts, _owner(request, caller, writer)
        )
    except Conflict as error:
        raise Problem(409, str(error)) from None
    except NotYours as error:
        raise Problem(403, str(error)) from None
    server = server_of(request)
    return _shown(server, writer, _staged(server))


@router.get(
    "/writers",
    dependencies=[Depends(observe)],
    summary="Writers with something under way",
    response_model=answers.WriterList,
    responses=example({"writers": [answers.WRITER]}),
)
async def list_writers(request: Request) -> dict[str, Any]:
    """Writers that have something staged or not visible yet, as this node knows them."""
    server = server_of(request)
    staged = _staged(server)
    names = staged.keys() | {
        name for name, writer in server.engine.definitions.state.writers.writers.items() if writer.decisions
    }
    return {"writers": [_shown(server, name, staged) for name in sorted(names)]}


@router.get(
    "/writers/{writer}",
    summary="One writer",
    response_model=answers.WriterShown,
    responses=example(answers.WRITER),
)
async def show_writer(request: Request, writer: str, caller: CallerIs) -> dict[str, Any]:
    """The last batch that was decided, what is not visible yet, and what is staged."""
    server = server_of(request)
    if server.engine.writing.owner(writer) != (caller.username or ""):
        caller.must_be(Role.OBSERVER)
    shown = _shown(server, writer, _staged(server))
    if shown["last_batch"] is None and not shown["staged"]:
        raise Problem(404, f"there is no writer {writer!r}")
    return shown


def _winners(writer: str, attempts: dict[str, dict[str, int]]) -> Winners:
    try:
        check_name("writer", writer)
        return winners_from(attempts)
    except LocalError as error:
        raise Problem(400, str(error)) from None


def _run(form: CommitForm) -> Fence | None:
    try:
        return None if form.run is None else Fence.parse(form.run)
    except LocalError as error:
        raise Problem(400, str(error)) from None


def _owner(request: Request, caller: Caller, writer: str) -> str:
    """In whose name the caller acts: its own, or, for an administrator, that of the writer's user."""
    owner = server_of(request).engine.writing.owner(writer) if caller.is_admin else None
    return (caller.username or "") if owner is None else owner


def _staged(server: ServedNode) -> dict[str, list[dict[str, Any]]]:
    """Every attempt that is staged here, by writer."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for _, shard in sorted(server.engine.shards.items()):
        for row in shard.staging.shown():
            rows.setdefault(row["writer"], []).append({"stream": shard.stream.spec.name, **row})
    return rows


def _shown(server: ServedNode, name: str, staged: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    writer = server.engine.writing.find(name)
    decisions = [] if writer is None else writer.decisions
    return {
        "writer": name,
        "last_batch": None if writer is None or writer.last < 0 else writer.last,
        "not_visible": [{"batch": one.batch, "shards": sorted(one.left)} for one in decisions],
        "staged": staged.get(name, []),
    }
