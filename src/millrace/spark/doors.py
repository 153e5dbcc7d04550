"""The nodes of a cluster as one place to write to: any node takes a request, a dead one is passed over.

Every request here may be sent again: what is staged is known by its key, and a batch is decided once. So a
request whose answer did not come goes to the next node, and round again for a while, because an election or a
restart takes a moment.
"""

import base64
import http.client
import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from millrace.errors import LocalError

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 45.0
PATIENCE_S = 60.0
"""How long the nodes are asked again when none has an answer."""
_PAUSE_S_LEAST, _PAUSE_S_MOST = 0.05, 1.0
_PACKETS_TYPE = "application/vnd.millrace.packets"
# Answers that another node, or the same one later, may better.
_AGAIN = frozenset((404, 409, 429, 500, 502, 503, 504, 507))


Body = bytes | Sequence[bytes | memoryview]


class Refused(LocalError):
    """A node said no, and no other would say otherwise."""


class Doors:
    """HTTP doors of nodes, asked in turn, beginning with the one that answered last."""

    def __init__(self, urls: tuple[str, ...], password: str | None, patience_s: float = PATIENCE_S) -> None:
        self._urls = list(urls)
        self._password = password
        self._patience_s = patience_s
        self._open: dict[str, http.client.HTTPConnection] = {}

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    # --------------------------------------------------------------------------------------- requests

    def streams(self) -> list[dict[str, Any]]:
        return list(self._patiently("GET", "/v1/streams")["streams"])

    def stage(self, stream: str, writer: str, batch: int, attempt: str, sections: Body) -> None:
        """Returns once the sections are on the disks of a majority."""
        query = urlencode({"writer": writer, "batch": batch, "attempt": attempt})
        path = f"/v1/streams/{quote(stream, safe='')}/stage?{query}"
        self._patiently("POST", path, sections, content_type=_PACKETS_TYPE)

    def commit(self, writer: str, batch: int, attempts: dict[str, dict[int, int]]) -> dict[str, Any]:
        """Decide a batch; the answer says whether it was decided before, and whether it is visible."""
        body = json.dumps({"batch": batch, "attempts": attempts}).encode()
        answer: dict[str, Any] = self._patiently("POST", f"/v1/writers/{quote(writer, safe='')}/commit", body)
        return answer

    def abort(self, writer: str, batch: int, attempts: list[str]) -> None:
        body = json.dumps({"batch": batch, "attempts": attempts}).encode()
        self._patiently("POST", f"/v1/writers/{quote(writer, safe='')}/abort", body)

    # -------------------------------------------------------------------------------------- one by one

    def _patiently(
        self, method: str, path: str, body: Body | None = None, content_type: str = "application/json"
    ) -> Any:
        deadline_s = time.monotonic() + self._patience_s
        pause_s = _PAUSE_S_LEAST
        while True:
            reasons = []
            for url in list(self._urls):
                try:
                    status, data = self._ask(url, method, path, body, content_type)
                except (OSError, http.client.HTTPException) as error:
                    reasons.append(f"{_shown(url)}: {type(error).__name__}: {error}")
                    continue
                if status < 300:
                    self._urls.remove(url)
                    self._urls.insert(0, url)
                    return json.loads(data)
                detail = _detail(status, data)
                if status not in _AGAIN:
                    raise Refused(detail)
                reasons.append(f"{_shown(url)}: {detail}")
            if time.monotonic() + pause_s > deadline_s:
                raise LocalError("no node took it: " + "; ".join(reasons))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MOST)

    def _ask(
        self, url: str, method: str, path: str, body: Body | None, content_type: str
    ) -> tuple[int, bytes]:
        """Status and body of one node. A kept connection that was closed meanwhile is opened again."""
        parts = urlsplit(url)
        headers = self._headers(url)
        if body is not None:
            # Pieces go out one by one, as they lie in memory.
            size = len(body) if isinstance(body, bytes) else sum(map(len, body))
            headers |= {"Content-Type": content_type, "Content-Length": str(size)}
        for is_kept in (url in self._open, False):
            connection = self._open.get(url) or self._connect(url)
            try:
                connection.request(method, parts.path.rstrip("/") + path, body, headers)
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._open.pop(url, None)
                if not is_kept or isinstance(error, TimeoutError):
                    raise
        raise AssertionError("the second round returns or raises")

    def _connect(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        assert parts.hostname is not None, "the options were checked"
        connection = kind(parts.hostname, parts.port, timeout=CONNECT_TIMEOUT_S)
        connection.connect()
        connection.sock.settimeout(ANSWER_TIMEOUT_S)
        self._open[url] = connection
        return connection

    def _headers(self, url: str) -> dict[str, str]:
        headers = {}
        name = urlsplit(url).username
        if name is not None:
            pair = f"{unquote(name)}:{self._password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        return headers


def _shown(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _detail(status: int, data: bytes) -> str:
    try:
        return str(json.loads(data)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"status {status}"
