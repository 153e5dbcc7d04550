"""Messages between leaderless replicas as bytes of a frame, and their entries as blocks.

Data entries are blocks, and a block is looked at here, once: what cannot be parsed, or holds another number
of messages than the entry says, closes the link before it reaches a log.
"""

from millrace.errors import MalformedPacket, StorageError
from millrace.node.leaderless.keys import Retained
from millrace.node.peers.codec import PeerCodec
from millrace.replication.contract import EntryKind, PeerBody
from millrace.replication.leaderless import messages
from millrace.storage.block import Block, Kind, opaque_block, parse_block

_CODEC = PeerCodec(
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
encode = _CODEC.encode


def decode(data: bytes) -> PeerBody:
    body = _CODEC.decode(data)
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
