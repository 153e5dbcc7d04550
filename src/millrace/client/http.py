"""The HTTP client: the nodes of a cluster as one place to ask.

Nodes are asked in turn, beginning with the one that answered last (`first`), or all at the same time
(`every`). A node that cannot be reached or stays silent is passed over. As long as another node is left to
ask, a node may stay silent for a short time only (`Timeouts.switch_s`), and until it answers again nobody
waits for it while others answer. When all of them are silent, which is how an overloaded cluster looks, the
last one gets the long time. When no node has an answer they are all
asked again for a while (`Timeouts.patience_s`), because an election or a restart takes a moment.

A request that must not be carried out twice goes to another node only if it cannot have reached the first.
"""

import base64
import math
import queue
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import TracebackType
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from millrace.client.connection.tls import tls_context
from millrace.client.http_node import (
    DEFAULT_URL,
    JSON_HEADERS,
    NO_HEADERS,
    SILENT_NODES,
    Answer,
    HttpError,
    HttpNode,
    NoAnswer,
    TimeLimit,
    json_body,
)
from millrace.errors import ConfigError, LocalError

__all__ = ["DEFAULT_URL", "Http", "HttpError", "NobodyAnswers", "Timeouts"]

_PAUSE_S_LEAST, _PAUSE_S_MOST = 0.05, 1.0
_PAGE = 1_000
_REPEATABLE_METHODS = frozenset(("GET", "HEAD", "PUT"))
# Answers of a node that is not able to serve just now.
_UNAVAILABLE = frozenset((502, 503, 504))

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    connect_s: float = 2.5
    switch_s: float = 3.0
    """How long a node may stay silent while another one is left to ask."""
    answer_s: float = 10.0
    """How long a node may stay silent when no other is left; a plain `call` ends within this time."""
    patience_s: float = 0.0
    """For how long the nodes are asked again when none has an answer."""

    def changed(self, connect_s: float | None, request_s: float | None) -> "Timeouts":
        """With the times that somebody chose; a chosen time for a request holds for the last node too."""
        chosen = self if connect_s is None else replace(self, connect_s=connect_s)
        if request_s is None:
            return chosen
        return replace(chosen, switch_s=request_s, answer_s=request_s)

    def limit(self, deadline_s: float = math.inf) -> TimeLimit:
        """The limit of one request, to a node behind which there are others."""
        return TimeLimit(
            connect_s=self.connect_s,
            silence_s=min(self.switch_s, self.answer_s),
            silence_once_s=self.answer_s,
            deadline_s=deadline_s,
        )


class NobodyAnswers(LocalError):
    """No node had an answer for as long as the client was told to ask."""


Ask = Callable[[HttpNode, TimeLimit], Result]
"""Asks one node, within the limit. Raises NoAnswer where another node may have an answer, anything else where
no node can have one."""
Conclude = Callable[[Sequence[NoAnswer], bool], None]
"""Called with the failures of all nodes, and whether this was the last round; raises to end the asking."""
Suffices = Callable[[Sequence[Result]], bool]
"""Whether the answers that have come so far are enough, so that the other nodes are not waited for."""


def _conclude_nothing(failures: Sequence[NoAnswer], is_last: bool) -> None:
    """The nodes are asked again until the patience is over."""


_Asked = tuple[HttpNode, Sequence[Result], Sequence[NoAnswer]]


