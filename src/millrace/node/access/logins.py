"""Which password is checked next: a bounded queue before the few workers that hash.

A hash costs tens of milliseconds, so whoever sends wrong passwords could keep everybody else waiting. Four
things prevent it. At most one check at a time runs for an address and for a user. After some failures the
next check for that address, and that user, begins a moment later. Checks of users who exist come before those
of names that do not, and checks without failures before those with some. And the queue is bounded: what finds
no room is told that the node is busy, at no cost, and a login whose client hung up leaves the queue.

A user who logged in from an address before is not slowed down there by what others do from elsewhere. The
delays are short: they cost whoever guesses a factor of ten or more, and an honest user less than a second.
"""

import ipaddress
import math
from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, Protocol

from millrace.limits import LOGINS_WAITING_MAX, LOGINS_WAITING_PER_ADDRESS_MAX
from millrace.node.access.waiting import WaitingRoom

# As many failures cost nothing: people mistype.
_FREE_FAILURES = 3
_DELAY_S_LEAST, _DELAY_S_MOST = 0.05, 0.5
_FORGIVEN_S = 60.0
# Addresses, users and pairs of them of which failures and successes are remembered, each.
_REMEMBERED_MAX = 10_000
_ADDRESSES_KEPT = 1024


class Outcome(Enum):
    RIGHT = "right"
    WRONG = "wrong"
    BUSY = "busy"
    """Nothing was checked."""


class Workers(Protocol):
    """Runs checks elsewhere, and tells the time; a test has its own."""

    count: int

    def now_s(self) -> float: ...

    def start(self, check: Callable[[], bool], then: Callable[[bool], None]) -> None:
        """Run the check, and call `then` with its result on the event loop."""

    def call_at(self, when_s: float, call: Callable[[], None]) -> Any:
        """Something with `cancel`."""


class Login:
    """One check that waits or runs."""

    __slots__ = (
        "_logins",
        "address",
        "check",
        "done",
        "due_s",
        "is_known",
        "is_over",
        "number",
        "rank",
        "recalls",
        "user",
    )

    def __init__(
        self,
        logins: "Logins",
        address: str,
        user: str,
        *,
        is_known: bool,
        check: Callable[[], bool],
        done: Callable[[Outcome], None],
        recalls: Callable[[], bool],
    ) -> None:
        self._logins = logins
        self.address = address
        self.user = user
        self.is_known = is_known
        self.check = check
        self.done = done
        self.recalls = recalls
        self.due_s = 0.0
        self.number = self.rank = 0
        self.is_over = False

    def cancel(self) -> None:
        """The client is gone: nobody waits for the answer any more."""
        if not self.is_over:
            self.is_over = True
            self._logins.cancelled(self)

    def answer(self, outcome: Outcome) -> None:
        if not self.is_over:
            self.is_over = True
            self.done(outcome)


