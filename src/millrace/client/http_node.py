"""Requests to the HTTP port of one node, over connections that are kept open.

Only the standard library is used, no event loop and no thread: this code also runs inside Python workers of
Spark. A connection that is idle is checked before it is used again, because a node closes idle connections.

A node that stays silent is remembered for the whole process: until it answers again, the next calls ask other
nodes first. A program may open many clients, so the memory of one client would not be enough.
"""

import base64
import http.client
import json
import math
import selectors
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from email.message import Message
from typing import Any
from urllib.parse import unquote, urlsplit

from millrace.client.connection.tls import CA_VARIABLE, tls_context
from millrace.errors import ConfigError, LocalError

DEFAULT_URL = "http://127.0.0.1:18831"
JSON_HEADERS: Mapping[str, str] = {"Content-Type": "application/json"}
NO_HEADERS: Mapping[str, str] = {}
_ACCEPT = "application/json, application/problem+json"
_TRUST = f"name the authority that signed it: the variable {CA_VARIABLE}, ca_file, or caFile in Spark"
_READ_BYTES = 1 << 20
_IDLE_CONNECTIONS_MAX = 8
_SILENT_S_LEAST, _SILENT_S_MOST = 10.0, 60.0

RequestBody = bytes | Sequence[bytes | memoryview]
"""The body of a request: whole, or in pieces that are sent one by one as they lie in memory."""
AnswerBody = bytes | memoryview


class HttpError(LocalError):
    """The node answered with an error; the text is the reason that the node gave."""

    def __init__(self, status: int, detail: str, fields: dict[str, Any]) -> None:
        super().__init__(detail)
        self.status = status
        self.fields = fields


class NoAnswer(LocalError):
    """One node has no answer to a request; another node may have one, or the same node later."""

    def __init__(
        self,
        reason: str,
        *,
        is_silent: bool = False,
        may_have_arrived: bool = False,
        problem: HttpError | None = None,
    ) -> None:
        super().__init__(reason)
        self.is_silent = is_silent
        """The node did not answer in time."""
        self.may_have_arrived = may_have_arrived
        """The connection broke after the request was begun: the node may have carried it out."""
        self.problem = problem
        """The error that the node answered with, where it did answer."""
        self.url = ""
        """The node, filled in by the client that asked it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimit:
    """How long one request may take."""

    connect_s: float
    silence_s: float
    """The node may stay silent for so long, before its answer and within it."""
    silence_once_s: float
    """The same for a request that must not arrive twice, and so cannot be taken to another node instead."""
    deadline_s: float = math.inf
    """On the monotonic clock: the request has ended by then."""

    def left_s(self, wanted_s: float) -> float:
        """The wanted time, or what is left of it before the deadline; TimeoutError when nothing is left."""
        left_s = min(wanted_s, self.deadline_s - time.monotonic())
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a node answered; an error status is an answer too."""

    url: str
    status: int
    headers: Message
    body: AnswerBody

    def json(self) -> Any:
        """The body as JSON, None where there is none."""
        try:
            return json.loads(bytes(self.body)) if self.body else None
        except ValueError as error:
            raise LocalError(f"{self.url} answered what is no JSON: {error}") from error

    def problem(self) -> HttpError:
        """The error that a problem document states; the bare status where there is no such document."""
        try:
            fields = json.loads(bytes(self.body))
            detail = str(fields["detail"])
        except (ValueError, KeyError, TypeError):
            fields, detail = {}, f"{self.url} answered with status {self.status}"
        return HttpError(self.status, detail, fields if isinstance(fields, dict) else {})


class SilentNodes:
    """Which nodes stayed silent when they were asked last, by address. Each silence in a row doubles the time
    for which the node is not asked at all; after it the node is asked again, but not waited for, until it
    answers."""

    def __init__(self) -> None:
        self._avoided: dict[str, tuple[float, float]] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(self._avoided)

    def is_suspect(self, url: str) -> bool:
        """Whether the node has not answered since it stayed silent."""
        return url in self._avoided

    def is_silent(self, url: str) -> bool:
        """Whether the node is not to be asked yet."""
        until_s, _ = self._avoided.get(url, (0.0, 0.0))
        return time.monotonic() < until_s

    def stayed_silent(self, url: str) -> None:
        _, before_s = self._avoided.get(url, (0.0, 0.0))
        pause_s = min(_SILENT_S_MOST, max(_SILENT_S_LEAST, 2 * before_s))
        self._avoided[url] = (time.monotonic() + pause_s, pause_s)

    def answered(self, url: str) -> None:
        self._avoided.pop(url, None)


SILENT_NODES = SilentNodes()


