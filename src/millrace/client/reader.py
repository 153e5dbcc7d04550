"""Reading logs by offset over HTTP: what was published before, and what comes.

`follow` is for scripts, `read` for asyncio programs: it makes the same requests in a worker thread.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from millrace.broker.topics.filters import matches
from millrace.client.http import Http
from millrace.client.http_node import HttpError

_PAGE = 1_000
# At the end of every log: how long a round of requests waits, over all shards together.
_ROUND_WAIT_MS = 2_000
_WAIT_MS_LEAST = 50


async def read(
    http: Http, filters: Sequence[str], start: int | str = "earliest"
) -> AsyncGenerator[dict[str, Any], None]:
    """Messages of these filters in every log, from `start` on (an offset, earliest or latest), then new ones
    as they come. Each is what the HTTP interface says of a message: topic, payload, shard, offset, time."""
    messages = follow(http, filters, start)
    while True:
        for message in await asyncio.to_thread(_next_messages, messages):
            yield message


def _next_messages(messages: Iterator[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """The messages that are there now, after at least one round of waiting for them."""
    page: list[dict[str, Any]] = []
    for message in messages:
        if message is None:
            break
        page.append(message)
        if len(page) == _PAGE:
            break
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
        if len(filters) == 1 or any(matches(filter, message["topic"]) for filter in filters):
            yield message
        positions[shard] = message["offset"] + 1
    positions[shard] = page["next_offset"]
