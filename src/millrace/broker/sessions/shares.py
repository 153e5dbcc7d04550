"""What the sessions of one user take of a node, and those of all together: how many there are, how many are
connected, and bytes that wait for them in memory.

A message that waits for many sessions counts for each of them, though it lies in memory once: whoever makes
others wait for it pays for all.
"""

from millrace.limits import Limits


class Share:
    """Of one user; `total` is that of all."""

    __slots__ = ("_total", "connections", "queued_bytes", "sessions")

    def __init__(self, total: "Share | None" = None) -> None:
        self._total = total
        self.sessions = self.connections = self.queued_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """More bytes wait, or fewer."""
        self.queued_bytes += size_bytes
        if self._total is not None:
            self._total.queued_bytes += size_bytes


NO_SHARE = Share()
"""Of a session that belongs to no broker."""


class Shares:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.total = Share()
        # Anonymous clients share one, which has no bounds of its own.
        self._by_user: dict[str | None, Share] = {}

    def join(self, username: str | None) -> Share:
        """The share that one more session counts for."""
        share = self._by_user.get(username)
        if share is None:
            share = self._by_user[username] = Share(self.total)
        share.sessions += 1
        return share

    def leave(self, username: str | None, share: Share) -> None:
        share.sessions -= 1
        if not share.sessions and self._by_user.get(username) is share:
            del self._by_user[username]

    def full(self, username: str | None, *, is_new: bool, is_connected: bool) -> str | None:
        """The bound that keeps this user from one more connection; `is_new`: and one more session;
        `is_connected`: it takes the place of another one."""
        share = None if username is None else self._by_user.get(username)
        if share is None:
            return None
        limits = self._limits
        if 0 < limits.user_connections_max <= share.connections and not is_connected:
            return "user_connections"
        if 0 < limits.user_sessions_max <= share.sessions and is_new:
            return "user_sessions"
        return None

    def too_heavy(self, username: str | None, share: Share, size_bytes: int) -> str | None:
        """The bound by which no more bytes may wait for a session."""
        limits = self._limits
        if 0 < limits.queued_total_bytes_max < self.total.queued_bytes + size_bytes:
            return "queued_total_bytes"
        if username is not None and 0 < limits.user_queued_bytes_max < share.queued_bytes + size_bytes:
            return "user_queued_bytes"
        return None
