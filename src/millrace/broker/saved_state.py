"""Reading the state that a snapshot holds."""

from typing import Protocol, TypeVar

import msgspec

from millrace.errors import LocalError


class Saved(Protocol):
    @property
    def version(self) -> int: ...


S = TypeVar("S", bound=Saved)


def read_saved(decoder: "msgspec.msgpack.Decoder[S]", data: bytes, version: int, what: str) -> S:
    """The saved values. LocalError where they cannot be read or are of another version than `version`;
    `what` says in its text whose they are."""
    try:
        saved = decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise LocalError(f"the {what} cannot be read: {error}") from None
    if saved.version != version:
        raise LocalError(f"the {what} is of version {saved.version}, not {version}")
    return saved
