"""Links between replicas: they lose, double, delay and reorder, and they break one way or both.

Bodies are opaque and immutable, so a delivery hands over the sender's own object. The same network can carry
another protocol's bodies or whole frames: it knows names and a `deliver` call, nothing else.

A direction is open or blocked. A partition (split, one way, bridge) is a set of blocked directions; several
may overlap, and healing removes all. A direction may also be held: what is said is kept and delivered at the
release, as after a stall of the path. While `in_order` holds, a link delivers in the order of sending as a
TCP connection does; otherwise every message takes its own time.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from millrace.lab.sim.surroundings.clock import Clock


@dataclass(slots=True, kw_only=True)
class Weather:
    """How the links behave now."""

    drop_rate: float = 0.0
    double_rate: float = 0.0
    straggler_rate: float = 0.0
    """Share of messages that take up to `straggler_us_max` instead."""
    latency_us_min: int = 100
    latency_us_max: int = 2_000
    straggler_us_max: int = 500_000
    in_order: bool = True


class Network:
    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        weather: Weather,
        deliver: Callable[[str, str, Any], None],
        inflight_max: int = 50_000,
    ) -> None:
        self.weather = weather
        self.sent = 0
        self._clock = clock
        self._random = rng.random
        self._deliver = deliver
        self._blocked: set[tuple[str, str]] = set()
        self._held: set[tuple[str, str]] = set()
        self._stash: list[tuple[str, str, Any]] = []
        self._free_us: dict[tuple[str, str], int] = {}
        self._inflight = 0
        self._inflight_max = inflight_max

    def send(self, sender: str, to: str, body: Any) -> None:
        weather = self.weather
        self.sent += 1
        if self._held and (sender, to) in self._held:
            if len(self._stash) < self._inflight_max:
                self._stash.append((sender, to, body))
            return
        if self._blocked and (sender, to) in self._blocked:
            return
        if weather.drop_rate and self._random() < weather.drop_rate:
            return
        copies = 2 if weather.double_rate and self._random() < weather.double_rate else 1
        for _ in range(copies):
            if self._inflight >= self._inflight_max:
                return
            self._inflight += 1
            self._clock.after(self._delay_us(sender, to), self._arrive, sender, to, body)

    def _delay_us(self, sender: str, to: str) -> int:
        weather = self.weather
        low, high = weather.latency_us_min, weather.latency_us_max
        if weather.straggler_rate and self._random() < weather.straggler_rate:
            high = weather.straggler_us_max
        delay_us = low + int(self._random() * (high - low))
        if weather.in_order:
            link = (sender, to)
            arrival_us = max(self._clock.now_us + delay_us, self._free_us.get(link, 0))
            self._free_us[link] = arrival_us
            return arrival_us - self._clock.now_us
        return delay_us

    def _arrive(self, sender: str, to: str, body: Any) -> None:
        self._inflight -= 1
        # A cut also swallows what was on its way: the two hosts see a reset or silence.
        if self._blocked and (sender, to) in self._blocked:
            return
        self._deliver(sender, to, body)

    # --------------------------------------------------------------------------------------- faults

    def block(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """One way: what `senders` say does not reach `receivers`."""
        targets = tuple(receivers)
        self._blocked.update((sender, to) for sender in senders for to in targets if sender != to)

    def split(self, left: Iterable[str], right: Iterable[str]) -> None:
        left, right = tuple(left), tuple(right)
        self.block(left, right)
        self.block(right, left)

    def unblock(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        targets = tuple(receivers)
        self._blocked.difference_update((sender, to) for sender in senders for to in targets)

    def hold(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Keep what they say and deliver it at the release, however late."""
        targets = tuple(receivers)
        self._held.update((sender, to) for sender in senders for to in targets if sender != to)

    def release(self) -> None:
        self._held.clear()
        stash, self._stash = self._stash, []
        for held in stash:
            # These had left before any cut that stands now.
            self._clock.after(self._delay_us(*held[:2]), self._deliver, *held)

    def is_open(self, sender: str, to: str) -> bool:
        return (sender, to) not in self._blocked

    def heal(self) -> None:
        self._blocked.clear()
        self.release()
