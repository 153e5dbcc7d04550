"""The queue as lines of JSON: one request of the queue's form is one line, and so is its answer.

    {"type": "message", "method": "GET", "topic": "orders"}        {"success": true, "message": "one"}

What is refused, or wrong with the request, is an answer too: `success` is false, and `reason` says why.
"""

import json
import logging
from typing import Any

from pydantic import ValidationError

from millrace.errors import LocalError, RemoteError
from millrace.limits import HTTP_JSON_BYTES_MAX, HTTP_JSON_VALUES_MAX
from millrace.node.access.caller import Caller, Denied
from millrace.node.doors.json_values import has_more_values
from millrace.node.queue.forms import QueueRequest
from millrace.node.queue.queue import Queue, QueueNode, no
from millrace.types import Message

log = logging.getLogger("millrace.text")

_MISTAKES_MAX = 3
_TEXT_MAX = 400


def _message(topic: str, text: str) -> Message:
    return Message(topic=topic, payload=text.encode(), qos=1)


async def answer_line(node: QueueNode, caller: Caller, line: str) -> str:
    """The line that answers this one, without its end."""
    try:
        form = await _form(line)
        answer = await Queue(node, caller).answer(form, _message)
    except Denied as error:
        if error.status == 403:
            told = f"refused {form.method} {form.type} at the text port: {error}"
            node.events.record("access", "warning", told)
        answer = no(str(error))
    except (LocalError, RemoteError) as error:
        answer = no(str(error))
    except Exception:
        # Our fault: the client gets an answer like any other, and the log tells us.
        log.exception("a request of the queue failed")
        answer = no("the node failed at this; its log says more")
    return json.dumps(answer)


async def _form(line: str) -> QueueRequest:
    data = line.encode()
    if len(data) > HTTP_JSON_BYTES_MAX:
        raise LocalError(f"JSON of more than {HTTP_JSON_BYTES_MAX} bytes")
    if await has_more_values(data, HTTP_JSON_VALUES_MAX):
        raise LocalError(f"JSON of more than {HTTP_JSON_VALUES_MAX} values")
    try:
        fields: Any = json.loads(data)
        return QueueRequest.model_validate(fields)
    except ValidationError as error:
        rows = error.errors(include_url=False, include_context=False, include_input=False)[:_MISTAKES_MAX]
        said = "; ".join(f"{'.'.join(map(str, row['loc']))}: {row['msg']}".removeprefix(": ") for row in rows)
        raise LocalError(said[:_TEXT_MAX]) from None
    except ValueError as error:
        raise LocalError(f"the line is not JSON: {error}") from None
    except RecursionError:
        raise LocalError("the line is nested too deeply") from None