class _Round(Generic[Result]):
    """Nodes that are asked at the same time, each in a thread of its own. A thread that nobody waits for any
    more ends by itself, within the time limit of its request."""

    def __init__(self, ask_one: Callable[..., Sequence[Result]], ask: Ask[Result], limit: TimeLimit) -> None:
        self._ask_one, self._ask, self._limit = ask_one, ask, limit
        self._done: queue.SimpleQueue[_Asked[Result] | Exception] = queue.SimpleQueue()
        self._under_way: list[HttpNode] = []
        self.answers: dict[HttpNode, Result] = {}
        self.failures: list[NoAnswer] = []

    def begin(self, nodes: Sequence[HttpNode], *, is_last: bool) -> None:
        for node in nodes:
            self._under_way.append(node)
            if len(nodes) == 1 and is_last:
                self._run(node, is_last)
            else:
                threading.Thread(target=self._run, args=(node, is_last), daemon=True).start()

    def wait(self, nodes: Sequence[HttpNode], suffices: Suffices[Result] | None) -> None:
        """Until all of these have answered or failed, or the answers suffice. Raises what `ask` raised other
        than NoAnswer."""
        while any(node in self._under_way for node in nodes):
            done = self._done.get()
            if isinstance(done, Exception):
                raise done
            node, answers, failures = done
            self._under_way.remove(node)
            self.answers.update((node, answer) for answer in answers)
            self.failures += failures
            if suffices is not None and self.answers and suffices(list(self.answers.values())):
                return

    def _run(self, node: HttpNode, is_last: bool) -> None:
        failures: list[NoAnswer] = []
        try:
            self._done.put((node, self._ask_one(node, self._ask, failures, self._limit, is_last), failures))
        except Exception as error:  # noqa: BLE001 - it is raised again where the answers are waited for
            self._done.put(error)


