"""The queue before the password workers: honest users get in while others guess, in virtual time."""

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from millrace.limits import LOGINS_WAITING_MAX, LOGINS_WAITING_PER_ADDRESS_MAX
from millrace.node.access.logins import Login, Logins, Outcome, address_of

HASH_S = 0.04
EVIL, HONEST = ("10.0.0.66", 1), ("10.0.0.1", 1)


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class VirtualWorkers:
    """Two workers that need a fixed time for each check, and a clock that a test turns."""

    count = 2

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = 0
        self.checks = 0
        self.busy = 0

    def now_s(self) -> float:
        return self._now_s

    def start(self, check: Callable[[], bool], then: Callable[[bool], None]) -> None:
        self.checks += 1
        self.busy += 1
        assert self.busy <= self.count

        def end() -> None:
            self.busy -= 1
            then(check())

        self.call_at(self._now_s + HASH_S, end)

    def call_at(self, when_s: float, call: Callable[[], None]) -> Timer:
        timer = Timer(call)
        self._order += 1
        heapq.heappush(self._timers, (when_s, self._order, timer))
        return timer

    def run_until(self, end_s: float) -> None:
        while self._timers and self._timers[0][0] <= end_s:
            when_s, _, timer = heapq.heappop(self._timers)
            self._now_s = max(self._now_s, when_s)
            if not timer.is_cancelled:
                timer.call()
        self._now_s = end_s


class Lab:
    def __init__(self) -> None:
        self.workers = VirtualWorkers()
        self.logins = Logins(self.workers)
        self.outcomes: list[tuple[float, str, Outcome]] = []
        # Users whose password is remembered; those of one test have one password each.
        self.proved: set[str] = set()

    def ask(
        self, peer: Any, user: str, *, is_right: bool = False, is_known: bool = True, label: str = ""
    ) -> Login:
        def done(outcome: Outcome) -> None:
            self.outcomes.append((self.workers.now_s(), label or user, outcome))
            if outcome is Outcome.RIGHT:
                self.proved.add(user)

        def recalls() -> bool:
            return is_right and user in self.proved

        check = partial(bool, is_right)
        return self.logins.ask(peer, user, is_known=is_known, check=check, done=done, recalls=recalls)

    def when(self, label: str) -> tuple[float, Outcome]:
        """When it was answered, and how."""
        (found,) = [(at_s, outcome) for at_s, name, outcome in self.outcomes if name == label]
        return found


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_four_hundred_wrong_logins_that_hang_up_keep_nobody_out(lab: Lab) -> None:
    """Everyone who hung up is forgotten: no worker is spent on them."""
    floods = [lab.ask(EVIL, "ann", label=f"wrong {n}") for n in range(400)]
    for login in floods:
        login.cancel()
    lab.ask(HONEST, "bob", is_right=True, label="honest")
    lab.ask(EVIL, "ann", is_right=True, label="same address, same user")
    lab.workers.run_until(1.0)
    assert lab.when("honest") == (HASH_S, Outcome.RIGHT)
    assert lab.when("same address, same user")[0] < 1.0
    assert lab.workers.checks <= 3


@pytest.mark.parametrize(
    ("peer", "user"),
    [(HONEST, "bob"), (HONEST, "ann"), (EVIL, "bob")],
    ids=["elsewhere", "the user who is attacked", "the same address"],
)
@pytest.mark.parametrize("attacked", ["ann", ""], ids=["one user", "random names"])
def test_an_honest_user_comes_in_within_a_second_while_another_address_guesses(
    lab: Lab, peer: tuple[str, int], user: str, attacked: str
) -> None:
    """400 wrong logins a second, none of which hangs up, for ten seconds."""
    for n in range(4_000):
        lab.workers.run_until(n / 400)
        lab.ask(EVIL, attacked or f"nobody-{n}", is_known=bool(attacked), label=f"wrong {n}")
    begin_s = lab.workers.now_s()
    lab.ask(peer, user, is_right=True, label="honest")
    lab.workers.run_until(begin_s + 5.0)
    at_s, outcome = lab.when("honest")
    assert outcome is Outcome.RIGHT
    assert at_s - begin_s < 1.0
    # Guessing went at a fraction of what two workers could check.
    assert lab.workers.checks < 10.0 / HASH_S * 2 / 10


def test_many_addresses_that_guess_names_do_not_keep_a_user_out(lab: Lab) -> None:
    for n in range(5_000):
        lab.ask((f"10.1.{n // 250}.{n % 250}", 1), f"nobody-{n}", is_known=False, label=f"wrong {n}")
    lab.ask(HONEST, "bob", is_right=True, label="honest")
    lab.workers.run_until(1.0)
    assert lab.when("honest")[0] <= 2 * HASH_S


def test_many_addresses_that_attack_one_user_leave_a_worker_to_others(lab: Lab) -> None:
    for n in range(300):
        lab.ask((f"10.1.{n // 250}.{n % 250}", 1), "ann", label=f"wrong {n}")
    lab.ask(HONEST, "bob", is_right=True, label="honest")
    lab.workers.run_until(1.0)
    assert lab.when("honest")[0] <= 2 * HASH_S


def test_who_logged_in_from_an_address_is_not_slowed_down_by_guesses_from_elsewhere(lab: Lab) -> None:
    lab.ask(HONEST, "ann", is_right=True, label="first")
    lab.workers.run_until(1.0)
    for n in range(300):
        lab.ask((f"10.1.{n // 250}.{n % 250}", 1), "ann", label=f"wrong {n}")
    lab.workers.run_until(5.0)
    lab.ask(HONEST, "ann", is_right=True, label="again")
    lab.workers.run_until(6.0)
    assert lab.when("again")[0] - 5.0 <= 2 * HASH_S