class _Failures:
    """How often something failed lately, by key; bounded, the oldest are forgotten first."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[Any, tuple[int, float]] = OrderedDict()

    def count(self, key: Any, now_s: float) -> int:
        count, last_s = self._by_key.get(key, (0, 0.0))
        return count if now_s < last_s + _FORGIVEN_S else 0

    def add(self, key: Any, now_s: float) -> None:
        self._by_key[key] = (self.count(key, now_s) + 1, now_s)
        self._by_key.move_to_end(key)
        if len(self._by_key) > _REMEMBERED_MAX:
            self._by_key.popitem(last=False)

    def last_s(self, key: Any) -> float:
        return self._by_key.get(key, (0, 0.0))[1]

    def forget(self, key: Any) -> None:
        self._by_key.pop(key, None)

    def delay_s(self, key: Any, now_s: float) -> float:
        paid = self.count(key, now_s) - _FREE_FAILURES
        return min(_DELAY_S_LEAST * 2.0 ** min(paid - 1, 10), _DELAY_S_MOST) if paid > 0 else 0.0


class Logins:
    """The queue. `ask` puts a check in; `done` of it is called once, unless it is cancelled."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._waiting: WaitingRoom[Login] = WaitingRoom()
        self._running: list[Login] = []
        self._number = 0
        self._by_address, self._by_user, self._by_pair = _Failures(), _Failures(), _Failures()
        # Address -> when the next check for it may begin.
        self._ready_s: OrderedDict[str, float] = OrderedDict()
        # Pairs of address and user that logged in, the latest last.
        self._proved: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._timer: Any = None
        self._timer_s = 0.0

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def ask(
        self,
        peer: Any,
        user: str,
        *,
        is_known: bool,
        check: Callable[[], bool],
        done: Callable[[Outcome], None],
        recalls: Callable[[], bool] = lambda: False,
    ) -> Login:
        """`recalls`: whether the same password turned out to be right meanwhile. A fleet of one user that
        comes back at once pays for one check."""
        address = address_of(peer)
        login = Login(self, address, user, is_known=is_known, check=check, done=done, recalls=recalls)
        now_s = self._workers.now_s()
        self._number += 1
        login.number = self._number
        login.due_s = now_s
        if (login.address, user) not in self._proved:
            login.due_s += self._by_user.delay_s(user, now_s)
        login.rank = self._rank(login, now_s)
        if self._has_room(login):
            self._waiting.add(login)
            # All others were looked at before: they begin when the timer says so, or behind one that runs.
            begins_s = self._begins_s(login)
            is_first = begins_s <= now_s or self._timer is None or begins_s < self._timer_s
            if is_first and not self._is_behind(login):
                self._dispatch()
        else:
            login.answer(Outcome.BUSY)
        return login

    def _has_room(self, login: Login) -> bool:
        """Where there is none, a login takes the place of one that would come after it whenever it came: of a
        name that does not exist, or with failures before. Where all are alike, it takes the place of the last
        one of a user who has more of them waiting at the same address."""
        waiting = self._waiting
        if waiting.count_at(login.address) >= LOGINS_WAITING_PER_ADDRESS_MAX:
            return self._displaces(login, login.address)
        return len(waiting) < LOGINS_WAITING_MAX or self._displaces(login, None)

    def _displaces(self, login: Login, address: str | None) -> bool:
        """Whether it took the place of another one, at this address or at any."""
        waiting = self._waiting
        giving_way = waiting.last(address)
        if giving_way.rank <= login.rank:
            crowd = waiting.largest_crowd(address)
            giving_way = crowd[-1]
            is_small = len(crowd) <= waiting.count_of(login.address, login.user) + 1
            if is_small or giving_way.rank < login.rank:
                return False
        waiting.remove(giving_way)
        giving_way.answer(Outcome.BUSY)
        return True

    def may_try(self, peer: Any, user: str) -> bool:
        """Whether a check that needs no worker may be made now: failures slow those down as well."""
        address, now_s = address_of(peer), self._workers.now_s()
        is_slowed = self._by_user.last_s(user) + self._by_user.delay_s(user, now_s) > now_s
        if is_slowed and (address, user) not in self._proved:
            return False
        return self._ready_s.get(address, 0.0) <= now_s

    def note(self, peer: Any, user: str, is_right: bool) -> None:
        """The outcome of such a check."""
        self._note(address_of(peer), user, is_right)

    def _note(self, address: str, user: str, is_right: bool) -> None:
        now_s = self._workers.now_s()
        pair = (address, user)
        if is_right:
            self._by_pair.forget(pair)
            self._proved[pair] = None
            self._proved.move_to_end(pair)
            if len(self._proved) > _REMEMBERED_MAX:
                self._proved.popitem(last=False)
            self._rank_again(self._waiting.of(*pair), now_s)
            return
        self._by_pair.add(pair, now_s)
        self._by_user.add(user, now_s)
        self._by_address.add(address, now_s)
        if self._by_user.count(user, now_s) == _FREE_FAILURES + 1:
            self._rank_again([login for login in self._waiting if login.user == user], now_s)
        else:
            self._rank_again(self._waiting.of(*pair), now_s)
        self._ready_s[address] = now_s + self._by_address.delay_s(address, now_s)
        self._ready_s.move_to_end(address)
        if len(self._ready_s) > _REMEMBERED_MAX:
            self._ready_s.popitem(last=False)

    def cancelled(self, login: Login) -> None:
        """Called by the login. A check that runs cannot be stopped; its outcome counts all the same."""
        if login in self._waiting:
            self._waiting.remove(login)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiting = WaitingRoom()

    def _dispatch(self) -> None:
        """Begin what may begin, and come again when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._workers.now_s()
        while self._waiting and len(self._running) < self._workers.count:
            next_s = math.inf
            for login in self._waiting:
                if self._is_behind(login):
                    continue
                begins_s = self._begins_s(login)
                if begins_s <= now_s:
                    self._start(login)
                    break
                next_s = min(next_s, begins_s)
            else:
                if next_s < math.inf:
                    self._timer_s = next_s
                    self._timer = self._workers.call_at(next_s, self._dispatch)
                return

    def _is_behind(self, login: Login) -> bool:
        """Whether one of the same address or user is checked now."""
        return any(one.address == login.address or one.user == login.user for one in self._running)

    def _begins_s(self, login: Login) -> float:
        return max(login.due_s, self._ready_s.get(login.address, 0.0))

    def _rank(self, login: Login, now_s: float) -> int:
        """Names that exist come first, and among them those without failures."""
        pair = (login.address, login.user)
        is_suspect = self._by_pair.count(pair, now_s) > 0 or (
            pair not in self._proved and self._by_user.count(login.user, now_s) > _FREE_FAILURES
        )
        return 2 * (not login.is_known) + is_suspect

    def _rank_again(self, logins: list[Login], now_s: float) -> None:
        for login in logins:
            self._waiting.rank_again(login, self._rank(login, now_s))

    def _start(self, login: Login) -> None:
        self._waiting.remove(login)
        if login.recalls():
            self._note(login.address, login.user, is_right=True)
            login.answer(Outcome.RIGHT)
            return
        self._running.append(login)
        self._workers.start(login.check, lambda is_right: self._checked(login, is_right))

    def _checked(self, login: Login, is_right: bool) -> None:
        self._running.remove(login)
        self._note(login.address, login.user, is_right)
        login.answer(Outcome.RIGHT if is_right else Outcome.WRONG)
        self._dispatch()


def address_of(peer: Any) -> str:
    """The address as failures are counted by it: of IPv6 the network, for a client may have all of that."""
    return _counted_as(str(peer[0])) if isinstance(peer, tuple) and peer else "local"


@lru_cache(maxsize=_ADDRESSES_KEPT)
def _counted_as(host: str) -> str:
    text = host.partition("%")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((address, 64), strict=False))
    return text