class Http:
    """A client of one node, or of several: the URL may hold addresses with commas between them, each with a
    user (http://ann@host:18831). Several threads may use it at the same time."""

    def __init__(
        self,
        url: str | Sequence[str] = DEFAULT_URL,
        *,
        password: str | None = None,
        timeouts: Timeouts | None = None,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
    ) -> None:
        """`ca_file`: the authorities to trust where a URL says https, those of the system otherwise;
        `cert_file` and `key_file`: the certificate of this client."""

        @cache
        def context() -> ssl.SSLContext:
            return tls_context(ca_file=ca_file, cert_file=cert_file, key_file=key_file)

        urls = [part.strip() for part in url.split(",")] if isinstance(url, str) else url
        self._nodes = [HttpNode(one, password, context=context) for one in urls if one]
        if not self._nodes:
            raise ConfigError(f"give the HTTP address of a node, such as {DEFAULT_URL}")
        self._timeouts = timeouts or Timeouts()

    def close(self) -> None:
        for node in self._nodes:
            node.close()

    def __enter__(self) -> "Http":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def urls(self) -> tuple[str, ...]:
        """The nodes, the one that is asked first in front."""
        return tuple(node.url for node in self._nodes)

    def prefer(self, url: str) -> None:
        """Ask the node at this address first from now on, if it is one of these."""
        self._put_first([node for node in self._nodes if node.url == url])

    # ------------------------------------------------------------------------------- asking nodes

    def first(
        self,
        ask: Ask[Result],
        *,
        what: str,
        conclude: Conclude = _conclude_nothing,
        timeouts: Timeouts | None = None,
        deadline_s: float = math.inf,
    ) -> Result:
        """The first answer that a node has; that node is asked first from now on. `what` names in
        NobodyAnswers what was asked for."""
        limit = (timeouts or self._timeouts).limit(deadline_s)
        return self._patiently(lambda failures: self._ask_in_turn(ask, failures, limit), what, conclude)[0]

    def every(
        self,
        ask: Ask[Result],
        *,
        what: str,
        conclude: Conclude = _conclude_nothing,
        suffices: Suffices[Result] | None = None,
    ) -> Sequence[Result]:
        """The answers of all nodes that have one, asked at the same time: at least one answer. It returns as
        soon as the answers suffice, if the caller says what does. A node that stayed silent the last time
        is waited for only if no other node answers. Nodes that answered are asked first from now on."""
        return self._patiently(lambda failures: self._ask_all(ask, failures, suffices), what, conclude)

    def _patiently(
        self,
        ask_round: Callable[[list[NoAnswer]], Sequence[Result]],
        what: str,
        conclude: Conclude,
    ) -> Sequence[Result]:
        until_s = time.monotonic() + self._timeouts.patience_s
        pause_s = _PAUSE_S_LEAST
        while True:
            failures: list[NoAnswer] = []
            answers = ask_round(failures)
            if answers:
                return answers
            is_last = time.monotonic() + pause_s > until_s
            conclude(failures, is_last)
            if is_last:
                reasons = "; ".join(f"{failure.url}: {failure}" for failure in failures)
                raise NobodyAnswers(f"no node has an answer for {what}: {reasons}")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MOST)

    def _ask_in_turn(self, ask: Ask[Result], failures: list[NoAnswer], limit: TimeLimit) -> Sequence[Result]:
        nodes = sorted(self._nodes, key=lambda node: SILENT_NODES.is_suspect(node.url))
        for number, node in enumerate(nodes):
            is_last = number == len(nodes) - 1 and all(failure.is_silent for failure in failures)
            answer = self._ask_one(node, ask, failures, limit, is_last)
            if answer:
                self._put_first([node])
                return answer
        return ()

    def _put_first(self, nodes: Sequence[HttpNode]) -> None:
        if nodes != self._nodes[: len(nodes)]:
            self._nodes = [*nodes, *(other for other in self._nodes if other not in nodes)]

    def _ask_all(
        self, ask: Ask[Result], failures: list[NoAnswer], suffices: Suffices[Result] | None
    ) -> Sequence[Result]:
        suspects = [node for node in self._nodes if SILENT_NODES.is_suspect(node.url)]
        trusted = [node for node in self._nodes if node not in suspects]
        round_: _Round[Result] = _Round(self._ask_one, ask, self._timeouts.limit())
        if trusted:
            is_only = not suspects and len(trusted) == 1
            round_.begin(trusted, is_last=is_only)
            # Those whose time is over may show that they answer again; nobody waits for them.
            due = [node for node in suspects if not SILENT_NODES.is_silent(node.url)]
            round_.begin(due, is_last=False)
            suspects = [node for node in suspects if node not in due]
            round_.wait(trusted, suffices)
        if not round_.answers:
            round_.begin(suspects, is_last=True)
            round_.wait(self._nodes, lambda answers: True)
        failures.extend(round_.failures)
        self._put_first(list(round_.answers))
        return list(round_.answers.values())

    def _ask_one(
        self,
        node: HttpNode,
        ask: Ask[Result],
        failures: list[NoAnswer],
        limit: TimeLimit,
        is_last: bool,
    ) -> Sequence[Result]:
        """The node's answer, if it has one; otherwise its failure is added to the others."""
        if is_last:
            limit = replace(limit, silence_s=limit.silence_once_s)
        try:
            return (ask(node, limit),)
        except NoAnswer as failure:
            failure.url = node.url
            failures.append(failure)
            return ()

    # ------------------------------------------------------------------------------- plain requests

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
        is_repeatable: bool | None = None,
        query: Mapping[str, Any] = NO_HEADERS,
    ) -> Answer:
        """The answer of a node, within `timeout_s` and what the node waits on purpose (`wait_s`).

        The body is sent as JSON. HttpError for an error that a node answered, LocalError for no answer.
        Whether the request may arrive twice follows from the method unless `is_repeatable` says it.
        """
        given = {name: value for name, value in query.items() if value is not None}
        target = f"{path}{'?' if given else ''}{urlencode(given)}"
        if is_repeatable is None:
            is_repeatable = method in _REPEATABLE_METHODS
        may_repeat = is_repeatable
        data = None
        if body is not None:
            data = json_body(body)
            headers = {**headers, **JSON_HEADERS}

        def ask(node: HttpNode, limit: TimeLimit) -> Answer:
            try:
                answer = node.request(limit, method, target, data, headers=headers, is_repeatable=may_repeat)
            except NoAnswer as failure:
                if failure.may_have_arrived and not may_repeat:
                    raise _no_answer([(node.url, failure)], target) from failure
                raise
            if answer.status < 300:
                return answer
            problem = answer.problem()
            if may_repeat and answer.status in _UNAVAILABLE:
                raise NoAnswer(str(problem), problem=problem)
            raise problem

        def conclude(failures: Sequence[NoAnswer], is_last: bool) -> None:
            if is_last:
                problems = [failure.problem for failure in failures if failure.problem is not None]
                raise problems[0] if problems else _no_answer([(one.url, one) for one in failures], target)

        answer_s = (timeout_s or self._timeouts.answer_s) + wait_s
        timeouts = replace(self._timeouts, switch_s=self._timeouts.switch_s + wait_s, answer_s=answer_s)
        deadline_s = time.monotonic() + answer_s
        return self.first(ask, what=target, conclude=conclude, timeouts=timeouts, deadline_s=deadline_s)

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The JSON answer, None where there is none. Options of `request` are passed on, all other names are
        parameters of the query."""
        known = {name: options.pop(name) for name in _REQUEST_OPTIONS if name in options}
        return self.request(method, path, body, query=options, **known).json()

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, **query)

    # --------------------------------------------------------------------------------- the interface

    def publish(
        self, topic: str, payload: bytes, *, producer: str | None = None, sequence: int = 0, **settings: Any
    ) -> dict[str, Any]:
        """Publish a message; returns its place in the log once it is on disk. With a producer it may be
        repeated: the same sequence is stored once."""
        body = {
            "topic": topic,
            "payload": base64.b64encode(payload).decode(),
            "encoding": "base64",
            **settings,
        }
        headers = {}
        if producer is not None:
            headers = {"Millrace-Producer": producer, "Millrace-Sequence": str(sequence)}
        place: dict[str, Any] = self.call(
            "POST", "/v1/publish", body, headers=headers, is_repeatable=producer is not None
        )
        return place

    def take(
        self, group: str, *, count: int = 1, lease_ms: int = 30_000, wait_ms: int = 0, request: str = ""
    ) -> list[dict[str, Any]]:
        """The next messages of a durable group, leased: acknowledge them by their `receipt`. A call with the
        same `request` gets the same messages again."""
        answer = self.call(
            "POST",
            f"/v1/groups/{quote(group, safe='/:')}/take",
            {"count": count, "ack": "manual", "lease_ms": lease_ms, "wait_ms": wait_ms},
            headers={"Millrace-Request-Id": request} if request else {},
            wait_s=wait_ms / 1000,
            is_repeatable=bool(request),
        )
        taken: list[dict[str, Any]] = answer["messages"]
        return taken

    def ack(self, group: str, *receipts: str) -> list[bool]:
        """The caller is done with these messages; False for one that was given to somebody else meanwhile."""
        return self._settle(group, "ack", {"receipts": receipts})

    def nack(self, group: str, *receipts: str, delay_ms: int = 0) -> list[bool]:
        """The caller is not done with these messages: they are delivered again."""
        return self._settle(group, "nack", {"receipts": receipts, "delay_ms": delay_ms})

    def _settle(self, group: str, how: str, body: dict[str, Any]) -> list[bool]:
        answer = self.call("POST", f"/v1/groups/{quote(group, safe='/:')}/{how}", body)
        results: list[bool] = answer["results"]
        return results

    def streams(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get("/v1/streams")["streams"]
        return rows

    def blocks(self, stream: str, shard: int, start: int, end: int) -> tuple[bytes, int]:
        """Whole blocks of a shard's log, beginning with the one that holds `start`, and the offset to
        continue from."""
        answer = self.request("GET", shard_path(stream, shard, "blocks"), query={"from": start, "to": end})
        return bytes(answer.body), int(answer.headers["Millrace-Next-Offset"])

    def messages(
        self, stream: str, shard: int, start: int | str, *, filter: str = "#", wait_ms: int = 0
    ) -> dict[str, Any]:
        """One page of a shard's log."""
        query: dict[str, Any] = {"from": start, "limit": _PAGE, "filter": filter, "wait_ms": wait_ms}
        path = shard_path(stream, shard, "messages")
        page: dict[str, Any] = self.call("GET", path, wait_s=wait_ms / 1000, **query)
        return page


_REQUEST_OPTIONS = ("headers", "timeout_s", "wait_s", "is_repeatable")


def stream_path(stream: str) -> str:
    return f"/v1/streams/{quote(stream, safe='')}"


def shard_path(stream: str, shard: int, what: str) -> str:
    return f"{stream_path(stream)}/shards/{shard}/{what}"


def _no_answer(failures: Sequence[tuple[str, NoAnswer]], target: str) -> LocalError:
    reasons = "; ".join(f"no answer from {url}{target}: {failure}" for url, failure in failures)
    return LocalError(f"{reasons}; is the node running? start one: millrace start")