def test_the_queue_is_bounded_for_an_address_and_for_all(lab: Lab) -> None:
    for n in range(100):
        lab.ask(EVIL, f"user-{n}", label=f"wrong {n}")
    assert lab.logins.waiting_count == LOGINS_WAITING_PER_ADDRESS_MAX
    for n in range(2 * LOGINS_WAITING_MAX):
        lab.ask((f"10.1.{n // 250}.{n % 250}", 1), f"user-{n}", label=f"more {n}")
    assert lab.logins.waiting_count == LOGINS_WAITING_MAX
    busy = [label for _, label, outcome in lab.outcomes if outcome is Outcome.BUSY]
    assert len(busy) == 100 - LOGINS_WAITING_PER_ADDRESS_MAX - 1 + 2 * LOGINS_WAITING_MAX - (
        LOGINS_WAITING_MAX - LOGINS_WAITING_PER_ADDRESS_MAX + 1
    )


def test_a_crowd_of_one_user_leaves_room_for_another_at_the_same_address(lab: Lab) -> None:
    """Also before the first of them turned out to be wrong."""
    for n in range(400):
        lab.ask(EVIL, "ann", label=f"wrong {n}")
    lab.ask(EVIL, "bob", is_right=True, label="honest")
    assert lab.logins.waiting_count == LOGINS_WAITING_PER_ADDRESS_MAX
    lab.workers.run_until(2.0)
    assert lab.when("honest")[1] is Outcome.RIGHT


def test_a_fleet_of_one_user_that_comes_back_at_once_pays_for_one_check(lab: Lab) -> None:
    """The others waited for the same password; one that guesses among them is checked all the same."""
    for n in range(LOGINS_WAITING_PER_ADDRESS_MAX):
        lab.ask(HONEST, "fleet", is_right=True, label=f"device {n}")
    lab.ask(HONEST, "fleet", label="wrong")
    lab.workers.run_until(2.0)
    for n in range(LOGINS_WAITING_PER_ADDRESS_MAX):
        assert lab.when(f"device {n}") == (HASH_S, Outcome.RIGHT)
    assert lab.when("wrong") == (2 * HASH_S, Outcome.WRONG)
    assert lab.workers.checks == 2


def test_a_refusal_is_cheap_where_all_places_are_taken(lab: Lab) -> None:
    """It looks at none of those that wait for a place, and at their ranks never: this is done on the loop for
    each of hundreds of logins in a second."""
    for n in range(LOGINS_WAITING_MAX + 10):
        lab.ask((f"10.1.{n // 250}.{n % 250}", 1), f"user-{n % 300}", label=f"wrong {n}")
    ranked = 0
    rank = lab.logins._rank

    def counted(login: Login, now_s: float) -> int:
        nonlocal ranked
        ranked += 1
        return rank(login, now_s)

    lab.logins._rank = counted  # type: ignore[method-assign]
    for n in range(100):
        lab.ask((f"10.2.0.{n}", 1), "user-1", label=f"more {n}")
        assert lab.outcomes[-1][1:] == (f"more {n}", Outcome.BUSY)
    assert ranked == 100


def test_a_user_who_exists_takes_the_place_of_a_name_that_does_not(lab: Lab) -> None:
    for n in range(LOGINS_WAITING_PER_ADDRESS_MAX + 1):
        lab.ask(EVIL, f"nobody-{n}", is_known=False, label=f"wrong {n}")
    lab.ask(EVIL, "ann", is_right=True, label="honest")
    assert lab.when(f"wrong {LOGINS_WAITING_PER_ADDRESS_MAX}")[1] is Outcome.BUSY
    lab.workers.run_until(1.0)
    assert lab.when("honest") == (2 * HASH_S, Outcome.RIGHT)


def test_a_cancelled_login_is_never_answered_and_what_it_found_counts(lab: Lab) -> None:
    for n in range(3):
        login = lab.ask(EVIL, "ann", label=f"wrong {n}")
        lab.workers.run_until(lab.workers.now_s() + HASH_S / 2)
        login.cancel()
        lab.workers.run_until(lab.workers.now_s() + 1.0)
    assert lab.outcomes == []
    begin_s = lab.workers.now_s()
    lab.ask(EVIL, "bob", is_right=True, label="next")
    lab.workers.run_until(begin_s + 1.0)
    assert lab.when("next")[1] is Outcome.RIGHT
    assert lab.workers.checks == 4


def test_failures_are_forgiven_after_a_while(lab: Lab) -> None:
    for n in range(20):
        lab.ask(EVIL, "ann", label=f"wrong {n}")
    lab.workers.run_until(100.0)
    assert len(lab.outcomes) == 20
    lab.ask(EVIL, "ann", is_right=True, label="later")
    lab.workers.run_until(101.0)
    assert lab.when("later") == (100.0 + HASH_S, Outcome.RIGHT)


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8::1", 5, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 5, 0, 0), "fe80::/64"),
        (("testclient", 5), "testclient"),
        ("", "local"),
        (None, "local"),
    ],
)
def test_failures_are_counted_by_address_and_of_ipv6_by_network(peer: object, expected: str) -> None:
    assert address_of(peer) == expected
