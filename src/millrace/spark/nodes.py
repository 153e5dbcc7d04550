"""The nodes of a cluster as one place to read from: any replica serves, a dead node is passed over.

Nodes are asked in turn, beginning with the one that answered last. What one node does not have another may:
a replica can lag behind, have begun from a snapshot, which holds no messages, or not be there at all. Only an
answer that no node could better ends the search: offsets that every node has let go, refused access. When no
node has an answer they are asked again for a while, because an election takes a moment.
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

Result = TypeVar("Result")
Body = bytes | memoryview


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


class NobodyAnswers(LocalError):
    """No node had an answer for as long as one waits."""


class _PassOver(Exception):
    """This node has no answer; the next may have one."""


class _Later(_PassOver):
    """Nodes whose logs begin above what was asked for, the earliest at `first`; `is_all`: no other node may
    have it."""

    def __init__(self, text: str, first: int, *, is_all: bool = False) -> None:
        super().__init__(text)
        self.first, self.is_all = first, is_all


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

    def get(self, path: str, room: bytearray | None = None) -> tuple[int, Message, Body]:
        """Status, headers and body, in `room` if it fits there."""
        return self._ask("GET", path, None, room)

    def send(self, method: str, path: str, fields: Any) -> tuple[int, Message, Body]:
        """The same with a body, as JSON. Only what may be repeated: it may arrive twice."""
        return self._ask(method, path, json.dumps(fields).encode(), None)

    def _ask(
        self, method: str, path: str, sent: bytes | None, room: bytearray | None
    ) -> tuple[int, Message, Body]:
        """A kept connection that the node has closed meanwhile is opened again."""
        for is_last in (self._connection.sock is None, True):
            try:
                return self._ask_once(method, path, sent, room)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                if is_last or isinstance(error, TimeoutError):
                    raise _PassOver(f"{type(error).__name__}: {error}") from error
        raise AssertionError("the second round returns or raises")

    def _ask_once(
        self, method: str, path: str, sent: bytes | None, room: bytearray | None
    ) -> tuple[int, Message, Body]:
        if self._connection.sock is None:
            self._connection.connect()
            opened: socket.socket | None = self._connection.sock
            assert opened is not None, "connect has returned"
            opened.settimeout(ANSWER_TIMEOUT_S)
        headers = self._headers if sent is None else {**self._headers, "Content-Type": "application/json"}
        self._connection.request(method, self._prefix + path, sent, headers)
        answer = self._connection.getresponse()
        if room is not None and answer.length is not None and answer.length <= len(room):
            return answer.status, answer.headers, _read_into(answer, room)
        return answer.status, answer.headers, answer.read()

    def close(self) -> None:
        self._connection.close()


def _read_into(answer: http.client.HTTPResponse, room: bytearray) -> memoryview:
    """The body at the beginning of `room`: memory that was touched before costs no page faults."""
    assert answer.length is not None, "the caller looked"
    body = memoryview(room)[: answer.length]
    filled = 0
    while filled < len(body):
        count = answer.readinto(body[filled:])
        if not count:
            raise http.client.IncompleteRead(bytes(body[:filled]), len(body) - filled)
        filled += count
    # The answer closes itself, and frees the connection for the next, when it is read to its end.
    answer.read()
    return body


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
                    answer = json.loads(bytes(_body(node.get(path))))
                except _PassOver as error:
                    failed.append(error)
                    continue
                for row in answer["shard_list"]:
                    _merge(found, row)
                if not found and answer["replication"] == "routed":
                    raise LocalError(f"stream {stream!r} is routed: stored nowhere, Spark cannot read it")
            if len(failed) == len(self._nodes):
                # A living node's word that there is no such stream is worth more than a dead one's silence.
                raise next((error for error in failed if isinstance(error, _Missing)), failed[0])
            return found

        return self._patiently(f"stream {stream!r}", ask_all)

    def blocks(
        self, stream: str, shard: int, start: int, end: int, room: bytearray | None = None
    ) -> tuple[Body, int]:
        """Whole blocks from the one that holds `start` on, and the offset where to go on, which is higher.
        They are in `room` if they fit there."""
        path = _shard_path(stream, shard, "blocks", {"from": start, "to": end})

        def ask(node: Node) -> tuple[Body, int]:
            status, headers, body = node.get(path, room)
            if status == 410:
                raise _begins_at(int(json.loads(bytes(body))["earliest_offset"]))
            blocks = _body((status, headers, body))
            after = int(headers["Millrace-Next-Offset"])
            if after <= start:
                raise _PassOver(f"it has nothing at offset {start} yet")
            return blocks, after

        try:
            return self._patiently(f"stream {stream!r}, shard {shard}", lambda: self._any(ask))
        except _Later as error:
            raise Expired(stream=stream, shard=shard, asked=start, earliest=error.first) from None
        except _Gone:
            raise Expired(stream=stream, shard=shard, asked=start, earliest=None) from None

    def offset_at(self, stream: str, shard: int, extent: Extent, time_us: int) -> int:
        """The first offset whose message is from this time or later, within the extent."""
        path = _shard_path(stream, shard, "offset", {"time_us": time_us})

        def ask(node: Node) -> int:
            fields = json.loads(bytes(_body(node.get(path))))
            offset = int(fields["offset"])
            if offset == int(fields["next_offset"]) < extent.next:
                raise _PassOver("it lags behind")
            if offset == int(fields["first_offset"]) > extent.first:
                raise _begins_at(offset)
            return offset

        try:
            found = self._patiently(f"stream {stream!r}, shard {shard}", lambda: self._any(ask))
        except _Later as error:
            found = error.first
        return min(max(found, extent.first), extent.next)

    def advance(self, group: str, filters: tuple[str, ...], stream: str, position: Mapping[int, int]) -> None:
        """Tell a durable group how far a query has come; the group is made where there is none, on these
        filters or on those of the stream. LocalError if that is refused or nobody answers."""
        path = f"/v1/groups/{quote(group, safe='')}"
        body = {"positions": {str(shard): offset for shard, offset in position.items()}}

        def ask(node: Node) -> None:
            answer = node.send("POST", f"{path}/advance", body)
            if answer[0] == 404:
                spec = {"name": group, "filters": filters or self._filters(node, stream), "start": "earliest"}
                made = node.send("POST", "/v1/groups", spec)
                # Somebody else may have made it in between.
                if made[0] not in (201, 409):
                    _body(made)
                answer = node.send("POST", f"{path}/advance", body)
            if answer[0] != 204:
                _body(answer)

        self._patiently(f"group {group!r}", lambda: self._any(ask))

    def _filters(self, node: Node, stream: str) -> tuple[str, ...]:
        fields = json.loads(bytes(_body(node.get(f"/v1/streams/{quote(stream, safe='')}"))))
        return tuple(fields["filters"]) or ("#",)

    def _any(self, ask: Callable[[Node], Result]) -> Result:
        """The first answer; the node that gave it is asked first from now on."""
        reasons, missing = [], 0
        begins: list[int] = []
        for node in list(self._nodes):
            try:
                result = ask(node)
            except _PassOver as error:
                reasons.append(f"{node.shown}: {error}")
                missing += isinstance(error, _Missing)
                if isinstance(error, _Later):
                    begins.append(error.first)
                continue
            self._nodes.remove(node)
            self._nodes.insert(0, node)
            return result
        if missing == len(self._nodes):
            raise _Gone("; ".join(reasons))
        if begins:
            is_all = len(begins) + missing == len(self._nodes)
            raise _Later("; ".join(reasons), min(begins), is_all=is_all)
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
                is_late = time.monotonic() + pause_s > deadline_s
                if isinstance(error, _Later) and (is_late or error.is_all):
                    raise
                if is_late:
                    raise NobodyAnswers(f"no node has an answer for {what}: {error}") from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MOST)


class _Gone(LocalError):
    """Every node answered, and none knows the shard."""


def _begins_at(offset: int) -> _Later:
    return _Later(f"its log begins at {offset}", offset)


def _shard_path(stream: str, shard: int, what: str, query: Mapping[str, int]) -> str:
    return f"/v1/streams/{quote(stream, safe='')}/shards/{shard}/{what}?{urlencode(query)}"


def _body(answer: tuple[int, Message, Body]) -> Body:
    status, _, body = answer
    if status == 200:
        return body
    try:
        detail = str(json.loads(bytes(body))["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"status {status}"
    if status == 404:
        raise _Missing(detail)
    if status in (409, 429) or status >= 500:
        raise _PassOver(detail)
    raise LocalError(detail)


def _merge(found: dict[int, Extent], row: Mapping[str, Any]) -> None:
    """The furthest end that a node knows, and the first offset that any has. A node that has nothing, because
    it came just now, does not say where the others begin."""
    shard, first, end = int(row["shard"]), int(row["first_offset"]), int(row["next_offset"])
    known = found.get(shard, Extent(first=0, next=0))
    if known.first < known.next:
        first = min(known.first, first) if first < end else known.first
    elif first == end:
        first = max(known.first, first)
    found[shard] = Extent(
        first=first,
        next=max(known.next, end),
        size_bytes=max(known.size_bytes, int(row["bytes"])),
    )
