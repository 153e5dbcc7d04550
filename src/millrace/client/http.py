"""Requests to a node's HTTP door, with the standard library alone.

`Http` is one door and the user who calls there; an error that the node answers comes back as a `LocalError`
with the sentence of the problem document. `follow` reads logs by offset: what was published before, and what
comes.
"""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from millrace.errors import ConfigError, LocalError

DEFAULT_URL = "http://127.0.0.1:18831"
NO_HEADERS: Mapping[str, str] = {}
_TIMEOUT_S = 10.0
_PAGE = 1_000
# At the end of every log: how long a round of requests waits, over all shards together.
_ROUND_WAIT_MS = 2_000
_WAIT_MS_LEAST = 50


class HttpError(LocalError):
    """The node answered with an error."""

    def __init__(self, status: int, detail: str, fields: dict[str, Any]) -> None:
        super().__init__(detail)
        self.status = status
        self.fields = fields


class Http:
    """One HTTP door. The URL may name a user: http://ann@host:18831."""

    def __init__(self, url: str = DEFAULT_URL, *, password: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is not an HTTP address such as {DEFAULT_URL}")
        self.base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._headers = {"Accept": "application/json, application/problem+json"}
        if parts.username is not None:
            secret = password if parts.password is None else unquote(parts.password)
            pair = f"{unquote(parts.username)}:{secret or ''}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout_s: float = _TIMEOUT_S,
        **query: Any,
    ) -> Any:
        """The JSON answer, None where there is none. HttpError for an error, LocalError for no answer."""
        text, _ = self._call(method, path, body, headers, timeout_s, query)
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise LocalError(f"{self.base}{path} answered what is no JSON: {error}") from error

    def _call(
        self,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str],
        timeout_s: float,
        query: Mapping[str, Any],
    ) -> tuple[bytes, Mapping[str, str]]:
        given = {name: value for name, value in query.items() if value is not None}
        url = f"{self.base}{path}{'?' if given else ''}{urlencode(given)}"
        sent = {**self._headers, **headers}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        request = urllib.request.Request(url, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            raise _problem(url, error) from None
        except (OSError, ValueError, HTTPException) as error:
            # HTTPException: the node went in the middle of its answer, or speaks something else.
            reason = getattr(error, "reason", error)
            raise LocalError(
                f"no answer from {url}: {reason}; is the node running? start one: millrace start"
            ) from error

    def get(self, path: str, **query: Any) -> Any:
        return self.call("GET", path, **query)

    def publish(
        self, topic: str, payload: bytes, *, producer: str | None = None, sequence: int = 0, **settings: Any
    ) -> dict[str, Any]:
        """Publish a message and say where it stands, once it is on disk. With a producer it may be repeated:
        the same sequence is stored once."""
        body = {
            "topic": topic,
            "payload": base64.b64encode(payload).decode(),
            "encoding": "base64",
            **settings,
        }
        headers = {}
        if producer is not None:
            headers = {"Millrace-Producer": producer, "Millrace-Sequence": str(sequence)}
        place: dict[str, Any] = self.call("POST", "/v1/publish", body, headers=headers)
        return place

    def take(
        self, group: str, *, count: int = 1, lease_ms: int = 30_000, wait_ms: int = 0, request: str = ""
    ) -> list[dict[str, Any]]:
        """The next messages of a durable group, leased: acknowledge them by their `receipt`."""
        body = {"count": count, "ack": "manual", "lease_ms": lease_ms, "wait_ms": wait_ms}
        headers = {"Millrace-Request-Id": request} if request else {}
        timeout_s = _TIMEOUT_S + wait_ms / 1000
        path = f"/v1/groups/{quote(group, safe='/:')}/take"
        taken: list[dict[str, Any]] = self.call("POST", path, body, headers=headers, timeout_s=timeout_s)[
            "messages"
        ]
        return taken

    def ack(self, group: str, *receipts: str) -> list[bool]:
        """Done with these; False for a message that was given to somebody else meanwhile."""
        return self._settle(group, "ack", {"receipts": receipts})

    def nack(self, group: str, *receipts: str, delay_ms: int = 0) -> list[bool]:
        """Not done: these come again."""
        return self._settle(group, "nack", {"receipts": receipts, "delay_ms": delay_ms})

    def _settle(self, group: str, how: str, body: dict[str, Any]) -> list[bool]:
        results: list[bool] = self.call("POST", f"/v1/groups/{quote(group, safe='/:')}/{how}", body)[
            "results"
        ]
        return results

    def streams(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get("/v1/streams")["streams"]
        return rows

    def blocks(self, stream: str, shard: int, start: int, end: int) -> tuple[bytes, int]:
        """Whole blocks of a shard's log from the one that holds `start` on, and where to go on."""
        path = f"/v1/streams/{quote(stream, safe='')}/shards/{shard}/blocks"
        answer, headers = self._call("GET", path, None, NO_HEADERS, _TIMEOUT_S, {"from": start, "to": end})
        return answer, int(headers["Millrace-Next-Offset"])

    def messages(
        self, stream: str, shard: int, start: int | str, *, filter: str = "#", wait_ms: int = 0
    ) -> dict[str, Any]:
        """One page of a shard's log."""
        query: dict[str, Any] = {"from": start, "limit": _PAGE, "filter": filter, "wait_ms": wait_ms}
        page: dict[str, Any] = self.call(
            "GET",
            f"/v1/streams/{quote(stream, safe='')}/shards/{shard}/messages",
            timeout_s=_TIMEOUT_S + wait_ms / 1000,
            **query,
        )
        return page


def follow(http: Http, filters: Sequence[str], start: int | str) -> Iterator[dict[str, Any] | None]:
    """Messages of these filters in every log, from `start` on (an offset, earliest or latest), then new ones.

    A stream's sealed shards are read to their end before the others, so that order holds per topic
    [rule 16]. A log that is shorter than the offset is read from its end on. What retention removes
    before it was read is passed over. Gives None after each round in which nothing new was found, so that a
    caller can look at the clock.
    """
    positions: dict[int, int | str] = {}
    wait_ms = 0
    while True:
        shards = [
            (row["name"], shard["shard"], shard["sealed"])
            for row in http.streams()
            for shard in sorted(row["shard_list"], key=_sealed_first)
        ]
        if not positions:
            positions = {shard: start for _, shard, _ in shards}
        found = False
        for stream, shard, is_sealed in shards:
            before: int | str | None = None
            # One page of each in turn, except that a sealed one, which ends, is read as far as it goes.
            while before is None or (is_sealed and positions.get(shard, 0) != before):
                before = positions.get(shard, 0)
                for message in _page(http, stream, shard, positions, start, filters, wait_ms):
                    found = True
                    yield message
        wait_ms = 0 if found else max(_WAIT_MS_LEAST, _ROUND_WAIT_MS // max(1, len(shards)))
        if not found:
            yield None


def _sealed_first(shard: Mapping[str, Any]) -> tuple[bool, int]:
    return not shard["sealed"], shard["shard"]


def _page(
    http: Http,
    stream: str,
    shard: int,
    positions: dict[int, Any],
    start: int | str,
    filters: Sequence[str],
    wait_ms: int,
) -> Iterator[dict[str, Any]]:
    """The next messages of one shard; a shard that was opened meanwhile begins at 0."""
    # With several filters the node sends all topics, and the choice is made here: one cursor for all of them.
    asked = filters[0] if len(filters) == 1 else "#"
    try:
        page = http.messages(stream, shard, positions.get(shard, 0), filter=asked, wait_ms=wait_ms)
    except HttpError as error:
        if error.status == 410:
            positions[shard] = error.fields["earliest_offset"]
            return
        if error.status == 409 and "next_offset" in error.fields:
            # Where reading has begun the node is only behind what another one said: it is asked again.
            if positions.get(shard) == start:
                positions[shard] = error.fields["next_offset"]
            return
        if error.status == 404:
            # Deleted since the list was made.
            return
        raise
    for message in page["messages"]:
        if len(filters) == 1 or any(_matches(filter, message["topic"]) for filter in filters):
            yield message
        positions[shard] = message["offset"] + 1
    positions[shard] = page["next_offset"]


def _matches(filter: str, topic: str) -> bool:
    from millrace.broker.topics.filters import matches

    return matches(filter, topic)


def _problem(url: str, error: urllib.error.HTTPError) -> HttpError:
    try:
        fields = json.loads(error.read())
        detail = str(fields["detail"])
    except (ValueError, KeyError, TypeError, OSError, HTTPException):
        fields, detail = {}, f"{url} answered {error.code} {error.reason}"
    return HttpError(error.code, detail, fields if isinstance(fields, dict) else {})
