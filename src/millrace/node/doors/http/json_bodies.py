"""How much JSON one request may bring: parsing it is one call that nothing interrupts [rule 33].

What that costs grows with the values in it and hardly with their size. So values are bounded beside bytes,
and counted before anything is parsed: every value but the first follows a comma or a bracket. A long text may
hold many of these, so texts are left out of the count where it seems to be too much. That is slower than
parsing, so it is done piece by piece, and others have their turn in between.
"""

import asyncio
import re
from collections.abc import Iterator

from starlette.types import Message, Receive

from millrace.limits import HTTP_BATCH_VALUES_MAX, HTTP_JSON_BYTES_MAX, HTTP_JSON_VALUES_MAX
from millrace.node.doors.http.problems import Problem

_MARKS = (b",", b"[", b"{")
# A whole text, or as the group what begins one that goes on behind the piece. Nothing is tried twice: the
# quantifiers are possessive.
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|("[^"\\]*+(?:\\.[^"\\]*+)*+\\?)\Z', re.DOTALL)
_PIECE_BYTES = 8_192
# Bodies that are parsed piece by piece themselves.
_BATCHES = frozenset(("/v1/publish/batch",))


async def checked(receive: Receive, path: str) -> Receive:
    """The same body, read and counted. Raises Problem where it is too much."""
    parts: list[bytes] = []
    taken = 0
    message: Message = {"more_body": True}
    while message.get("more_body", False):
        message = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        taken += len(parts[-1])
        if taken > HTTP_JSON_BYTES_MAX:
            raise Problem(413, f"JSON of more than {HTTP_JSON_BYTES_MAX} bytes")
    body = b"".join(parts)
    values_max = HTTP_BATCH_VALUES_MAX if path in _BATCHES else HTTP_JSON_VALUES_MAX
    if await has_more_values(body, values_max):
        raise Problem(413, f"JSON of more than {values_max} values: send several requests")
    is_given = message["type"] != "http.request"

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


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
