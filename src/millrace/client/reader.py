"""Reading logs by offset from an asyncio program.

The requests are those of `millrace.client.http.follow`, made in a worker thread, a page at a time.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from millrace.client.http import Http, follow

_PAGE = 1_000


async def read(
    http: Http, filters: Sequence[str], start: int | str = "earliest"
) -> AsyncGenerator[dict[str, Any], None]:
    """Messages of these filters in every log, from `start` on (an offset, earliest or latest), then new ones
    as they come. Each is what the HTTP door says of a message: topic, payload, shard, offset, time."""
    messages = follow(http, filters, start)
    while True:
        for message in await asyncio.to_thread(_page, messages):
            yield message


def _page(messages: Iterator[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """What is there now, at least after one round of waiting for it."""
    page: list[dict[str, Any]] = []
    for message in messages:
        if message is None:
            break
        page.append(message)
        if len(page) == _PAGE:
            break
    return page
