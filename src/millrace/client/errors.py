"""What a client raises when the other side or the network says no.

Wrong use by the caller (a bad URL, a topic with a wildcard) is a `LocalError` like everywhere else; these
are for what the caller could not know.
"""

from millrace.errors import MillraceError
from millrace.reasons import Reason

_SAID_BY_MILLRACE = {
    Reason.IMPLEMENTATION_SPECIFIC: "a Millrace broker says so of a message that is not on as many nodes as "
    "its stream asks for in time; `millrace status` shows what is missing"
}


def explain(reason: Reason, detail: str | None = None) -> str:
    """A reason code in words, with what the server added to it."""
    words = f"{reason.name.lower().replace('_', ' ')} (0x{reason:02x})"
    detail = detail or _SAID_BY_MILLRACE.get(reason)
    return f"{words}: {detail}" if detail else words


class ClientError(MillraceError):
    """Anything a client raises that is not the caller's own mistake."""


class CannotConnect(ClientError):
    """No address of the list could be reached."""


class Refused(ClientError):
    """The server answered a connect, a publish or a subscription with a reason code that means no."""

    def __init__(self, subject: str, reason: Reason, detail: str | None = None) -> None:
        super().__init__(f"{subject} was refused: {explain(reason, detail)}")
        self.reason = reason
        self.detail = detail


class Outdated(ClientError):
    """The broker answered as primary of an epoch that is over: its acknowledgement does not count, and the
    message must be published at the other broker."""


class ConnectionLost(ClientError):
    """The connection ended and is not coming back; what was not acknowledged may or may not have arrived."""

    def __init__(self, text: str, reason: Reason | None = None) -> None:
        super().__init__(text)
        self.reason = reason


class Closed(ClientError):
    """The client or the subscription has been closed."""
