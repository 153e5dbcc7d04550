"""How much JSON one request may bring: parsing it is one call that nothing interrupts [rule 33].

What that costs grows with the values in it and hardly with their size. So values are bounded beside bytes,
and counted before anything is parsed: every value but the first follows a comma or a bracket. A long text may
hold many of these, so texts are left out of the count where it seems to be too much. That is slower than
parsing, so it is done piece by piece, and others have their turn in between.
"""

from starlette.types import Message, Receive

from millrace.limits import HTTP_BATCH_VALUES_MAX, HTTP_JSON_BYTES_MAX, HTTP_JSON_VALUES_MAX
from millrace.node.doors.http.problems import Problem
from millrace.node.doors.json_values import has_more_values

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
