"""`millrace pub --every` and `millrace sub --backup`: the clients that know two brokers."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.cli.shared.contexts import PASSWORD_VARIABLE

if TYPE_CHECKING:
    from millrace.client.subscriber import Sourced

_Outcome = TypeVar("_Outcome")


def publish(
    topic: str,
    payloads: Iterator[bytes],
    *,
    urls: list[str],
    every_s: float,
    keep_last: int,
    **options: Any,
) -> dict[str, int]:
    """Publish on the interval until the payloads end; what became of them."""
    from millrace.client.publisher import Publisher

    async def paced() -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while (payload := await loop.run_in_executor(None, next, payloads, None)) is not None:
            yield payload

    async def run() -> dict[str, int]:
        async with Publisher(
            urls,
            interval_s=every_s,
            keep_last=keep_last,
            on_switch=lambda url: print(f"publishing to {url}", file=sys.stderr),
            password=os.environ.get(PASSWORD_VARIABLE),
            **options,
        ) as publisher:
            await publisher.run(topic, paced())
            return {
                "acknowledged": publisher.acknowledged,
                "given_up": publisher.given_up,
                "switches": publisher.switches,
                "refused": publisher.refused,
            }

    return _run(run())


def subscribe(
    filters: list[str],
    *,
    primary: str,
    backup: str,
    qos: int,
    count: int | None,
    timeout_s: float | None,
    write: "Callable[[Sourced], None]",
    **options: Any,
) -> int:
    """Hand on messages of both brokers, each once; how many came."""
    from millrace.client.subscriber import Subscriber

    async def run() -> int:
        seen = 0
        async with Subscriber(
            primary, backup, *filters, qos=qos, password=os.environ.get(PASSWORD_VARIABLE), **options
        ) as messages:
            try:
                async with asyncio.timeout(timeout_s):
                    while count is None or seen < count:
                        write(await messages.get())
                        seen += 1
            except TimeoutError:
                pass
        return seen

    return _run(run())


def _run(work: Coroutine[Any, Any, _Outcome]) -> _Outcome:
    """What the user got wrong becomes a ConfigError, which is exit status 2."""
    from millrace.errors import ConfigError, LocalError

    try:
        return asyncio.run(work)
    except LocalError as error:
        raise ConfigError(str(error)) from error
