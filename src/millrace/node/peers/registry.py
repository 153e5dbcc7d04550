"""Every message between nodes: its tag, how it becomes bytes, and how bytes become it again.

A frame is a length, a tag, a number and a body (`wire/peer.py`). The tag names the type. The number says what
the message is about: a replication group, a stream, or the request that is asked or answered. Bodies are
msgpack; blocks and runs of packets, of which most bytes between nodes are, stay as they are.

Tags are part of the protocol between nodes: none changes its meaning, and a new message gets a new one. A
tag among `REQUEST_TAGS` that this node does not know is a question of a newer node and is answered with
`Refused`; any other unknown tag closes the link, and so does a body that cannot be read or exceeds its bound.
What is well formed and wrong is for the machine or the part that gets it to refuse.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import msgspec

from millrace.errors import LocalError, MalformedPacket, StorageError
from millrace.limits import FRAME_BYTES_MAX
from millrace.node.leaderless.keys import Retained
from millrace.node.pairs import frame_messages as frame
from millrace.node.peers import messages
from millrace.node.peers.messages import ForwardedBlock, NodeMessage, RelayedRun
from millrace.replication.contract import EntryKind
from millrace.replication.leaderless import messages as leaderless
from millrace.replication.pair import messages as pair
from millrace.replication.raft import messages as raft
from millrace.replication.routed import messages as routed
from millrace.storage.block import Kind, parse_block
from millrace.wire.peer import FRAME_HEAD_BYTES, frame_head, write_frame_head

_ENCODER = msgspec.msgpack.Encoder()
# Of a message that holds nothing but a few numbers, with the names of its fields.
_NUMBERS_BYTES_MAX = 1024
_QOS, _V5, _RETAIN, _GROUP = 0x03, 0x04, 0x08, 0x10


class UnknownTag(MalformedPacket):
    """A message of a kind that this node does not know."""


# --------------------------------------------------------------------------------------------- raw bodies


def _block_body(message: ForwardedBlock) -> tuple[bytes, bytes]:
    return bytes((message.kind,)), message.block.to_bytes()


def _read_block(body: bytes) -> ForwardedBlock:
    try:
        return ForwardedBlock(EntryKind(body[0]), parse_block(body[1:]))
    except StorageError as error:
        raise MalformedPacket(f"a forwarded block cannot be read: {error}") from None


def _run_body(message: RelayedRun) -> tuple[bytes, bytes]:
    head = message.qos | (_V5 if message.v5 else 0) | (_RETAIN if message.retain else 0)
    if not message.group:
        return bytes((head,)), message.packets
    group = message.group.encode()
    return bytes((head | _GROUP,)) + len(group).to_bytes(4, "little") + group, message.packets


def _read_run(body: bytes) -> RelayedRun:
    head, start, group = body[0], 1, ""
    if head & _GROUP:
        start = 5 + int.from_bytes(body[1:5], "little")
        if start > len(body):
            raise MalformedPacket("the name of a shared subscription is cut off")
        group = body[5:start].decode()
    return RelayedRun(head & _QOS, bool(head & _V5), bool(head & _RETAIN), group, body[start:])


# ------------------------------------------------------------------------------------------------- checks


def _check_entries(body: leaderless.Entries) -> None:
    """A block is looked at here, once: what cannot be parsed, or holds another number of messages than the
    entry says, must not reach a log."""
    for entry in body.entries:
        if entry.kind is EntryKind.CONTROL and not entry.count:
            continue
        try:
            header = parse_block(entry.payload).header
        except StorageError as error:
            raise MalformedPacket(f"a block that cannot be read: {error}") from None
        if entry.kind is not EntryKind.DATA or header.kind is not Kind.DATA or header.count != entry.count:
            raise MalformedPacket("an entry that is not what it says")


# -------------------------------------------------------------------------------------------------- table

LOG_MESSAGES = {
    0x10: raft.VoteRequest,
    0x11: raft.VoteReply,
    0x12: raft.Append,
    0x13: raft.AppendReply,
    0x14: raft.AppendReject,
    0x15: raft.Heartbeat,
    0x16: raft.HeartbeatReply,
    0x17: raft.SnapshotChunk,
    0x18: raft.SnapshotReply,
    0x19: raft.TimeoutNow,
    0x1A: pair.Check,
    0x1B: pair.CheckReply,
}
"""Of groups that keep one log: Raft, and primary-backup pairs, which share its appends and snapshots."""

LEADERLESS_MESSAGES = {
    0x20: leaderless.Pulse,
    0x21: leaderless.Entries,
    0x22: leaderless.Have,
    0x23: leaderless.Pull,
    0x24: leaderless.Begin,
    0x25: leaderless.Reorg,
    0x26: leaderless.Answer,
    0x27: leaderless.Install,
    0x28: leaderless.Superseded,
    0x29: Retained,
}

ROUTED_MESSAGES = {
    0x30: routed.Hello,
    0x31: routed.Filters,
    0x32: routed.Change,
    0x33: routed.Digest,
    0x34: routed.Summary,
    0x35: routed.Stamps,
    0x36: routed.Want,
    0x37: routed.Value,
    0x38: routed.Known,
}
"""About interest in topics, and retained values that no log keeps."""

FRAME_MESSAGES = {
    0x40: frame.Copies,
    0x41: frame.Discards,
    0x42: frame.OfferedRuns,
    0x43: frame.OfferAnswers,
    0x44: frame.Echo,
}
"""About messages that go by deadlines, past the log of their shard."""

REQUESTS = {
    0x80: messages.Join,
    0x81: messages.FetchBlocks,
    0x82: messages.SwitchPair,
    0x83: messages.HandOver,
    0x84: messages.AskNode,
    0x85: messages.AskMembership,
}
REQUEST_TAGS = range(0x80, 0xC0)

ANSWERS = {
    0xC0: messages.Refused,
    0xC1: messages.Joined,
    0xC2: messages.FetchedBlocks,
    0xC3: messages.PairSwitched,
    0xC4: messages.HandedOver,
    0xC5: messages.NodeAnswer,
    0xC6: messages.Membership,
}

_OTHERS = {
    0x00: messages.Identity,
    0x01: ForwardedBlock,
    0x02: RelayedRun,
    0x50: messages.ClientConnected,
    0x51: messages.HandedOn,
    0x52: messages.Removed,
    0x53: messages.Relayed,
    0x54: messages.PipelineTold,
    0xFF: messages.SignOfLife,
}

RELAYED_TAGS = frozenset(
    (*LOG_MESSAGES, *FRAME_MESSAGES, *REQUESTS, *ANSWERS, 0x01, 0x50, 0x51, 0x52, 0x54, 0xFF)
)
"""What may go through another node where there is no link."""

TYPES: dict[int, type] = {
    **_OTHERS,
    **LOG_MESSAGES,
    **LEADERLESS_MESSAGES,
    **ROUTED_MESSAGES,
    **FRAME_MESSAGES,
    **REQUESTS,
    **ANSWERS,
}
"""By tag, all of them."""

_RAW: dict[type, tuple[Callable[[Any], tuple[bytes, bytes]], Callable[[bytes], Any]]] = {
    ForwardedBlock: (_block_body, _read_block),
    RelayedRun: (_run_body, _read_run),
}

_CHECKS: dict[type, Callable[[Any], None]] = {
    leaderless.Entries: _check_entries,
    frame.Copies: frame.check_copies,
}

_NUMBERS_ONLY = {
    raft.VoteRequest,
    raft.VoteReply,
    raft.AppendReply,
    raft.AppendReject,
    raft.Heartbeat,
    raft.HeartbeatReply,
    raft.SnapshotReply,
    raft.TimeoutNow,
    pair.Check,
    pair.CheckReply,
    frame.Echo,
    messages.FetchBlocks,
    messages.SwitchPair,
    messages.SignOfLife,
}


class _Reader(NamedTuple):
    """How a body becomes a message."""

    read: Callable[[bytes], Any]
    check: Callable[[Any], None] | None
    body_bytes_max: int


@cache
def _reader(tag: int) -> _Reader | None:
    """Made when the first message of its kind arrives: a node alone gets none."""
    kind = TYPES.get(tag)
    if kind is None:
        return None
    read = _RAW[kind][1] if kind in _RAW else msgspec.msgpack.Decoder(kind).decode
    return _Reader(read, _CHECKS.get(kind), _NUMBERS_BYTES_MAX if kind in _NUMBERS_ONLY else FRAME_BYTES_MAX)


_TAGS = {kind: tag for tag, kind in TYPES.items()}
assert len(_TAGS) == len(TYPES), "each type has one tag"


def encode(message: NodeMessage, number: int = 0) -> bytes | bytearray:
    """The whole frame, to be sent and not to be changed: a frame may be sent to several nodes."""
    kind = type(message)
    tag = _TAGS[kind]
    raw = _RAW.get(kind)
    if raw is not None:
        prefix, data = raw[0](message)
        return b"".join((frame_head(len(prefix) + len(data), tag, number), prefix, data))
    # Written behind the head at once: what a block has in bytes is copied here and not again.
    frame = bytearray(FRAME_HEAD_BYTES)
    _ENCODER.encode_into(message, frame, FRAME_HEAD_BYTES)
    write_frame_head(frame, tag, number)
    return frame


def decode(tag: int, body: bytes) -> NodeMessage:
    """The message of a frame. Raises MalformedPacket, which closes the link; `UnknownTag` is one."""
    reader = _reader(tag)
    if reader is None:
        raise UnknownTag(f"a message of an unknown kind {tag}")
    if len(body) > reader.body_bytes_max:
        raise MalformedPacket(f"a message of kind {tag} has {len(body)} bytes")
    try:
        message: NodeMessage = reader.read(body)
    except (msgspec.DecodeError, ValueError, IndexError, LocalError, RecursionError) as error:
        # LocalError: values that a type does not let anybody make, such as two members of one name.
        # RecursionError: arrays within arrays, in a field that the type does not have and nobody looks at.
        raise MalformedPacket(f"a message of kind {tag} that cannot be read: {error}") from None
    if reader.check is not None:
        reader.check(message)
    return message
