"""Logins that wait for a worker, in the order in which they are to be checked: by rank, then as they came.

An attack brings hundreds in a second, and each costs the node what is done here on its event loop. So nothing
walks all that wait, except to find the first that may begin and whoever has most of them waiting.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

RANKS = 4


class Waiting(Protocol):
    address: str
    user: str
    number: int
    """In the order in which they came."""
    rank: int
    """0 comes first."""


Kind = TypeVar("Kind", bound=Waiting)
Key = TypeVar("Key")
_number = attrgetter("number")


class WaitingRoom(Generic[Kind]):
    def __init__(self) -> None:
        self._by_rank: tuple[list[Kind], ...] = tuple([] for _ in range(RANKS))
        # Each as they came.
        self._by_address: dict[str, list[Kind]] = {}
        self._by_pair: dict[tuple[str, str], list[Kind]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Kind]:
        for logins in self._by_rank:
            yield from logins

    def __contains__(self, login: Kind) -> bool:
        return login in self._by_pair.get((login.address, login.user), ())

    def add(self, login: Kind) -> None:
        insort(self._by_rank[login.rank], login, key=_number)
        self._by_address.setdefault(login.address, []).append(login)
        self._by_pair.setdefault((login.address, login.user), []).append(login)
        self._count += 1

    def remove(self, login: Kind) -> None:
        self._leave_rank(login)
        _take(self._by_address, login.address, login)
        _take(self._by_pair, (login.address, login.user), login)
        self._count -= 1

    def rank_again(self, login: Kind, rank: int) -> None:
        if rank != login.rank:
            self._leave_rank(login)
            login.rank = rank
            insort(self._by_rank[rank], login, key=_number)

    def _leave_rank(self, login: Kind) -> None:
        logins = self._by_rank[login.rank]
        del logins[bisect_left(logins, login.number, key=_number)]

    def of(self, address: str, user: str) -> list[Kind]:
        return list(self._by_pair.get((address, user), ()))

    def count_of(self, address: str, user: str) -> int:
        return len(self._by_pair.get((address, user), ()))

    def count_at(self, address: str) -> int:
        return len(self._by_address.get(address, ()))

    def last(self, address: str | None) -> Kind:
        """The one that would be checked after all others, of this address or of all."""
        if address is None:
            return next(logins[-1] for logins in reversed(self._by_rank) if logins)
        return max(self._by_address[address], key=lambda login: (login.rank, login.number))

    def largest_crowd(self, address: str | None) -> list[Kind]:
        """Those of the user who has most of them at one address, at this one or at any; as they came."""
        if address is None:
            return max(self._by_pair.values(), key=len)
        return max((self._by_pair[address, one.user] for one in self._by_address[address]), key=len)


def _take(lists: dict[Key, list[Kind]], key: Key, login: Kind) -> None:
    logins = lists[key]
    logins.remove(login)
    if not logins:
        del lists[key]