class HttpNode:
    """The HTTP port of one node. The URL may name a user (http://ann@host:18831), whose password is in the
    URL or given apart. Several threads may use it at the same time."""

    def __init__(
        self, url: str, password: str | None = None, *, context: Callable[[], ssl.SSLContext] = tls_context
    ) -> None:
        """`context`: whom to trust where the URL says https."""
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError:
            parts, self._host = urlsplit(""), ""
        if parts.scheme not in ("http", "https") or not self._host:
            raise ConfigError(f"{without_user(url)!r} is not an HTTP address such as {DEFAULT_URL}")
        self._context = context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._prefix}"
        self._headers = {"Accept": _ACCEPT}
        if parts.username is not None:
            secret = password if parts.password is None else unquote(parts.password)
            pair = f"{unquote(parts.username)}:{secret or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        self._idle: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def request(
        self,
        limit: TimeLimit,
        method: str,
        path: str,
        body: RequestBody | None = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        is_repeatable: bool = True,
        room: bytearray | None = None,
    ) -> Answer:
        """Ask the node. The body of the answer is put into `room` if it fits there.

        A request that `is_repeatable` may arrive twice: it is sent once more when a connection that was kept
        turns out to be closed. NoAnswer when the node cannot be reached, breaks off or stays silent.
        """
        if not is_repeatable:
            limit = replace(limit, silence_s=limit.silence_once_s)
        sent = {**self._headers, **headers}
        if body is not None:
            size = len(body) if isinstance(body, bytes) else sum(map(len, body))
            sent["Content-Length"] = str(size)
        while True:
            kept = self._take_idle()
            connection = kept or self._connect(limit)
            try:
                answer = self._exchange(connection, method, path, body, sent, limit, room)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                is_silent = isinstance(error, TimeoutError)
                if kept is not None and is_repeatable and not is_silent:
                    continue
                raise self._no_answer(error, may_have_arrived=True) from error
            SILENT_NODES.answered(self.url)
            return answer

    def get(self, limit: TimeLimit, path: str, room: bytearray | None = None) -> Answer:
        return self.request(limit, "GET", path, room=room)

    def post_json(self, limit: TimeLimit, path: str, fields: Any) -> Answer:
        """Send what may be repeated."""
        return self.request(limit, "POST", path, json_body(fields), headers=JSON_HEADERS)

    def _take_idle(self) -> http.client.HTTPConnection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                # Another thread took the last one.
                return None
            if connection.sock is not None and not _has_input(connection.sock):
                return connection
            connection.close()
        return None

    def _connect(self, limit: TimeLimit) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = None
        try:
            timeout_s = limit.left_s(min(limit.connect_s, limit.silence_s))
            if self._context is None:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
            else:
                connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=timeout_s, context=self._context
                )
            connection.connect()
        except (OSError, ValueError, http.client.HTTPException) as error:
            if connection is not None:
                connection.close()
            raise self._no_answer(error, may_have_arrived=False) from error
        return connection

    def _no_answer(self, error: Exception, *, may_have_arrived: bool) -> NoAnswer:
        is_silent = isinstance(error, TimeoutError)
        if is_silent:
            SILENT_NODES.stayed_silent(self.url)
        reason = str(error) or type(error).__name__
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"its certificate is not trusted ({error.verify_message}); {_TRUST}"
        return NoAnswer(reason, is_silent=is_silent, may_have_arrived=may_have_arrived)

    def _exchange(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: RequestBody | None,
        headers: Mapping[str, str],
        limit: TimeLimit,
        room: bytearray | None,
    ) -> Answer:
        connection.sock.settimeout(limit.left_s(limit.silence_s))
        connection.request(method, self._prefix + path, body, headers)
        answer = connection.getresponse()
        try:
            data = _read_body(connection, answer, limit, room)
        except (OSError, http.client.HTTPException):
            if answer.status < 400:
                raise
            # The status alone says that the request failed.
            data = b""
        if answer.will_close or not answer.isclosed() or len(self._idle) >= _IDLE_CONNECTIONS_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return Answer(url=self.url + path, status=answer.status, headers=answer.headers, body=data)


def json_body(fields: Any) -> bytes:
    return json.dumps(fields).encode()


def without_user(url: str) -> str:
    """The address as it may be shown: without the user and the password."""
    scheme, separator, rest = url.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _has_input(sock: Any) -> bool:
    """Whether an idle connection has something to read: the node has closed it, or broken the protocol."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _read_body(
    connection: http.client.HTTPConnection,
    answer: http.client.HTTPResponse,
    limit: TimeLimit,
    room: bytearray | None,
) -> AnswerBody:
    """The whole body. `room` is memory that was touched before, which costs no page faults."""
    size = answer.length
    if size is None:
        return answer.read()
    has_room = room is not None and size <= len(room)
    body = memoryview(room if room is not None and has_room else bytearray(size))[:size]
    filled = 0
    while filled < size:
        if connection.sock is not None:
            connection.sock.settimeout(limit.left_s(limit.silence_s))
        count = answer.readinto(body[filled : filled + _READ_BYTES])
        if not count:
            raise http.client.IncompleteRead(bytes(body[:filled]), size - filled)
        filled += count
    # The answer is closed, and its connection free for the next request, once it is read to its end.
    answer.read()
    return body if has_room else bytes(body)
