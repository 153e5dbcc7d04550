"""The room that is left on the node's disk: below a floor the logs take nothing more."""

import logging

from millrace.node.replicas.replicas import Replicas

log = logging.getLogger("millrace.streams")


class DiskSpace:
    """Whether there is room. `check` is called about once a second."""

    def __init__(self, replicas: Replicas, free_bytes_min: int) -> None:
        self._replicas = replicas
        self._free_bytes_min = free_bytes_min
        self._is_low = False

    def check(self) -> None:
        """Refuse what would fill the disk to the last byte."""
        if not self._replicas.is_open:
            return
        free, floor = self._replicas.directory.free_bytes(), self._free_bytes_min
        if not self._is_low and free < floor:
            self._is_low = True
            log.error("%d bytes free on disk, below %d: publishing to logs is refused", free, floor)
        elif self._is_low and free > floor + floor // 4:
            self._is_low = False
            log.warning("there is room on the disk again")

    @property
    def is_refusing(self) -> bool:
        """Whether nothing more is taken into the logs."""
        return self._is_low or (self._replicas.is_open and self._replicas.syncer.is_full)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more leaves the disk above its floor, as it is at this moment."""
        free_bytes = self._replicas.directory.free_bytes()
        return not self.is_refusing and free_bytes - size_bytes >= self._free_bytes_min
