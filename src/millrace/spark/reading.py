"""Reading a stream from a cluster: any replica serves, and a node that is down is passed over.

What one node does not have another may have: a replica can lag behind, can have begun from a snapshot, which
holds no messages, or can be missing. Only an answer that no node could better ends the search: offsets that
every node has deleted, or refused access.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote, urlencode

from millrace.client.http import Http, Timeouts, shard_path, stream_path
from millrace.client.http_node import Answer, AnswerBody, HttpNode, NoAnswer, TimeLimit
from millrace.errors import LocalError
from millrace.spark.offsets import Extent

PATIENCE_S = 10.0
_ANSWER_TIMEOUT_S = 30.0
_STREAMS = "/v1/streams"

StreamRow = Mapping[str, Any]
"""What a node says about a stream and the shards of it that the node holds."""


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


class _BeginsLater(NoAnswer):
    """The log of this node begins above the offset that was asked for, at `first`."""

    def __init__(self, first: int) -> None:
        super().__init__(f"its log begins at {first}")
        self.first = first


class _Missing(NoAnswer):
    """This node knows no such stream or shard."""


class _AllBeginLater(LocalError):
    """No node has the offset that was asked for; the log that begins first begins at `first`."""

    def __init__(self, first: int) -> None:
        super().__init__(f"the logs begin at {first}")
        self.first = first


class _AllMissing(LocalError):
    """Every node answered, and none knows the shard."""


class ClusterReader:
    """Every call is bounded in time; LocalError says what each node answered."""

    def __init__(
        self,
        urls: Sequence[str],
        password: str | None = None,
        patience_s: float = PATIENCE_S,
        *,
        connect_s: float | None = None,
        request_s: float | None = None,
        ca_file: str | None = None,
    ) -> None:
        standard = Timeouts(answer_s=_ANSWER_TIMEOUT_S, patience_s=patience_s)
        timeouts = standard.changed(connect_s, request_s)
        self.http = Http(urls, password=password, timeouts=timeouts, ca_file=ca_file)

    def __enter__(self) -> "ClusterReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.http.close()

    def extents(self, *streams: str) -> dict[int, Extent]:
        """The shards of these streams, as far as the nodes know them. One node may hold some of the shards
        only, and lag behind in them, so several are asked at the same time."""
        is_one = len(streams) == 1
        rows = self._rows(stream_path(streams[0]) if is_one else _STREAMS, streams.__contains__)
        known = {row["name"] for row in rows} if not is_one else set(streams)
        for name in streams:
            if name not in known:
                raise LocalError(f"there is no stream {name!r}")
        found = _merged(rows, streams[0])
        for row in rows:
            if row["replication"] == "routed" and not row["shard_list"]:
                name = row.get("name", streams[0])
                raise LocalError(f"stream {name!r} is routed: stored nowhere, Spark cannot read it")
        return found

    def extents_matching(self, pattern: str) -> dict[int, Extent]:
        """The same for all streams whose names match the pattern as a whole; there may be none yet."""
        rows = self._rows(_STREAMS, lambda name: re.fullmatch(pattern, name) is not None)
        return _merged(rows, "")

    def _rows(self, path: str, wants: Callable[[str], bool]) -> list[StreamRow]:
        """What the nodes say about the one stream at this path, or about those of all that are wanted."""

        def ask(node: HttpNode, limit: TimeLimit) -> list[StreamRow]:
            fields = _checked(node.get(limit, path)).json()
            return [row for row in fields["streams"] if wants(row["name"])] if path == _STREAMS else [fields]

        answers = self.http.every(
            ask,
            what="the streams" if path == _STREAMS else f"stream {unquote(path.rpartition('/')[2])!r}",
            conclude=_conclude_missing,
            suffices=lambda answers: _is_enough(answers, len(self.http.urls)),
        )
        return [row for answer in answers for row in answer]

    def blocks(
        self, stream: str, shard: int, start: int, end: int, room: bytearray | None = None
    ) -> tuple[AnswerBody, int]:
        """Whole blocks, beginning with the one that holds `start`, and the offset to continue from, which is
        higher. They are in `room` if they fit there."""
        path = f"{shard_path(stream, shard, 'blocks')}?{urlencode({'from': start, 'to': end})}"

        def ask(node: HttpNode, limit: TimeLimit) -> tuple[AnswerBody, int]:
            answer = node.get(limit, path, room)
            if answer.status == 410:
                raise _BeginsLater(int(answer.json()["earliest_offset"]))
            after = int(_checked(answer).headers["Millrace-Next-Offset"])
            if after <= start:
                raise NoAnswer(f"it has nothing at offset {start} yet")
            return answer.body, after

        try:
            return self.http.first(ask, what=f"stream {stream!r}, shard {shard}", conclude=_conclude_gone)
        except _AllBeginLater as error:
            raise Expired(stream=stream, shard=shard, asked=start, earliest=error.first) from None
        except _AllMissing:
            raise Expired(stream=stream, shard=shard, asked=start, earliest=None) from None

    def offset_at(self, stream: str, shard: int, extent: Extent, time_us: int) -> int:
        """The first offset whose message is from this time or later, within the extent."""
        path = f"{shard_path(stream, shard, 'offset')}?{urlencode({'time_us': time_us})}"

        def ask(node: HttpNode, limit: TimeLimit) -> int:
            fields = _checked(node.get(limit, path)).json()
            offset = int(fields["offset"])
            if offset == int(fields["next_offset"]) < extent.next:
                raise NoAnswer("it lags behind")
            if offset == int(fields["first_offset"]) > extent.first:
                raise _BeginsLater(offset)
            return offset

        try:
            found = self.http.first(ask, what=f"stream {stream!r}, shard {shard}", conclude=_conclude_gone)
        except _AllBeginLater as error:
            found = error.first
        return min(max(found, extent.first), extent.next)

    def advance(
        self, group: str, filters: Sequence[str], streams: Iterable[str], position: Mapping[int, int]
    ) -> None:
        """Tell a durable group how far a query has come. A group that does not exist is created on these
        filters, or on those of the streams. LocalError if that is refused or nobody answers."""
        path = f"/v1/groups/{quote(group, safe='')}"
        body = {"positions": {str(shard): offset for shard, offset in position.items()}}

        def ask(node: HttpNode, limit: TimeLimit) -> None:
            answer = node.post_json(limit, f"{path}/advance", body)
            if answer.status == 404:
                wanted = list(filters)
                for stream in streams if not filters else ():
                    wanted += _checked(node.get(limit, stream_path(stream))).json()["filters"] or ["#"]
                created = node.post_json(
                    limit, "/v1/groups", {"name": group, "filters": wanted or ["#"], "start": "earliest"}
                )
                # Somebody else may have created it in between.
                if created.status != 409:
                    _checked(created)
                answer = node.post_json(limit, f"{path}/advance", body)
            _checked(answer)

        self.http.first(ask, what=f"group {group!r}", conclude=_conclude_gone)


def _merged(rows: Sequence[StreamRow], stream: str) -> dict[int, Extent]:
    found: dict[int, Extent] = {}
    for row in rows:
        for shard in row["shard_list"]:
            _merge(found, shard, row.get("name", stream))
    return found


def _is_enough(answers: Sequence[Sequence[StreamRow]], nodes: int) -> bool:
    """Whether these answers say all that the others could add: so many nodes answered that every shard has a
    replica among them, and for every shard that is written to its leader is among them too."""
    rows = [row for answer in answers for row in answer]
    replicas = min((int(row.get("replicas", 1)) for row in rows), default=1)
    if not rows or len(answers) <= max(nodes // 2, nodes - replicas):
        return False
    open_shards: dict[str, set[int]] = {}
    led: set[int] = set()
    for row in rows:
        if row["replication"] != "quorum":
            return False
        for shard in row["shard_list"]:
            if not shard.get("sealed"):
                open_shards.setdefault(row.get("name", ""), set()).add(shard["shard"])
                led |= {shard["shard"]} if shard.get("role") == "leader" else set()
    return all(
        len(shards := open_shards.get(row.get("name", ""), set())) == row.get("shards") and shards <= led
        for row in rows
        if row.get("capture") != "none"
    )


def _conclude_missing(failures: Sequence[NoAnswer], is_last: bool) -> None:
    """A living node's word that there is no such stream is worth more than a dead node's silence."""
    for failure in failures:
        if isinstance(failure, _Missing):
            raise LocalError(str(failure))


def _conclude_gone(failures: Sequence[NoAnswer], is_last: bool) -> None:
    """What every node lacks is gone; a node that is away may still have it for a while."""
    missing = sum(isinstance(failure, _Missing) for failure in failures)
    begins = [failure.first for failure in failures if isinstance(failure, _BeginsLater)]
    if missing == len(failures):
        raise _AllMissing("; ".join(f"{failure.url}: {failure}" for failure in failures))
    if begins and (is_last or len(begins) + missing == len(failures)):
        raise _AllBeginLater(min(begins))


def _checked(answer: Answer) -> Answer:
    """The answer if it is a good one. LocalError for a refusal, which no other node would better."""
    if answer.status < 300:
        return answer
    detail = str(answer.problem())
    if answer.status == 404:
        raise _Missing(detail)
    if answer.status in (409, 429) or answer.status >= 500:
        raise NoAnswer(detail)
    raise LocalError(detail)


def _merge(found: dict[int, Extent], row: Mapping[str, Any], stream: str) -> None:
    """Add what one node knows of a shard: the highest end and the lowest first offset count. A node that has
    nothing, because it was added just now, does not say where the others begin."""
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
        stream=stream,
        is_sealed=known.is_sealed or bool(row.get("sealed")),
    )
