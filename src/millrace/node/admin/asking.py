"""One question to every other node: what an answer for the whole cluster is made of.

The only place of this room that speaks over the peer links. A question has a name and fields, an answer is
plain data. A node that does not answer in time, or says that it cannot, is *missing*: the others' answers
count all the same.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millrace.errors import LocalError
from millrace.node.peers.messages import AskNode, NodeAnswer
from millrace.node.replicas.replicas import Replicas
from millrace.node.streams.definitions import Definitions

_ANSWER_S_MAX = 0.9

Answerer = Callable[[dict[str, Any]], Any]


@dataclass(slots=True)
class Answers:
    by_node: dict[str, Any] = field(default_factory=dict)
    """By the name of the node, this one among them."""
    missing: list[str] = field(default_factory=list)


class Asking:
    def __init__(self, node: str, replicas: Replicas, definitions: Definitions) -> None:
        self.node = node
        self._replicas = replicas
        self._definitions = definitions
        self._answerers: dict[str, Answerer] = {}
        replicas.messenger.answer(AskNode, self._on_question)

    def answer_with(self, answerers: Mapping[str, Answerer]) -> None:
        """Who answers which question; what it returns is plain data."""
        self._answerers.update(answerers)

    def _on_question(self, replica: str, question: AskNode) -> NodeAnswer:
        fields = _read(question.fields)
        if not isinstance(fields, dict):
            raise LocalError("the fields of a question are a table")
        return NodeAnswer(msgspec.msgpack.encode(self._answer(question.name, fields)))

    def _answer(self, name: str, fields: dict[str, Any]) -> Any:
        answerer = self._answerers.get(name)
        if answerer is None:
            raise LocalError(f"this node does not answer questions about {name!r}")
        return answerer(fields)

    def others(self) -> dict[str, str]:
        """The other members: replica -> name."""
        members = self._definitions.state.members.members
        mine = self._replicas.replica
        return {replica: member.name for replica, member in members.items() if replica != mine}

    async def one(self, node: str, name: str, **fields: Any) -> Any:
        """Ask the node of this name, which may be this one; LocalError where it gives no answer."""
        if node == self.node:
            return self._answer(name, fields)
        for replica, other in self.others().items():
            if other == node:
                return await self._request(replica, name, fields)
        raise LocalError(f"there is no node {node!r}")

    async def everybody(self, name: str, *, only: str | None = None, **fields: Any) -> Answers:
        """Ask all nodes at the same time; `only` names the one that is wanted, for questions by node."""
        others = [(r, n) for r, n in sorted(self.others().items()) if only in (None, n)]
        requests = [self._request(replica, name, fields) for replica, _ in others]
        found = await asyncio.gather(*requests, return_exceptions=True)
        answers = Answers()
        if only in (None, self.node):
            answers.by_node[self.node] = self._answer(name, fields)
        for (_, node), answer in zip(others, found, strict=True):
            if isinstance(answer, LocalError | TimeoutError):
                answers.missing.append(node)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers.by_node[node] = answer
        answers.missing.sort()
        return answers

    async def _request(self, replica: str, name: str, fields: dict[str, Any]) -> Any:
        async with asyncio.timeout(_ANSWER_S_MAX):
            question = AskNode(name, msgspec.msgpack.encode(fields))
            answer = await self._replicas.messenger.request(replica, question, NodeAnswer)
        return _read(answer.data)

    async def rtt_ms(self, replica: str) -> float | None:
        """How long an answer takes to come back; None where none does."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await self._request(replica, "ping", {})
        except (LocalError, TimeoutError):
            return None
        return round((loop.time() - began_s) * 1000, 3)


def _read(data: bytes) -> Any:
    """Plain data of another node; LocalError where it is none."""
    try:
        return msgspec.msgpack.decode(data)
    except (msgspec.DecodeError, RecursionError):
        raise LocalError("what the other node said cannot be read") from None
