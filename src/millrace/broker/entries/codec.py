"""How a log keeps what is not a message: typed entries, many to a block.

Every kind of entry is an `Entry`, a frozen struct with a short tag of its own. The kinds of one replicated
state are a closed union, and one `EntryCodec` made from that union turns a list of entries into the payload
of a control block and back. A turn of the event loop proposes all its entries as one block, so the cost of a
thousand is not a thousand times the cost of one.

The payload is one byte with the format's version and then a msgpack array of entries, each an array of its
tag and its fields. Fields are found by their position: a new field goes to the end and has a default, a tag
is never used again for something else."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec

from millrace.errors import LocalError

FORMAT = 1
_PREFIX = bytes((FORMAT,))

E = TypeVar("E")


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all entries. Give each kind a tag: `class Seal(Entry, frozen=True, tag="seal")`."""


class UnreadableEntry(LocalError):
    """The payload of a control block is not one that this version knows."""


class EntryCodec(Generic[E]):
    """Writes and reads the entries of one closed union, given as `Kind | OtherKind | ...`."""

    def __init__(self, union: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[E]] = msgspec.msgpack.Decoder(list[union])

    def encode(self, entries: Sequence[E]) -> bytes:
        """The payload of one control block. The caller bounds how many it hands in."""
        return _PREFIX + self._encoder.encode(entries)

    def decode(self, payload: bytes | memoryview) -> list[E]:
        """The entries of one control block, in the order in which they were written."""
        if len(payload) < 1 or payload[0] != FORMAT:
            found = payload[0] if len(payload) else "nothing"
            raise UnreadableEntry(f"entries begin with format {found}, this version reads {FORMAT}")
        try:
            return self._decoder.decode(payload[1:])
        except msgspec.MsgspecError as error:
            raise UnreadableEntry(f"entries cannot be read: {error}") from None
