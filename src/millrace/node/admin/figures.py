"""What this node costs and carries: processor, memory, disk, the lag of its event loop, messages per second.

A `Sampler` looks once a second and keeps two looks, so that a rate is what happened between them. Nothing
here is counted per message: the counters are the broker's own.
"""

import os
from collections.abc import Callable
from typing import Any

from millrace.broker.machine import Broker
from millrace.broker.stats import Histogram, Stats

SAMPLE_S = 1.0
# How many measures of the loop's lag the worst of is shown: about two seconds.
_LAGS = 20
_LAG_BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Sampler:
    """Turns counters into rates. `sample` is called about once a second, `now_s` never goes back."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._at_s: dict[str, float] = {}
        self._values: dict[str, float] = {}
        self._rates: dict[str, float] = {}
        self._lags_ms: list[float] = []
        self.lag_times = Histogram(_LAG_BOUNDS_S)

    def sample(self, counters: dict[str, float]) -> None:
        """Take the present values; what is not named any more is forgotten."""
        now_s = self._now_s()
        rates = {}
        for name, value in counters.items():
            passed_s = now_s - self._at_s.get(name, now_s)
            if passed_s > 0:
                # A counter that begins anew (a log that was purged) is no flow backwards.
                rates[name] = max(0.0, (value - self._values[name]) / passed_s)
        self._rates = rates
        self._values = dict(counters)
        self._at_s = dict.fromkeys(counters, now_s)

    def rate(self, name: str) -> float:
        """Per second, between the last two samples; 0 before there are two."""
        return round(self._rates.get(name, 0.0), 2)

    def add_lag(self, lag_ms: float) -> None:
        self._lags_ms.append(lag_ms)
        self.lag_times.observe(lag_ms / 1000)
        del self._lags_ms[:-_LAGS]

    @property
    def loop_lag_ms(self) -> float:
        """The worst of the last two seconds."""
        return round(max(self._lags_ms, default=0.0), 2)


def cpu_s() -> float:
    """Processor time that this process used, in all its threads."""
    times = os.times()
    return times.user + times.system


def memory_bytes() -> int:
    """What this process holds in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


def traffic(stats: Stats) -> dict[str, float]:
    """The counters of which rates are shown."""
    return {
        "in_messages": stats.received,
        "out_messages": stats.sent,
        "in_bytes": stats.bytes_received,
        "out_bytes": stats.bytes_sent,
        "cpu": cpu_s(),
    }


def dropped(stats: Stats) -> int:
    """Messages that did not reach somebody who wanted them."""
    return stats.dropped_qos0 + stats.dropped_queue + stats.dropped_relay + stats.dropped_too_large


def of_broker(broker: Broker, sampler: Sampler, tails: int) -> dict[str, Any]:
    """The part of the figures that the broker and the process know. `tails` are sessions of nobody."""
    return {
        "sessions": len(broker.sessions) - tails,
        "subscriptions": broker.subscription_count,
        "retained_messages": len(broker.retained),
        "retained_bytes": broker.retained.bytes_held,
        "cpu_percent": round(100 * sampler.rate("cpu"), 1),
        "memory_bytes": memory_bytes(),
        "loop_lag_ms": sampler.loop_lag_ms,
        "in_messages_s": sampler.rate("in_messages"),
        "out_messages_s": sampler.rate("out_messages"),
        "in_bytes_s": sampler.rate("in_bytes"),
        "out_bytes_s": sampler.rate("out_bytes"),
        "dropped": dropped(broker.stats),
    }
