"""The replicated state of a simulated group: a few counters, small enough to compare after every entry.

A payload is a batch of operations of one client with consecutive sequence numbers. Each fresh operation gets
the next dense offset and raises the version of its key; a repeated one changes nothing, so a client may ask
again wherever and whenever it likes. A client asks for n + 1 only after n was acknowledged, therefore a gap
in its sequence means that something acknowledged is gone.

`chain` folds every entry into one number: equal chains mean equal histories, not only equal results.
"""

import json
import struct
from collections.abc import Sequence
from zlib import crc32

from millrace.lab.sim.violation import Violation
from millrace.replication.contract import Entry, EntryKind

KEYS = 8
_HEAD = struct.Struct("<HIB")


def encode_batch(client: int, sequence: int, keys: Sequence[int]) -> bytes:
    return _HEAD.pack(client, sequence, len(keys)) + bytes(keys)


class State:
    __slots__ = ("applied", "chain", "offset", "sessions", "versions")

    def __init__(self) -> None:
        self.applied = 0
        self.chain = 0
        self.offset = 0
        self.versions = [0] * KEYS
        self.sessions: dict[int, int] = {}

    def apply(self, entry: Entry) -> None:
        if entry.index != self.applied + 1:
            raise Violation("apply order", f"entry {entry.index} after {self.applied}")
        self.applied = entry.index
        self.chain = crc32(entry.payload, (self.chain + 31 * entry.term + entry.kind) & 0xFFFFFFFF)
        if entry.kind > EntryKind.CONTROL:
            return
        client, sequence, count = _HEAD.unpack_from(entry.payload)
        done = self.sessions.get(client, 0)
        if sequence > done + 1:
            raise Violation(
                "acknowledged lost",
                f"client {client} goes on with {sequence} at {entry.index}, state has {done}",
            )
        for key in entry.payload[_HEAD.size + max(done + 1 - sequence, 0) :]:
            self.offset += 1
            self.versions[key] += 1
        self.sessions[client] = max(done, sequence + count - 1)

    def encode(self) -> bytes:
        """Equal states give equal bytes, wherever the snapshot is taken."""
        fields = [self.applied, self.chain, self.offset, self.versions, sorted(self.sessions.items())]
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> "State":
        state = State()
        state.applied, state.chain, state.offset, state.versions, sessions = json.loads(data)
        state.sessions = dict(sessions)
        return state
