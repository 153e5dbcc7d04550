"""How much one address, one user and all together may ask of a node: connections, and connects, messages and
their bytes in a second.

A connection beyond a bound is closed at once. Messages beyond one are not refused: their client is not read
until a later second, so nothing is lost and whoever is too fast becomes as fast as the bound. HTTP, which can
be told, is answered 429. What was taken beyond a bound in one go is owed to the seconds after it.
"""

from collections import Counter
from typing import Any

from millrace.broker.limits_reached import LimitsReached
from millrace.limits import UNFINISHED_CONNECTS_MAX, UNFINISHED_CONNECTS_PER_ADDRESS_MAX, Limits
from millrace.node.access.logins import address_of

_Key = tuple[str, str]


class Quotas:
    """One for all doors of a node. `begin_second` is called about once a second."""

    def __init__(self, limits: Limits, reached: LimitsReached) -> None:
        self._limits = limits
        self._reached = reached
        # Whoever came in, with its address, until it leaves.
        self._addresses: dict[Any, str] = {}
        self._connections: dict[str, int] = {}
        self._unfinished: dict[str, int] = {}
        self._unfinished_count = 0
        self._is_unfinished: set[Any] = set()
        # Behind a balancer that has yet to say their address: whether they have begun.
        self._unnamed: dict[Any, bool] = {}
        self._spent: Counter[_Key] = Counter()
        self._most: dict[str, int] = {
            "connects_per_s": limits.connects_per_s_max,
            "address_connects_per_s": limits.address_connects_per_s_max,
            "user_connects_per_s": limits.user_connects_per_s_max,
            "publishes_per_s": limits.publishes_per_s_max,
            "address_publishes_per_s": limits.address_publishes_per_s_max,
            "user_publishes_per_s": limits.user_publishes_per_s_max,
            "publish_bytes_per_s": limits.publish_bytes_per_s_max,
            "address_publish_bytes_per_s": limits.address_publish_bytes_per_s_max,
            "user_publish_bytes_per_s": limits.user_publish_bytes_per_s_max,
        }
        self.paces = any(most for bound, most in self._most.items() if "publish" in bound)
        """Whether publishing has a bound at all: it is asked for every chunk."""
        self._bounds_connects = bool(limits.connects_per_s_max or limits.address_connects_per_s_max)

    # ------------------------------------------------------------------------------- connections

    def admits(self, connection: Any, peer: Any, *, is_finished: bool = False) -> bool:
        """Whether a connection may begin. It counts from now on until it left, and as one that has yet to
        say who it is until it is accepted, unless `is_finished`. May be asked again."""
        if connection in self._addresses:
            return True
        if connection in self._unnamed:
            self._unnamed[connection] = True
            return True
        address = address_of(peer)
        bound = self._full(address, is_finished)
        self._addresses[connection] = address
        self._connections[address] = self._connections.get(address, 0) + 1
        if not is_finished:
            self._is_unfinished.add(connection)
            self._unfinished[address] = self._unfinished.get(address, 0) + 1
            self._unfinished_count += 1
        if bound is not None:
            self._reached.count(bound)
        return bound is None

    def will_be_named(self, connection: Any) -> None:
        """Its address is that of a balancer, which counts for nothing."""
        self._unnamed[connection] = False

    def named(self, connection: Any, peer: Any) -> bool:
        """The balancer told; whether the connection may go on."""
        return not self._unnamed.pop(connection, False) or self.admits(connection, peer)

    def _full(self, address: str, is_finished: bool) -> str | None:
        most = self._limits.address_connections_max
        if most and self._connections.get(address, 0) >= most:
            return "address_connections"
        if self._bounds_connects:
            for bound, key in (("connects_per_s", ""), ("address_connects_per_s", address)):
                # What is refused is not owed: who comes again later is let in.
                if 0 < self._most[bound] <= self._spent[bound, key]:
                    return bound
            self._spend({"connects_per_s": "", "address_connects_per_s": address}, 1)
        if is_finished:
            return None
        if self._unfinished.get(address, 0) >= UNFINISHED_CONNECTS_PER_ADDRESS_MAX:
            return "address_unfinished_connects"
        return "unfinished_connects" if self._unfinished_count >= UNFINISHED_CONNECTS_MAX else None

    def admits_user(self, username: str | None) -> bool:
        """Whether one more connection of a user may begin, who has proved to be that user: counted before,
        strangers could keep a user out by the name alone."""
        if username is None:
            return True
        bound = "user_connects_per_s"
        if 0 < self._most[bound] <= self._spent[bound, username]:
            self._reached.count(bound)
            return False
        self._spend({bound: username}, 1)
        return True

    def address(self, connection: Any) -> str:
        """Where a connection that was admitted came from."""
        return self._addresses.get(connection, "")

    def accepted(self, connection: Any) -> None:
        """It said who it is."""
        if connection in self._is_unfinished:
            self._is_unfinished.discard(connection)
            self._unfinished_count -= 1
            _less(self._unfinished, self._addresses[connection])

    def left(self, connection: Any) -> None:
        self.accepted(connection)
        self._unnamed.pop(connection, None)
        address = self._addresses.pop(connection, None)
        if address is not None:
            _less(self._connections, address)

    # ---------------------------------------------------------------------------------- messages

    def published(self, connection: Any, username: str | None, count: int, size_bytes: int) -> bool:
        """Count messages of a connection; whether it is too fast."""
        return self._publish(self._addresses.get(connection, ""), username, count, size_bytes)

    def holds(self, connection: Any, username: str | None) -> bool:
        """Whether this connection has nothing left in this second."""
        if not self.paces:
            return False
        return self._spent_by(self._addresses.get(connection, ""), username) is not None

    def takes_request(self, peer: Any, username: str | None, count: int, size_bytes: int) -> bool:
        """The same for a request that can be told to come again."""
        if not self.paces:
            return True
        address = address_of(peer)
        bound = self._spent_by(address, username)
        if bound is not None:
            self._reached.count(bound)
            return False
        self._publish(address, username, count, size_bytes)
        return True

    def _publish(self, address: str, username: str | None, count: int, size_bytes: int) -> bool:
        is_over = self._spend(_publisher("publishes_per_s", address, username), count)
        return self._spend(_publisher("publish_bytes_per_s", address, username), size_bytes) or is_over

    def _spent_by(self, address: str, username: str | None) -> str | None:
        """The bound of which nothing is left."""
        for what in ("publishes_per_s", "publish_bytes_per_s"):
            for bound, key in _publisher(what, address, username).items():
                if 0 < self._most[bound] <= self._spent[bound, key]:
                    return bound
        return None

    def _spend(self, keys: dict[str, str], count: int) -> bool:
        is_over = False
        for bound, key in keys.items():
            most = self._most[bound]
            if most:
                self._spent[bound, key] += count
                if self._spent[bound, key] > most:
                    self._reached.count(bound)
                    is_over = True
        return is_over

    def begin_second(self) -> None:
        for key, spent in list(self._spent.items()):
            # What was taken in one go is paid over some seconds, and not for ever.
            left = min(spent - self._most[key[0]], 10 * self._most[key[0]])
            if left > 0:
                self._spent[key] = left
            else:
                del self._spent[key]


def _publisher(what: str, address: str, username: str | None) -> dict[str, str]:
    """The bounds that whoever publishes counts for."""
    keys = {what: "", f"address_{what}": address}
    return keys if username is None else {**keys, f"user_{what}": username}


def _less(counts: dict[str, int], key: str) -> None:
    count = counts[key] - 1
    if count > 0:
        counts[key] = count
    else:
        del counts[key]
