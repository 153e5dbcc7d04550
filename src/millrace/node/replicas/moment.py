"""Something that happens now and then, for those who wait until it has changed what they look at."""

import asyncio


class Moment:
    """Look first, then wait for the `next` one and look again: no `await` in between, and none is missed."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def come(self) -> None:
        """Wake all who wait; who waits from now on waits for the next one."""
        event, self._event = self._event, asyncio.Event()
        event.set()

    async def next(self) -> None:
        await self._event.wait()
