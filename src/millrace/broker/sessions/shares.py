"""What the sessions of one user take of a node, those that began at one address, and those of all together:
how many there are, how many are connected, what their filters weigh, and bytes that wait for them in memory.

A message that waits for many sessions counts for each of them, though it lies in memory once: whoever makes
others wait for it pays for all.
"""

from millrace.broker.sessions.session import Session
from millrace.broker.sessions.share import Place, Share
from millrace.limits import NODE_FILTER_BYTES_MAX, SESSION_FILTER_BYTES_MAX, Limits


class Shares:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.total = Share()
        # Anonymous clients share one, which has no bounds of its own.
        self._by_user: dict[str | None, Share] = {}
        self._by_address: dict[str, Place] = {}
        self._counts_addresses = bool(limits.address_sessions_max or limits.address_filter_bytes_max)

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

    def place(self, session: Session, address: str) -> None:
        """The session begins, or goes on, at this address; at none where it ends. One that is restored from
        its record counts for none until its client is back."""
        old = session.place
        if not self._counts_addresses or address == (old.address if old is not None else ""):
            return
        place = self._by_address.get(address)
        if place is None and address:
            place = self._by_address[address] = Place(address)
        session.stand(place)
        if old is not None and not old.sessions:
            del self._by_address[old.address]

    def full(self, username: str | None, address: str, session: Session | None) -> str | None:
        """The bound that keeps a client from one more connection, and one more session unless it has this."""
        limits = self._limits
        place = self._by_address.get(address)
        is_new_here = session is None or session.place is not place
        if place is not None and is_new_here and 0 < limits.address_sessions_max <= place.sessions:
            return "address_sessions"
        share = None if username is None else self._by_user.get(username)
        if share is None:
            return None
        is_connected = session is not None and session.connection is not None
        if 0 < limits.user_connections_max <= share.connections and not is_connected:
            return "user_connections"
        if 0 < limits.user_sessions_max <= share.sessions and session is None:
            return "user_sessions"
        return None

    def room(self, session: Session) -> tuple[int, int]:
        """How many more subscriptions this session may have, and what their filters may weigh together,
        before `filled` names a bound."""
        limits = self._limits
        filter_bytes = min(
            SESSION_FILTER_BYTES_MAX - session.filter_bytes, NODE_FILTER_BYTES_MAX - self.total.filter_bytes
        )
        if session.username is not None and limits.user_filter_bytes_max:
            filter_bytes = min(filter_bytes, limits.user_filter_bytes_max - session.share.filter_bytes)
        if session.place is not None and limits.address_filter_bytes_max:
            filter_bytes = min(filter_bytes, limits.address_filter_bytes_max - session.place.filter_bytes)
        return max(0, limits.subscriptions_max - len(session.subscriptions)), filter_bytes

    def filled(self, session: Session, weight: int) -> str | None:
        """The bound that a session exceeds with one more subscription, whose filter has this weight."""
        limits = self._limits
        if len(session.subscriptions) >= limits.subscriptions_max:
            return "subscriptions"
        if session.filter_bytes + weight > SESSION_FILTER_BYTES_MAX:
            return "session_filter_bytes"
        if self.total.filter_bytes + weight > NODE_FILTER_BYTES_MAX:
            return "node_filter_bytes"
        if session.username is not None and (
            0 < limits.user_filter_bytes_max < session.share.filter_bytes + weight
        ):
            return "user_filter_bytes"
        if session.place is not None and (
            0 < limits.address_filter_bytes_max < session.place.filter_bytes + weight
        ):
            return "address_filter_bytes"
        return None

    def too_heavy(self, username: str | None, share: Share, size_bytes: int) -> str | None:
        """The bound by which no more bytes may wait for a session."""
        limits = self._limits
        if 0 < limits.queued_total_bytes_max < self.total.queued_bytes + size_bytes:
            return "queued_total_bytes"
        if username is not None and 0 < limits.user_queued_bytes_max < share.queued_bytes + size_bytes:
            return "user_queued_bytes"
        return None
