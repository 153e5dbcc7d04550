"""The nodes of a cluster as one place to read from: any replica serves, a dead node is passed over.

Nodes are asked in turn, beginning with the one that answered last. What one node does not have another may:
a replica can lag behind, or not be there at all. Only an answer that no node could better ends the search:
expired offsets, refused access. When no node has an answer they are asked again for a while, because an
election takes a moment.
"""

import base64
import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from email.message import Message
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

from millrace.errors import LocalError
from millrace.spark.offsets import Extent

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 30.0
PATIENCE_S = 10.0
"""How long the nodes are asked again when none has an answer."""
_PAUSE_S_LEAST, _PAUSE_S_MOST = 0.05, 1.0
# A search halves 2^63 offsets at most this often.
_PROBES_MAX = 64

Result = TypeVar("Result")


class Expired(LocalError):
    """Retention has removed what was asked for, or the shard is gone (`earliest` is None)."""

    def __init__(self, *, stream: str, shard: int, asked: int, earliest: int | None) -> None:
        if earliest is None:
            what = "the shard is no longer there"
        else:
            what = f"the earliest offset that is left is {earliest}"
        super().__init__(
            f"stream {stream!r}, shard {shard}: offset {asked} was asked for, but {what}; "
            "with failOnDataLoss=false the query goes on without what is gone"
        )
        self.earliest = earliest


class _PassOver(Exception):
    """This node has no answer; the next may have one."""


class _Missing(_PassOver):
    """This node knows no such stream or shard."""


