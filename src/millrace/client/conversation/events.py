"""What the pure core tells its caller: plain values, a closed union."""

from dataclasses import dataclass

from millrace.client.conversation.incoming import Message
from millrace.reasons import Reason
from millrace.wire.mqtt.packets import Connack


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    connack: Connack


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRefused:
    reason: Reason
    detail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnected:
    """The connection is of no more use: write what `data_to_send` has, then close it."""

    reason: Reason
    detail: str | None
    # False: the server broke the protocol or fell silent, and it is we who leave.
    by_server: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The publish with this ticket is finished: QoS 0 is on its way out, others are acknowledged."""

    ticket: int
    reason: Reason
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """Answer to `subscribe`; without a ticket, to a subscription made again after a lost session."""

    ticket: int | None
    number: int
    reasons: tuple[Reason, ...]
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribed:
    ticket: int
    reasons: tuple[Reason, ...]
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """A message for the subscriptions with these numbers."""

    message: Message
    numbers: tuple[int, ...]


Event = Connected | ConnectRefused | Disconnected | Published | Subscribed | Unsubscribed | Delivered
