"""From a byte stream to whole packets: what is left of a chunk waits here for the rest.

The tail is kept in pieces and joined once when the packet is whole, so a large packet that arrives in many
reads costs its size and not its square. A packet that will be too large is refused at its header, before
any of it is kept.
"""

from millrace.errors import MalformedPacket, ProtocolError
from millrace.reasons import Reason

# A fixed header is at most five bytes: type and four of length.
_HEADER_BYTES_MAX = 5


class Inbox:
    """The bytes of one connection that do not make a whole packet yet."""

    __slots__ = ("_held_bytes", "_wanted_bytes", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] | None = None
        self._held_bytes = 0
        self._wanted_bytes = 0

    @property
    def is_empty(self) -> bool:
        return self.parts is None

    def join(self, data: bytes) -> bytes:
        """What was kept followed by `data`, or b"" while the packet is still incomplete."""
        parts = self.parts
        if parts is None:
            return data
        parts.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._wanted_bytes:
            return b""
        self.parts = None
        return b"".join(parts)

    def keep(self, data: bytes, pos: int, packet_bytes_max: int) -> None:
        """Keep `data[pos:]`, the start of an incomplete packet."""
        tail = data[pos:]
        self.parts = [tail]
        self._held_bytes = len(tail)
        self._wanted_bytes = wanted_bytes(tail, packet_bytes_max)


def wanted_bytes(head: bytes, packet_bytes_max: int) -> int:
    """How many bytes of the packet that begins here are needed before it is worth looking again."""
    length = 0
    for at in range(1, _HEADER_BYTES_MAX):
        if at >= len(head):
            return at + 1
        byte = head[at]
        length |= (byte & 127) << 7 * (at - 1)
        if byte < 128:
            total = at + 1 + length
            if total > packet_bytes_max:
                raise ProtocolError(
                    f"a packet of {total} bytes, the most is {packet_bytes_max}", Reason.PACKET_TOO_LARGE
                )
            return total
    raise MalformedPacket("the remaining length has more than four bytes")
