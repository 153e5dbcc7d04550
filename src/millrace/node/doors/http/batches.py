"""A batch of messages in one request, read and published in turns: 10,000 of them do not hold the loop.

The body is cut into its messages without looking into them; each is then read by itself [rule 33].
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from millrace.limits import PUBLISH_BATCH_MAX
from millrace.node.doors.http.forms import PublishForm
from millrace.node.doors.http.problems import Problem
from millrace.node.doors.json_values import has_more_values

# Messages of one turn of the loop: about 2 ms.
TURN_MESSAGES = 100
# In one message: a hundred user properties, and room.
_MESSAGE_VALUES_MAX = 1_000

BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "title": "BatchForm",
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["messages"],
                    "properties": {
                        "messages": {
                            "type": "array",
                            "items": {"$ref": "#/components/schemas/PublishForm"},
                            "minItems": 1,
                            "maxItems": PUBLISH_BATCH_MAX,
                        }
                    },
                }
            }
        },
    }
}


class _Batch(msgspec.Struct, forbid_unknown_fields=True):
    messages: Annotated[list[msgspec.Raw], msgspec.Meta(min_length=1, max_length=PUBLISH_BATCH_MAX)]


_decoder = msgspec.json.Decoder(_Batch)


async def _batch(request: Request) -> list[PublishForm]:
    try:
        given = _decoder.decode(await request.body())
    except (msgspec.DecodeError, ValueError) as error:
        raise RequestValidationError([{"loc": ("body",), "msg": str(error)}]) from None
    return [one async for one in _forms(given.messages)]


async def _forms(messages: list[msgspec.Raw]) -> AsyncIterator[PublishForm]:
    for number, raw in enumerate(messages):
        if number % TURN_MESSAGES == 0:
            await asyncio.sleep(0)
        text = bytes(raw)
        if await has_more_values(text, _MESSAGE_VALUES_MAX):
            raise Problem(413, f"message {number} has more than {_MESSAGE_VALUES_MAX} values")
        try:
            yield PublishForm.model_validate_json(text)
        except ValidationError as error:
            rows = error.errors(include_url=False, include_context=False, include_input=False)
            raise RequestValidationError(
                [{**row, "loc": ("body", "messages", number, *row["loc"])} for row in rows]
            ) from None


Batch = Annotated[list[PublishForm], Depends(_batch)]
