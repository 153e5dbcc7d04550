"""Clients of a simulated leaderless stream: publishers, and members of groups that come, move and go."""

import random
from collections.abc import Sequence
from typing import Any

from millrace.lab.sim.leaderless.checks import LeaderlessChecks
from millrace.lab.sim.leaderless.host import Host
from millrace.lab.sim.leaderless.plan import LeaderlessPlan
from millrace.lab.sim.raft.plan import TICK_US
from millrace.lab.sim.surroundings.clock import Clock
from millrace.replication.leaderless.messages import Acknowledged, Overloaded, Placed, Span

_WINDOW = 8
_GIVE_UP_TICKS = 60
_ASK_AGAIN_TICKS = 20


class Publisher:
    """Publishes at any node, one request at a time; after a while without an answer it goes on elsewhere."""

    def __init__(
        self,
        number: int,
        *,
        plan: LeaderlessPlan,
        clock: Clock,
        checks: LeaderlessChecks,
        hosts: Sequence[Host],
        rng: random.Random,
    ) -> None:
        self._number = number
        self._plan = plan
        self._clock = clock
        self._checks = checks
        self._hosts = hosts
        self._rng = rng
        self._attempt = 0
        self.is_active = False

    def start(self) -> None:
        if not self.is_active:
            self.is_active = True
            self._later()

    def stop(self) -> None:
        self.is_active = False

    def _later(self) -> None:
        delay_us = 1 + self._rng.randrange(self._plan.think_us_max)
        self._clock.after(delay_us, self._publish, self._attempt)

    def _publish(self, attempt: int) -> None:
        if not self.is_active or attempt != self._attempt:
            return
        host = self._rng.choice(self._hosts)
        self._attempt += 1
        if not host.is_up:
            self._later()
            return
        attempt = self._attempt
        counts = [self._rng.randint(1, 3) for _ in range(self._rng.randint(1, 2))]
        blocks = tuple(
            (count, f"{self._number}.{attempt}.{part}".encode()) for part, count in enumerate(counts)
        )
        checks = self._checks

        def answered(answer: Any) -> None:
            match answer:
                case Placed():
                    checks.placed(answer.origin, answer.first_index, answer.offset, blocks)
                case Acknowledged():
                    checks.acknowledged(blocks)
                    self._next(attempt)
                case Overloaded():
                    self._next(attempt)

        self._clock.after(_GIVE_UP_TICKS * TICK_US, self._next, attempt)
        host.publish(blocks, answered)

    def _next(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._attempt += 1
            self._later()


class Consumer:
    """A member of a group, known by its name wherever it connects."""

    def __init__(
        self,
        name: str,
        group: str,
        *,
        clock: Clock,
        checks: LeaderlessChecks,
        rng: random.Random,
        from_start: bool,
    ) -> None:
        self.name = name
        self.group = group
        self.from_start = from_start
        self.host: Host | None = None
        self.held: list[Span] = []
        self._clock = clock
        self._checks = checks
        self._rng = rng
        self._stay = 0

    @property
    def room(self) -> int:
        return max(0, _WINDOW - len(self.held))

    def connect(self, host: Host) -> None:
        assert self.host is None
        self.host = host
        self.subscribe()
        host.connect(self)

    def subscribe(self, saved_position: bytes = b"") -> None:
        if self.host is not None:
            host, stay = self.host, self._stay
            self._checks.subscribing(self, host)

            def answered(answer: Any) -> None:
                self._checks.subscribed(self, host, answer)
                if isinstance(answer, Overloaded):
                    self._clock.after(_ASK_AGAIN_TICKS * TICK_US, self._subscribe_again, stay, saved_position)

            host.subscribe(self, answered, saved_position)

    def _subscribe_again(self, stay: int, saved_position: bytes) -> None:
        """Who was refused asks again where it is, as a node does for its clients."""
        if stay == self._stay:
            self.subscribe(saved_position)

    def leave(self) -> None:
        """Go away; what was not acknowledged is somebody else's."""
        host, self.host = self.host, None
        self._stay += 1
        held, self.held = self.held, []
        self._checks.released(self.group, held)
        if host is not None:
            host.disconnect(self, held)

    def cut_off(self) -> None:
        """The node is gone; it will find another."""
        self.host = None
        self._stay += 1
        held, self.held = self.held, []
        self._checks.released(self.group, held)

    def receive(self, span: Span) -> None:
        self._checks.given(self, span)
        self.held.append(span)
        slow = 30 if self._rng.random() < 0.05 else 3
        delay_us = 1 + int(self._rng.random() * slow * TICK_US)
        self._clock.after(delay_us, self._acknowledge, self._stay, span)

    def _acknowledge(self, stay: int, span: Span) -> None:
        if stay != self._stay or self.host is None or span not in self.held:
            return
        self.held.remove(span)
        self._checks.settled(self.group, span)
        self.host.settle(self.group, span)
