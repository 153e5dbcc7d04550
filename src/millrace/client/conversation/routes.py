"""Which subscription of this client a message is for.

Each subscription has a number that goes with it as subscription identifier (MQTT 5, 3.8.2.1.2), and the
server names the numbers with each message. Numbers are not believed blindly: a session that outlived an
earlier process may still carry that process's. Where the server names none (MQTT 3.1.1, or identifiers are
not available) the filters decide alone; a server that sends one copy for each overlapping subscription then
makes each of them see each copy.
"""

from collections.abc import Iterator

from millrace.broker.topics.filters import levels_match
from millrace.broker.topics.trees import split_share
from millrace.errors import LocalError
from millrace.types import Subscription

# Topics whose answer is remembered; beyond it the memory starts afresh.
_CACHED_MAX = 10_000


class Route:
    """One subscription: a number and its filters."""

    __slots__ = ("_levels", "granted", "leaving", "number", "shared", "subscriptions")

    def __init__(self, number: int, subscriptions: tuple[Subscription, ...]) -> None:
        self.number = number
        self.subscriptions = subscriptions
        self.shared = any(split_share(s.filter)[0] for s in subscriptions)
        self._levels = [split_share(s.filter)[1].split("/") for s in subscriptions]
        # SUBACK came: after a lost session it has to be made again.
        self.granted = False
        # UNSUBSCRIBE is on its way; what still arrives is for nobody.
        self.leaving = False

    def takes(self, topic_levels: list[str]) -> bool:
        return any(levels_match(levels, topic_levels) for levels in self._levels)


class Routes:
    def __init__(self) -> None:
        self._routes: dict[int, Route] = {}
        self._filters: set[str] = set()
        self._cache: dict[tuple[str, tuple[int, ...]], tuple[Route, ...]] = {}

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def get(self, number: int) -> Route | None:
        return self._routes.get(number)

    def add(self, route: Route) -> None:
        """A server knows a filter once for each client: the second subscription would replace the first."""
        filters = [s.filter for s in route.subscriptions]
        for at, text in enumerate(filters):
            if text in self._filters or text in filters[:at]:
                raise LocalError(f"this client is already subscribed to {text}")
        self._filters.update(filters)
        self._routes[route.number] = route
        self._cache.clear()

    def remove(self, route: Route) -> None:
        if self._routes.pop(route.number, None) is not None:
            self._filters.difference_update(s.filter for s in route.subscriptions)
            self._cache.clear()

    def find(self, topic: str, identifiers: tuple[int, ...]) -> tuple[Route, ...]:
        """The subscriptions a message on this topic is for."""
        key = (topic, identifiers)
        found = self._cache.get(key)
        if found is None:
            levels = topic.split("/")
            matching = [route for route in self._routes.values() if route.takes(levels)]
            named = [route for route in matching if route.number in identifiers]
            found = tuple(named or matching)
            if len(self._cache) >= _CACHED_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found
