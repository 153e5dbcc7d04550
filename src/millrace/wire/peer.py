"""The link between two nodes: a proof of the shared secret first, then frames.

Nothing is parsed before the proof but messages of fixed size. Each side sends a hello with the versions it
speaks and a nonce; each then proves that it knows the secret by an HMAC over both hellos, with its role in
the link mixed in, so that a proof cannot be sent back to its maker. From then on a link carries frames:
length, tag, number, body. What the tags, numbers and bodies mean is not known here.

Levels (`version.py`): each side names the highest that it understands and the lowest that it works with,
which is its cluster's as soon as it knows that. Neighbouring releases can run together while a cluster is
upgraded; others, and a node that is older than what its cluster uses, are refused by both sides. Nodes of
release 0.1 name levels 1 and 2: what they put into a log cannot be read here, nor the other way round.
"""

import hmac
import struct
from collections.abc import Iterator
from enum import Enum

from millrace.errors import MalformedPacket, ProtocolError
from millrace.limits import FRAME_BYTES_MAX
from millrace.version import LEVEL, LEVEL_MIN

_MAGIC = b"MRPL"
# magic, lowest and highest level, nonce
_HELLO = struct.Struct("<4sHH32s")
HELLO_BYTES = _HELLO.size
NONCE_BYTES = 32
PROOF_BYTES = 32

# body bytes, tag, number
_FRAME = struct.Struct("<IBI")
FRAME_HEAD_BYTES = _FRAME.size


class Side(Enum):
    DIALED = b"dialed"
    ANSWERED = b"answered"


class Handshake:
    """One side of the beginning of a link. Feed it bytes; it says what to send and when it is done."""

    def __init__(self, side: Side, secret: bytes, nonce: bytes, lowest: int = LEVEL_MIN) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"{NONCE_BYTES} random bytes are needed")
        self._side = side
        self._secret = secret
        self._lowest = lowest
        self.hello = _HELLO.pack(_MAGIC, lowest, LEVEL, nonce)
        """To be sent first, at once."""
        self._theirs = b""
        self._held = b""
        self.is_proved = False

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Bytes to send, and bytes that came after the proof. Raises RemoteError: close, say nothing."""
        self._held += data
        answer = b""
        if not self._theirs:
            if len(self._held) < HELLO_BYTES:
                self._check_start()
                return b"", b""
            self._theirs, self._held = self._held[:HELLO_BYTES], self._held[HELLO_BYTES:]
            _check_levels(self._theirs, self._lowest)
            answer = self._proof(self._side)
        if not self.is_proved:
            if len(self._held) < PROOF_BYTES:
                return answer, b""
            other = Side.ANSWERED if self._side is Side.DIALED else Side.DIALED
            proof, self._held = self._held[:PROOF_BYTES], self._held[PROOF_BYTES:]
            if not hmac.compare_digest(proof, self._proof(other)):
                raise ProtocolError("the other node does not know the secret of this cluster")
            self.is_proved = True
        rest, self._held = self._held, b""
        return answer, rest

    def _check_start(self) -> None:
        if not _MAGIC.startswith(self._held[: len(_MAGIC)]):
            raise MalformedPacket("whoever connected is not a node")

    def _proof(self, side: Side) -> bytes:
        dialed, answered = self.hello, self._theirs
        if self._side is Side.ANSWERED:
            dialed, answered = answered, dialed
        return hmac.digest(self._secret, side.value + dialed + answered, "sha256")


def _check_levels(hello: bytes, mine: int) -> None:
    magic, lowest, highest, _ = _HELLO.unpack(hello)
    if magic != _MAGIC:
        raise MalformedPacket("whoever connected is not a node")
    if highest < mine:
        raise ProtocolError(
            f"the other node is too old: it understands level {highest}, and here {mine} is the lowest. "
            "Upgrade it one release at a time"
        )
    if lowest > LEVEL:
        raise ProtocolError(
            f"this node is too old for the other one: it understands level {LEVEL}, and there {lowest} is "
            "the lowest. Upgrade this one, one release at a time"
        )


def frame_head(body_bytes: int, tag: int, number: int) -> bytes:
    """What stands before a body of that length."""
    return _FRAME.pack(body_bytes, tag, number)


def write_frame_head(frame: bytearray, tag: int, number: int) -> None:
    """Write the head of a frame over its first `FRAME_HEAD_BYTES`, behind which the body stands."""
    _FRAME.pack_into(frame, 0, len(frame) - FRAME_HEAD_BYTES, tag, number)


def tag_of(frame: bytes | bytearray) -> int:
    """What kind of message a whole frame holds."""
    return int(_FRAME.unpack_from(frame)[1])


class Frames:
    """Bytes of a link to frames, in order. Large frames are joined once, when they are whole."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._held_bytes = 0
        self._wanted_bytes = FRAME_HEAD_BYTES

    def receive(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """(tag, number, body) of every frame that is whole now."""
        self._parts.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._wanted_bytes:
            return
        whole = b"".join(self._parts)
        pos, size = 0, len(whole)
        self._wanted_bytes = FRAME_HEAD_BYTES
        while size - pos >= FRAME_HEAD_BYTES:
            length, tag, number = _FRAME.unpack_from(whole, pos)
            if length > FRAME_BYTES_MAX:
                raise MalformedPacket(f"a frame of {length} bytes")
            end = pos + FRAME_HEAD_BYTES + length
            if end > size:
                self._wanted_bytes = end - pos
                break
            yield tag, number, whole[pos + FRAME_HEAD_BYTES : end]
            pos = end
        self._parts = [whole[pos:]] if pos < size else []
        self._held_bytes = size - pos