class Node:
    """One HTTP door, over a connection that is kept."""

    def __init__(self, url: str, password: str | None) -> None:
        parts = urlsplit(url)
        self.shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        assert parts.hostname is not None, "the options were checked"
        self._connection = kind(parts.hostname, parts.port, timeout=CONNECT_TIMEOUT_S)
        self._prefix = parts.path.rstrip("/")
        self._headers: dict[str, str] = {}
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{password or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"

    def get(self, path: str) -> tuple[int, Message, bytes]:
        """Status, headers and body. A kept connection that the node has closed meanwhile is opened again."""
        for is_last in (self._connection.sock is None, True):
            try:
                return self._get(path)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if is_last or isinstance(error, TimeoutError):
                    raise _PassOver(f"{type(error).__name__}: {error}") from error
        raise AssertionError("the second round returns or raises")

    def _get(self, path: str) -> tuple[int, Message, bytes]:
        if self._connection.sock is None:
            self._connection.connect()
            opened: socket.socket | None = self._connection.sock
            assert opened is not None, "connect has returned"
            opened.settimeout(ANSWER_TIMEOUT_S)
        self._connection.request("GET", self._prefix + path, headers=self._headers)
        answer = self._connection.getresponse()
        return answer.status, answer.headers, answer.read()

    def close(self) -> None:
        self._connection.close()


class Nodes:
    """Every call is bounded in time; LocalError says what each node answered."""

    def __init__(self, urls: tuple[str, ...], password: str | None) -> None:
        self._nodes = [Node(url, password) for url in urls]

    def close(self) -> None:
        for node in self._nodes:
            node.close()

    def extents(self, stream: str) -> dict[int, Extent]:
        """The shards of a stream, as far as any node knows them. Every node that answers counts, because one
        node may hold some of the shards only, and lag behind in them."""
        path = f"/v1/streams/{quote(stream, safe='')}"

        def ask_all() -> dict[int, Extent]:
            found: dict[int, Extent] = {}
            failed: list[_PassOver] = []
            for node in self._nodes:
                try:
                    rows = json.loads(_body(node.get(path)))["shard_list"]
                except _PassOver as error:
                    failed.append(error)
                    continue
                for row in rows:
                    _merge(found, row)
            if len(failed) == len(self._nodes):
                # A living node's word that there is no such stream is worth more than a dead one's silence.
                raise next((error for error in failed if isinstance(error, _Missing)), failed[0])
            return found

        return self._patiently(f"stream {stream!r}", ask_all)

    def blocks(self, stream: str, shard: int, start: int, end: int) -> tuple[bytes, int]:
        """Whole blocks from the one that holds `start` on, and the offset where to go on, which is higher."""
        path = _shard_path(stream, shard, "blocks", {"from": start, "to": end})

        def ask(node: Node) -> tuple[bytes, int]:
            status, headers, body = node.get(path)
            if status == 410:
                earliest = int(json.loads(body)["earliest_offset"])
                raise Expired(stream=stream, shard=shard, asked=start, earliest=earliest)
            blocks = _body((status, headers, body))
            after = int(headers["Millrace-Next-Offset"])
            if after <= start:
                raise _PassOver(f"it has nothing at offset {start} yet")
            return blocks, after

        try:
            return self._patiently(f"stream {stream!r}, shard {shard}", lambda: self._any(ask))
        except _Gone:
            raise Expired(stream=stream, shard=shard, asked=start, earliest=None) from None

    def offset_at(self, stream: str, shard: int, extent: Extent, time_us: int) -> int:
        """The first offset whose message is from this time or later, by halving: times rise along a shard."""
        low, high = extent.first, extent.next
        for _ in range(_PROBES_MAX):
            if low >= high:
                break
            middle = (low + high) // 2
            found = self._time_at(stream, shard, middle)
            if found is None or found >= time_us:
                high = middle
            else:
                low = middle + 1
        return low

    def _time_at(self, stream: str, shard: int, offset: int) -> int | None:
        path = _shard_path(stream, shard, "messages", {"from": offset, "limit": 1})
        what = f"stream {stream!r}, shard {shard}"
        body = self._patiently(what, lambda: self._any(lambda node: _body(node.get(path))))
        messages = json.loads(body)["messages"]
        return int(messages[0]["time_us"]) if messages else None

    def _any(self, ask: Callable[[Node], Result]) -> Result:
        """The first answer; the node that gave it is asked first from now on."""
        reasons, missing = [], 0
        for node in list(self._nodes):
            try:
                result = ask(node)
            except _PassOver as error:
                reasons.append(f"{node.shown}: {error}")
                missing += isinstance(error, _Missing)
                continue
            self._nodes.remove(node)
            self._nodes.insert(0, node)
            return result
        if missing == len(self._nodes):
            raise _Gone("; ".join(reasons))
        raise _PassOver("; ".join(reasons))

    def _patiently(self, what: str, ask: Callable[[], Result]) -> Result:
        deadline_s = time.monotonic() + PATIENCE_S
        pause_s = _PAUSE_S_LEAST
        while True:
            try:
                return ask()
            except _Missing as error:
                raise LocalError(str(error)) from None
            except _PassOver as error:
                if time.monotonic() + pause_s > deadline_s:
                    raise LocalError(f"no node has an answer for {what}: {error}") from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MOST)


class _Gone(LocalError):
    """Every node answered, and none knows the shard."""


def _shard_path(stream: str, shard: int, what: str, query: Mapping[str, int]) -> str:
    return f"/v1/streams/{quote(stream, safe='')}/shards/{shard}/{what}?{urlencode(query)}"


def _body(answer: tuple[int, Message, bytes]) -> bytes:
    status, _, body = answer
    if status == 200:
        return body
    try:
        detail = str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"status {status}"
    if status == 404:
        raise _Missing(detail)
    if status in (409, 429) or status >= 500:
        raise _PassOver(detail)
    raise LocalError(detail)


def _merge(found: dict[int, Extent], row: Mapping[str, Any]) -> None:
    """The furthest end that a node knows, and the beginning that all of them have."""
    shard = int(row["shard"])
    known = found.get(shard, Extent(first=0, next=0))
    found[shard] = Extent(
        first=max(known.first, int(row["first_offset"])),
        next=max(known.next, int(row["next_offset"])),
        size_bytes=max(known.size_bytes, int(row["bytes"])),
    )
