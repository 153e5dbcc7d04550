"""What one user, one address or all together have of a node in sessions."""


class Share:
    """Of one user; `total` is that of all."""

    __slots__ = ("_total", "connections", "filter_bytes", "queued_bytes", "sessions")

    def __init__(self, total: "Share | None" = None) -> None:
        self._total = total
        self.sessions = self.connections = self.queued_bytes = self.filter_bytes = 0

    def hold(self, size_bytes: int) -> None:
        """More bytes wait, or fewer."""
        self.queued_bytes += size_bytes
        if self._total is not None:
            self._total.queued_bytes += size_bytes

    def weigh(self, filter_bytes: int) -> None:
        """Filters weigh more, or less."""
        self.filter_bytes += filter_bytes
        if self._total is not None:
            self._total.filter_bytes += filter_bytes


class Place(Share):
    """Of one address."""

    __slots__ = ("address",)

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address


NO_SHARE = Share()
"""Of a session that belongs to no broker."""
