"""The queue at the text door: a line of JSON is asked for as whoever the connection belongs to."""

import asyncio
from importlib import import_module

from millrace.node.access.caller import Caller
from millrace.node.access.identity import NOBODY
from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.node.queue.queue import QueueNode

_LINES = "millrace.node.queue.lines"


async def answer(node: QueueNode, connection: MqttConnection, line: str) -> str:
    """The line that answers this one."""
    # What reads forms takes long to load, and most nodes get no such line.
    lines = await asyncio.to_thread(import_module, _LINES)
    session = connection.session
    client_id = "" if session is None else session.client_id
    caller = Caller.of(node, connection.identity or NOBODY, connection.peer, client_id)
    answered: str = await lines.answer_line(node, caller, line)
    return answered
