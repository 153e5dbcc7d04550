"""Raft messages as bytes of a frame: one kind byte names the class, msgpack holds its fields.

Entries travel as the blocks they are; decoding checks types and nothing more, because a message that is
well formed and wrong is the machine's to refuse.
"""

import msgspec

from millrace.errors import MalformedPacket
from millrace.replication.contract import PeerBody
from millrace.replication.pair import messages as pair_messages
from millrace.replication.raft import messages

# The order is part of the protocol between nodes: add at the end.
_CLASSES: tuple[type[PeerBody], ...] = (
    messages.VoteRequest,
    messages.VoteReply,
    messages.Append,
    messages.AppendReply,
    messages.AppendReject,
    messages.Heartbeat,
    messages.HeartbeatReply,
    messages.SnapshotChunk,
    messages.SnapshotReply,
    messages.TimeoutNow,
    pair_messages.Check,
    pair_messages.CheckReply,
)
_NUMBERS = {kind: bytes((number,)) for number, kind in enumerate(_CLASSES)}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = [msgspec.msgpack.Decoder(kind) for kind in _CLASSES]


def encode(body: PeerBody) -> bytes:
    return _NUMBERS[type(body)] + _ENCODER.encode(body)


def decode(data: bytes) -> PeerBody:
    if not data or data[0] >= len(_DECODERS):
        raise MalformedPacket("a message of an unknown kind")
    try:
        return _DECODERS[data[0]].decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise MalformedPacket(f"a message that cannot be read: {error}") from None
