"""How many values there are in JSON, counted before anything is parsed (see `http/json_bodies.py`)."""

import asyncio
import re
from collections.abc import Iterator

_MARKS = (b",", b"[", b"{")
# A whole text, or as the group what begins one that goes on behind the piece. Nothing is tried twice: the
# quantifiers are possessive.
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|("[^"\\]*+(?:\\.[^"\\]*+)*+\\?)\Z', re.DOTALL)
_PIECE_BYTES = 8_192


async def has_more_values(body: bytes, values_max: int) -> bool:
    """Whether there are more values than this in the body, in texts not counted."""
    if _values(body) <= values_max:
        return False
    found = 0
    for rest in _without_texts(body):
        found += _values(rest)
        if found > values_max:
            return True
        await asyncio.sleep(0)
    return False


def _without_texts(body: bytes) -> Iterator[bytes]:
    """The body in pieces, without what stands between quotes."""
    head = b""
    for start in range(0, len(body), _PIECE_BYTES):
        rest = _TEXTS.sub(rb"\1", head + body[start : start + _PIECE_BYTES])
        at = rest.find(b'"')
        if at == -1:
            head = b""
        else:
            # The piece ends inside a text, perhaps between a backslash and what it belongs to.
            slashes = len(rest) - len(rest.rstrip(b"\\"))
            head = b'"\\' if slashes % 2 else b'"'
            rest = rest[:at]
        yield rest


def _values(body: bytes) -> int:
    return sum(map(body.count, _MARKS))
