"""`millrace sub --from`: the messages of a log from an offset on, by HTTP."""

import base64
import time
from collections.abc import Callable, Sequence
from typing import Any

import typer

from millrace.cli.shared.contexts import http_urls
from millrace.cli.shared.http_options import door


def read(
    filters: Sequence[str],
    start: str,
    urls: Sequence[str] | None,
    *,
    count: int | None,
    timeout_s: float | None,
    write: Callable[[dict[str, Any], bytes], None],
) -> int:
    """Hand messages to `write`, with their payload as bytes, until there were enough or the time is over; how
    many there were."""
    from millrace.client.reader import follow

    where: int | str = int(start) if start.isascii() and start.isdigit() else start
    if not isinstance(where, int) and where not in ("earliest", "latest"):
        raise typer.BadParameter(f"{start!r} is not earliest, latest or an offset", param_hint="--from")
    url = ",".join(http_urls(urls))
    end_s = None if timeout_s is None else time.monotonic() + timeout_s
    seen = 0
    for message in follow(door(url), filters, where):
        if message is not None:
            write(message, _payload(message))
            seen += 1
        if (count is not None and seen >= count) or (end_s is not None and time.monotonic() >= end_s):
            break
    return seen


def _payload(message: dict[str, Any]) -> bytes:
    text: str = message["payload"]
    return base64.b64decode(text) if message.get("encoding") == "base64" else text.encode()
