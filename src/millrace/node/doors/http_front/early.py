"""A connection before the HTTP application is made: whether the node lives and serves, and nothing else.

Probes ask for `/livez` and `/readyz`, from the first moment on and often for nothing else. They are answered
here as the application would answer them, and the connection is closed. Whatever does not begin like such a
request, to the letter, waits for the application with all its bytes: this is no parser of HTTP.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from millrace.broker.stats import DoorTraffic
from millrace.node.doors.http_front import documents
from millrace.node.doors.quotas import Quotas

_LIVEZ, _READYZ = (b"GET /%b HTTP/1.1\r\n" % name for name in (b"livez", b"readyz"))
_HEAD_END = b"\r\n\r\n"
# A probe says little about itself.
_HEAD_BYTES_MAX = 4096
_PHRASES = {200: "OK", 500: "Internal Server Error", 503: "Service Unavailable"}
# Headers with which a request is more than its head.
_MORE = (b"content-length:", b"transfer-encoding:", b"upgrade:", b"expect:")


class Readiness(Protocol):
    """Whether the node serves: `millrace.node.admin.readiness.Readiness` is one."""

    @property
    def waits_for(self) -> str:
        """Why it does not; empty where it does."""

    def answer(self) -> dict[str, Any]:
        """What a node that serves says of itself."""


class EarlyConnection:
    """`hand_over` is called at most once, when reading has stopped, and calls `pass_to` or `fail` in the end.
    `on_lost` is called if the client goes before that."""

    def __init__(
        self,
        traffic: DoorTraffic,
        quotas: Quotas,
        readiness: Readiness,
        hand_over: Callable[["EarlyConnection"], None],
        on_lost: Callable[["EarlyConnection"], None],
        now_s: Callable[[], float],
    ) -> None:
        self._traffic = traffic
        self._quotas = quotas
        self._readiness = readiness
        self._hand_over = hand_over
        self._on_lost = on_lost
        self._now_s = now_s
        self._held = b""
        self._is_answered = False
        self.transport: Any = None
        self.is_handed_over = False
        self.is_lost = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._since_s = self._now_s()
        self._traffic.connects += 1
        self._traffic.open += 1
        # By its transport, which the application's own connection goes on with.
        if not self._quotas.admits(transport, transport.get_extra_info("peername"), is_finished=True):
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._quotas.left(self.transport)
        self._traffic.open -= 1
        self._on_lost(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """What is written here is small, and the last that is written."""

    def resume_writing(self) -> None:
        pass

    def is_late(self, now_s: float, head_s: float) -> bool:
        """Whether the client kept us waiting for its head, or leaves the answer where it is."""
        return not self.is_handed_over and now_s - self._since_s > head_s

    def data_received(self, data: bytes) -> None:
        self._held += data
        if self._is_answered or self.is_handed_over:
            return
        head, end, rest = self._held[:_HEAD_BYTES_MAX].partition(_HEAD_END)
        is_begun = any(head.startswith(line) or line.startswith(head) for line in (_LIVEZ, _READYZ))
        if is_begun and not end and len(self._held) < _HEAD_BYTES_MAX:
            return
        if is_begun and end and not rest and not _has_more(head):
            self._traffic.bytes_received += len(self._held)
            self._answer(is_about_readiness=head.startswith(_READYZ))
            return
        self.is_handed_over = True
        self.transport.pause_reading()
        self._hand_over(self)

    def pass_to(self, connection: Any) -> None:
        """The application's own connection goes on where this one stopped."""
        if self.is_lost:
            return
        self.transport.set_protocol(connection)
        connection.take_over(self.transport)
        # Before the bytes that are here: whoever reads them may want no more for now.
        self.transport.resume_reading()
        connection.data_received(self._held)

    def fail(self, detail: str) -> None:
        """There is no application."""
        if not self.is_lost:
            self._traffic.bytes_received += len(self._held)
            self._write(500, documents.problem(500, detail), {})

    def _answer(self, is_about_readiness: bool) -> None:
        readiness = self._readiness
        if not is_about_readiness:
            self._write(200, documents.ALIVE, {})
        elif waits_for := readiness.waits_for:
            self._write(503, documents.problem(503, waits_for), documents.RETRY_AFTER)
        else:
            self._write(200, readiness.answer(), {})

    def _write(self, status: int, document: dict[str, Any], headers: dict[str, str]) -> None:
        self._is_answered = True
        body = msgspec.json.encode(document)
        kind = "application/json" if status == 200 else documents.PROBLEM_TYPE
        lines = {
            "date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
            **headers,
            "content-length": str(len(body)),
            "content-type": kind,
            **{name.decode(): value.decode() for name, value in documents.SAFE_HEADERS},
            "content-security-policy": documents.API_POLICY,
            "cache-control": documents.NO_STORE,
            "connection": "close",
        }
        head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        answer = head.encode() + b"\r\n" + body
        self._traffic.bytes_sent += len(answer)
        self.transport.write(answer)
        self.transport.close()


def _has_more(head: bytes) -> bool:
    return any(line.startswith(_MORE) for line in head.lower().split(b"\r\n"))
