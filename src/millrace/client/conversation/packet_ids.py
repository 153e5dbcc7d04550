"""Packet identifiers from this side, and what an earlier process of this client may have left of them."""

from millrace.limits import PACKET_ID_TOP
from millrace.wire.mqtt.packets import Pubrel

_BLOCK = 256


class PacketIds:
    """Ids in use, for publishes and requests alike."""

    __slots__ = ("_held", "_last")

    def __init__(self) -> None:
        self._held: set[int] = set()
        self._last = 0

    def peek(self) -> int:
        """The id that `take` will give."""
        assert len(self._held) < PACKET_ID_TOP
        packet_id = self._last % PACKET_ID_TOP + 1
        while packet_id in self._held:
            packet_id = packet_id % PACKET_ID_TOP + 1
        return packet_id

    def take(self) -> int:
        packet_id = self._last = self.peek()
        self._held.add(packet_id)
        return packet_id

    def give_back(self, packet_id: int) -> None:
        self._held.discard(packet_id)


class Inheritance:
    """A session that an earlier process used: the server may wait for the release of any QoS 2 id of it.

    A new message under such an id would be taken for a copy of the old one and acknowledged without going
    anywhere. So ids are released before their first use at QoS 2, a block at a time, and used only when
    PUBCOMP says that the server has done so; it does not matter whether it knew them (MQTT 5, 3.7.2.1).
    """

    __slots__ = ("_unknown", "asked")

    def __init__(self) -> None:
        self._unknown = set(range(PACKET_ID_TOP // _BLOCK + 1))
        # Releases without an answer; to be sent again on a new connection.
        self.asked: set[int] = set()

    def ask(self, packet_id: int) -> list[Pubrel]:
        """The releases to send before this id is used; none if it is clear or the answers are due."""
        block = packet_id // _BLOCK
        if self.asked or block not in self._unknown:
            return []
        self._unknown.discard(block)
        first = max(block * _BLOCK, 1)
        self.asked.update(range(first, (block + 1) * _BLOCK))
        return [Pubrel(packet_id=one) for one in sorted(self.asked)]

    def on_pubcomp(self, packet_id: int) -> bool:
        """Whether this answers a release asked for here."""
        if packet_id not in self.asked:
            return False
        self.asked.discard(packet_id)
        return True
