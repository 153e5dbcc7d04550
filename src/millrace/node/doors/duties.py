"""What a connection does once the operations of its session are on disk, as values that wait for them."""

import msgspec

from millrace.broker.sessions.connect_request import ConnectRequest
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.subscribing import Subscribed
from millrace.reasons import Reason
from millrace.wire.mqtt.packets import Connack, Connect


class AcceptClient(msgspec.Struct, frozen=True, kw_only=True):
    """Open the session, whose record is there now, and answer CONNECT."""

    packet: Connect
    request: ConnectRequest
    answer: Connack


class AnswerSubscribe(msgspec.Struct, frozen=True, kw_only=True):
    """Send SUBACK and what the new subscriptions get at once. Each result is a subscription, what became of
    it, and whether it is new."""

    session: Session
    packet_id: int
    results: Subscribed

    @property
    def shared(self) -> list[str]:
        """The filters by which the client takes part in a shared group from now on."""
        return [s.filter for s, reason, _ in self.results if s.filter.startswith("$share/") and reason < 0x80]


class AnswerUnsubscribe(msgspec.Struct, frozen=True, kw_only=True):
    """Send UNSUBACK."""

    session: Session
    packet_id: int
    reasons: tuple[Reason, ...]


Duty = AcceptClient | AnswerSubscribe | AnswerUnsubscribe
