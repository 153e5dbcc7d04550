"""Messages between leaderless replicas as bytes of a frame: a kind byte names the class, msgpack its fields.

Data entries are blocks, and a block is looked at here, once: what cannot be parsed, or holds another number
of messages than the entry says, closes the link before it reaches a log.
"""

import msgspec

from millrace.errors import MalformedPacket, StorageError
from millrace.node.leaderless.keys import Retained
from millrace.replication.contract import EntryKind, PeerBody
from millrace.replication.leaderless import messages
from millrace.storage.block import Block, Kind, opaque_block, parse_block

# The order is part of the protocol between nodes: add at the end.
_CLASSES: tuple[type[PeerBody], ...] = (
    messages.Pulse,
    messages.Entries,
    messages.Have,
    messages.Pull,
    messages.Begin,
    messages.Reorg,
    messages.Answer,
    messages.Install,
    messages.Superseded,
    Retained,
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
        body = _DECODERS[data[0]].decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise MalformedPacket(f"a message that cannot be read: {error}") from None
    if isinstance(body, messages.Entries):
        for entry in body.entries:
            _check(entry)
    return body


def _check(entry: messages.LogEntry) -> None:
    if entry.kind is EntryKind.CONTROL and not entry.count:
        return
    try:
        header = parse_block(entry.payload).header
    except StorageError as error:
        raise MalformedPacket(f"a block that cannot be read: {error}") from None
    if entry.kind is not EntryKind.DATA or header.kind is not Kind.DATA or header.count != entry.count:
        raise MalformedPacket("an entry that is not what it says")


def block_of(entry: messages.LogEntry) -> Block:
    """What an entry is on disk, before it has its place there."""
    if entry.kind is EntryKind.DATA:
        return parse_block(entry.payload)
    return opaque_block(Kind.CONTROL, entry.payload)


def entry_of(block: Block) -> messages.LogEntry:
    header = block.header
    if header.kind is not Kind.DATA:
        return messages.LogEntry(kind=EntryKind.CONTROL, count=0, payload=block.payload())
    bare = block.timed(header.base_time_us)
    return messages.LogEntry(kind=EntryKind.DATA, count=header.count, payload=bare.to_bytes())
