"""Two families of errors: our fault raises `LocalError`, their fault closes their link as `RemoteError`.

A `RemoteError` carries the MQTT reason code that the standard names for it. The node answers with it where
the protocol version allows, closes that connection, and nobody else notices.
"""

from millrace.reasons import Reason


class MillraceError(Exception):
    """Anything this package raises on purpose."""


class LocalError(MillraceError):
    """The caller broke a contract or the machine under us failed."""


class ConfigError(LocalError):
    """A setting is wrong; the message says which and what would be right."""


class StorageError(LocalError):
    """The disk failed or holds something it must not; the message names the file."""


class RemoteError(MillraceError):
    """The other side broke the protocol or a limit; only its own connection suffers."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class MalformedPacket(RemoteError):
    """Bytes that cannot be parsed according to the standard (reason 0x81)."""

    def __init__(self, detail: str) -> None:
        super().__init__(Reason.MALFORMED_PACKET, detail)


class ProtocolError(RemoteError):
    """A well-formed packet that is not allowed here (reason 0x82 unless a closer one is named)."""

    def __init__(self, detail: str, reason: Reason = Reason.PROTOCOL_ERROR) -> None:
        super().__init__(reason, detail)
