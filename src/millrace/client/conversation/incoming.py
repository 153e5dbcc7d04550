"""Messages from the server: which are new, and when each one may be answered.

A QoS 1 or 2 message is answered (PUBACK, PUBREC) when the application has taken it, in the order in which
messages came ([MQTT-4.6.0-2], [MQTT-4.6.0-3]). Until then its `Receipt` is remembered by packet id, also
across a reconnect that finds the session again: the server then sends the message a second time, and what
the application already has must not reach it twice.

An answer is sent only on the connection on which the message came, because after a reconnect the server may
have given the message to another member of a group and its id to another message. What the application
takes in between is answered when the server repeats it.

A message that nobody claims is set aside: unanswered, and without holding up the answers to later ones.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from millrace import types
from millrace.errors import ProtocolError
from millrace.reasons import Reason
from millrace.wire.mqtt.packets import Puback, Publish, Pubrec


class Receipt:
    """One QoS 1 or 2 message that has not been answered."""

    __slots__ = ("answered", "aside", "claims", "content", "here", "packet_id", "qos", "taken")

    def __init__(self, packet_id: int, message: types.Message) -> None:
        self.packet_id = packet_id
        self.qos = message.qos
        # What it is told by when it comes again, beside its id.
        self.content = message.topic, message.payload
        # How many subscriptions still have to take it.
        self.claims = 0
        self.taken = False
        # Waits for no one, and no one waits for it.
        self.aside = True
        # Received, or received again, on the connection of now.
        self.here = True
        self.answered = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(types.Message):
    """A message as a subscription yields it."""

    receipt: Receipt | None = field(default=None, repr=False, compare=False)


Answer = Puback | Pubrec


class Incoming:
    def __init__(self) -> None:
        # What the server was told on this connection, None where the version cannot tell it.
        self.receive_maximum: int | None = None
        self._unanswered: dict[int, Receipt] = {}
        # Receipts of this connection that are claimed, in order of arrival, by QoS.
        self._order: tuple[deque[Receipt], deque[Receipt]] = (deque(), deque())
        # QoS 2: PUBREC sent, PUBREL awaited.
        self._unreleased: set[int] = set()
        self._open_count = 0
        self._open_count_max = 0

    def connection_lost(self) -> None:
        for receipt in self._unanswered.values():
            receipt.here = False
        for order in self._order:
            order.clear()

    def resume(self, session_present: bool) -> None:
        """[MQTT-3.2.2-5]: without a session at the server, what we know of it is worth nothing."""
        if not session_present:
            self._unanswered.clear()
            self._unreleased.clear()
        # The server counts only what it publishes on this connection against the receive maximum; releases
        # left over from an earlier one come on top.
        self._open_count = len(self._unreleased)
        self._open_count_max = (self.receive_maximum or 0) + self._open_count

    def on_publish(self, packet: Publish) -> tuple[Receipt | None, Answer | None]:
        """A QoS 1 or 2 message: its receipt if it is new, and an answer if one is due at once."""
        packet_id, qos = packet.packet_id, packet.message.qos
        assert packet_id is not None
        if qos == 2 and packet_id in self._unreleased:
            return None, Pubrec(packet_id=packet_id)
        known = self._unanswered.get(packet_id)
        if known is not None and known.qos == qos and (qos == 2 or _is_repeat(packet, known)):
            if not known.here:
                known.here = True
                self._count_open()
                if known.claims or known.taken:
                    self._order[qos - 1].append(known)
            return None, None
        receipt = self._unanswered[packet_id] = Receipt(packet_id, packet.message)
        self._count_open()
        return receipt, None

    def _count_open(self) -> None:
        self._open_count += 1
        if self.receive_maximum is not None and self._open_count > self._open_count_max:
            raise ProtocolError(
                f"more than {self.receive_maximum} messages without an answer",
                Reason.RECEIVE_MAXIMUM_EXCEEDED,
            )

    def claim(self, receipt: Receipt, claims: int) -> None:
        """So many subscriptions will take the message."""
        assert claims > 0 and receipt.claims == 0
        receipt.claims = claims
        receipt.aside = False
        if receipt.here:
            self._order[receipt.qos - 1].append(receipt)

    def take(self, receipt: Receipt) -> None:
        """One subscription has taken the message."""
        assert receipt.claims > 0
        receipt.claims -= 1
        receipt.taken = receipt.claims == 0

    def put_aside(self, receipt: Receipt) -> None:
        """The subscription that should have taken it is gone; later answers need not wait for this one."""
        receipt.aside = True

    def give_back(self, receipt: Receipt) -> bool:
        """A subscription will not take the message; true if another one may claim it now."""
        assert receipt.claims > 0
        receipt.claims -= 1
        if receipt.claims:
            return False
        receipt.aside = True
        return self._unanswered.get(receipt.packet_id) is receipt

    def forget(self, receipt: Receipt) -> None:
        """Leave it unanswered for good; the server keeps it for the next connection."""
        self._unanswered.pop(receipt.packet_id, None)

    def answers(self) -> Iterator[Answer]:
        """The answers that are due now."""
        for order in self._order:
            while order and (order[0].taken or order[0].aside):
                receipt = order.popleft()
                if receipt.taken and not receipt.answered:
                    yield self._answer(receipt)

    def answer_late(self, receipt: Receipt) -> Answer | None:
        """The answer to a receipt that was set aside and is taken after all."""
        if receipt.taken and receipt.here and not receipt.answered:
            return self._answer(receipt)
        return None

    def _answer(self, receipt: Receipt) -> Answer:
        receipt.answered = True
        packet_id = receipt.packet_id
        if self._unanswered.get(packet_id) is receipt:
            del self._unanswered[packet_id]
        if receipt.qos == 1:
            self._open_count -= 1
            return Puback(packet_id=packet_id)
        self._unreleased.add(packet_id)
        return Pubrec(packet_id=packet_id)

    def on_pubrel(self, packet_id: int) -> bool:
        """Whether the id was waiting for its release. The server may have given up a message that was not
        answered yet: what comes under its id from now on is another one."""
        if packet_id not in self._unreleased:
            known = self._unanswered.get(packet_id)
            if known is None or known.qos != 2:
                return False
            del self._unanswered[packet_id]
            known.answered = True
            self._open_count -= known.here
            return True
        self._unreleased.discard(packet_id)
        self._open_count -= 1
        return True


def _is_repeat(packet: Publish, known: Receipt) -> bool:
    """[MQTT-4.3.3-10]: at QoS 2 the id alone tells. At QoS 1 an id without DUP is a message of its own. So is
    one with DUP and another content: a server that was killed may not know what it sent last.
    """
    message = packet.message
    return packet.dup and not known.here and known.content == (message.topic, message.payload)
