"""The writes of a leaderless stream's machine on their way to the logs of origins, in their order."""

import logging
from collections import deque
from collections.abc import Callable

from millrace.driver.effects import EffectDriver
from millrace.node.leaderless.origin_logs import OriginFiles, OriginLog
from millrace.replication.leaderless.messages import (
    LeaderlessEffect,
    LeaderlessEvent,
    Origin,
    PersistLog,
)
from millrace.storage.block import Block
from millrace.storage.disk import DiskFull

log = logging.getLogger("millrace.leaderless")


class OriginWriter:
    """Implements `WriteLog`. `open` once, before the first write."""

    def __init__(
        self,
        files: OriginFiles,
        *,
        state_of: Callable[[bytes], bytes],
        on_log: Callable[[OriginLog], None],
    ) -> None:
        """`state_of` makes of the machine's state what is saved; `on_log` hears of every log that is written
        to."""
        self._files = files
        self._state_of = state_of
        self._on_log = on_log
        self._unwritten: deque[PersistLog] = deque()
        self._is_out_of_space = False
        self._stamped: dict[tuple[Origin, int], Block] = {}
        self._driver: EffectDriver[LeaderlessEvent, LeaderlessEffect]

    def open(self, driver: EffectDriver[LeaderlessEvent, LeaderlessEffect]) -> None:
        """This driver hears of what is on disk."""
        self._driver = driver

    @property
    def is_waiting(self) -> bool:
        """Whether writes wait for room: `hand_out` tries again."""
        return bool(self._unwritten)

    def write(self, write: PersistLog) -> None:
        self._unwritten.append(write)
        if len(self._unwritten) == 1:
            self.hand_out()

    def hand_out(self) -> None:
        """Hand out writes in their order. One that finds no room waits, and all behind it do: what they make
        durable would be reported for those before them as well."""
        while self._unwritten:
            write = self._unwritten[0]
            state = None if write.state is None else self._state_of(write.state)
            try:
                stamped = self._files.submit(write, state, self._driver.persisted)
            except DiskFull as error:
                if not self._is_out_of_space:
                    log.error("%s: a write waits for room: %s", self._files.stream.spec.name, error)
                self._is_out_of_space = True
                return
            self._is_out_of_space = False
            self._unwritten.popleft()
            self._on_log(self._files.logs[write.origin])
            for block in stamped:
                self._stamped[write.origin, block.header.index] = block
            if not self._files.is_durable:
                self._driver.persisted(write.number)

    def take(self, origin: Origin, index: int) -> Block:
        """The block that this entry is, once it is on disk."""
        return self._stamped.pop((origin, index))
