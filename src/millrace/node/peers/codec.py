"""What nodes say to each other, as bytes of a frame: one byte names the class, msgpack holds its fields.

Each protocol has one codec, made from its closed list of classes. Decoding checks types and nothing more: a
message that is well formed and wrong is the machine's to refuse.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from millrace.errors import MalformedPacket
from millrace.replication.contract import PeerBody
from millrace.replication.pair import messages as pair
from millrace.replication.raft import messages as raft
from millrace.replication.routed import messages as routed

_ENCODER = msgspec.msgpack.Encoder()


class PeerCodec:
    """Writes and reads the messages of one protocol. The order of the classes is part of the protocol between
    nodes: new ones stand at the end."""

    def __init__(self, *classes: type[PeerBody]) -> None:
        self._numbers = {kind: bytes((number,)) for number, kind in enumerate(classes)}
        self._decoders: Sequence[msgspec.msgpack.Decoder[Any]] = [
            msgspec.msgpack.Decoder(kind) for kind in classes
        ]

    def encode(self, body: PeerBody) -> bytes:
        return self._numbers[type(body)] + _ENCODER.encode(body)

    def decode(self, data: bytes) -> PeerBody:
        if not data or data[0] >= len(self._decoders):
            raise MalformedPacket("a message of an unknown kind")
        try:
            body: PeerBody = self._decoders[data[0]].decode(memoryview(data)[1:])
        except msgspec.DecodeError as error:
            raise MalformedPacket(f"a message that cannot be read: {error}") from None
        return body


LOG_CODEC = PeerCodec(
    raft.VoteRequest,
    raft.VoteReply,
    raft.Append,
    raft.AppendReply,
    raft.AppendReject,
    raft.Heartbeat,
    raft.HeartbeatReply,
    raft.SnapshotChunk,
    raft.SnapshotReply,
    raft.TimeoutNow,
    pair.Check,
    pair.CheckReply,
)
"""Of groups that keep one log: Raft, and primary-backup pairs, which share its appends and snapshots."""

ROUTED_CODEC = PeerCodec(
    routed.Hello,
    routed.Filters,
    routed.Change,
    routed.Digest,
    routed.Summary,
    routed.Stamps,
    routed.Want,
    routed.Value,
    routed.Known,
)
"""About interest in topics, and retained values that no log keeps."""
