"""Sends typed messages to other nodes, and gives those that arrive to whoever is registered for their type.

A message for which nobody is registered is dropped: its part of the node may not be open yet, and whoever
sends expects losses. A request is always answered, if only with `Refused`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from millrace.errors import LocalError, RemoteError
from millrace.node.peers.links import Links
from millrace.node.peers.messages import NodeMessage, Refused
from millrace.node.peers.registry import ANSWERS, REQUEST_TAGS, REQUESTS, TYPES, UnknownTag, decode, encode

_ANSWER_S_MAX = 5.0
_REQUEST_NUMBER_MAX = 0xFFFF_FFFF

Answer = TypeVar("Answer")
Handler = Callable[[str, int, Any], None]
"""Takes the sender, the number of the frame, and the message. A RemoteError closes the link."""
Answerer = Callable[[str, Any], "NodeMessage | Coroutine[Any, Any, NodeMessage]"]
"""Takes the sender and the request. A LocalError or RemoteError is answered as the reason of a refusal."""


class Messenger:
    """`links` is set once the node listens; a node alone has none, and what it sends is dropped."""

    def __init__(self) -> None:
        self.links: Links | None = None
        self._handlers: dict[type, Handler] = {}
        self._answerers: dict[type, Answerer] = {}
        self._encoded: tuple[NodeMessage | None, int, bytes | bytearray] = None, 0, b""
        self._next_request = 0
        self._requests: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------- registration

    def on(self, kinds: Iterable[type], handler: Handler) -> None:
        """Give messages of these types, no requests, to `handler`."""
        for kind in kinds:
            assert kind in TYPES.values() and kind not in REQUESTS.values(), kind
            self._handlers[kind] = handler

    def answer(self, kind: type, answerer: Answerer) -> None:
        """Let `answerer` answer requests of this type."""
        assert kind in REQUESTS.values(), kind
        self._answerers[kind] = answerer

    # ------------------------------------------------------------------------------------ sending

    def send(self, replica: str, message: NodeMessage, number: int = 0) -> bool:
        """False where it was dropped: there is no link, or it is full."""
        if self.links is None:
            return False
        if message is not self._encoded[0] or number != self._encoded[1]:
            # Nodes that stand at the same place are sent the same message.
            self._encoded = message, number, encode(message, number)
        return self.links.send(replica, self._encoded[2])

    async def request(self, replica: str, request: NodeMessage, kind: type[Answer]) -> Answer:
        """Ask another node; its answer of that kind, or LocalError with its reason."""
        if self.links is None:
            raise LocalError("this node has no links: give it --peer HOST:PORT")
        number = self._next_request = self._next_request % _REQUEST_NUMBER_MAX + 1
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[number] = waiting
        try:
            if not self.send(replica, request, number):
                raise LocalError("there is no link to that node right now")
            answer = await asyncio.wait_for(waiting, _ANSWER_S_MAX)
        except TimeoutError:
            raise LocalError(f"no answer from that node within {_ANSWER_S_MAX:.0f} s") from None
        finally:
            self._requests.pop(number, None)
        if isinstance(answer, Refused):
            raise LocalError(answer.reason)
        if not isinstance(answer, kind):
            raise LocalError(f"that node answered with {type(answer).__name__}")
        return answer

    # ---------------------------------------------------------------------------------- receiving

    def receive(self, replica: str, tag: int, number: int, body: bytes) -> None:
        """A frame of another node. Raises RemoteError: its link must be closed."""
        try:
            message = decode(tag, body)
        except UnknownTag:
            if tag not in REQUEST_TAGS:
                raise
            self.send(replica, Refused("this node does not know such requests"), number)
            return
        if tag in REQUESTS:
            self._begin_answer(replica, number, message)
        elif tag in ANSWERS:
            waiting = self._requests.pop(number, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
        else:
            handler = self._handlers.get(type(message))
            if handler is not None:
                handler(replica, number, message)

    def _begin_answer(self, replica: str, number: int, request: NodeMessage) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(replica, number, request))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, replica: str, number: int, request: NodeMessage) -> None:
        answerer = self._answerers.get(type(request))
        try:
            if answerer is None:
                raise LocalError(f"this node does not answer {type(request).__name__} now")
            made = answerer(replica, request)
            answer = await made if isinstance(made, Coroutine) else made
        except (LocalError, RemoteError) as error:
            answer = Refused(str(error))
        self.send(replica, answer, number)
