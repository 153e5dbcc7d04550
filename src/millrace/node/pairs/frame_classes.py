"""The topic classes of a frame stream on a node: which one takes a topic, and how long its messages take.

A run that came in is a mixture of classes. It is taken apart by the scan kernel with a table topic -> class,
so that Python pays for each change of class and not for each message. The messages of a topic are all of one
class and keep their order.
"""

from collections import deque
from itertools import repeat
from typing import Any

from millrace.broker.messages.inbound import topic_of
from millrace.broker.messages.message import Run
from millrace.broker.streams.pair_spec import PairSpec
from millrace.broker.topics.filters import levels_match
from millrace.kernels import new_topics, scan, skip
from millrace.node.pairs.pair_keeper import bounds_of, terms_of
from millrace.replication.frame.schedule import Deadlines, deadlines

_TOPICS_MAX = 100_000
_TOPICS_LEARNT_MAX = 500
_RECENT_MAX = 1_000


class Measured:
    """The last thousand of a latency, and whether its p99 is above its bound."""

    __slots__ = ("_recent", "bound_ms", "late", "name", "total")

    def __init__(self, name: str, bound_ms: float) -> None:
        self.name = name
        self.bound_ms = bound_ms
        self.total = 0
        self.late = 0
        self._recent: deque[float] = deque(maxlen=_RECENT_MAX)

    def add(self, took_ms: float, count: int = 1) -> None:
        self.total += count
        if took_ms > self.bound_ms:
            self.late += count
        self._recent.extend(repeat(took_ms, min(count, _RECENT_MAX)))

    @property
    def p99_ms(self) -> float:
        ordered = sorted(self._recent)
        return ordered[int(0.99 * (len(ordered) - 1))] if ordered else 0.0

    @property
    def is_above(self) -> bool:
        return self.p99_ms > self.bound_ms

    def shown(self) -> dict[str, Any]:
        return {
            "what": self.name,
            "p99_ms": round(self.p99_ms, 3),
            "bound_ms": self.bound_ms,
            "late": self.late,
            "of": self.total,
            "alert": self.is_above,
        }


class FrameClass:
    __slots__ = ("levels", "measured", "wanted")

    def __init__(self, filter: str, wanted: Deadlines) -> None:
        self.levels = filter.split("/")
        self.wanted = wanted
        self.measured = Measured(f"dispatch {filter}", wanted.dispatch_ms)

    def jobs(self, count: int) -> int:
        """What so many messages are in the queue at most."""
        return 2 * count if self.wanted.is_replicated else count


class FrameClasses:
    def __init__(self, spec: PairSpec) -> None:
        bounds = bounds_of(spec)
        self.all = [FrameClass(one.filter, deadlines(terms_of(one), bounds)) for one in spec.topics]
        # Stands in the table for topics that no class takes: the scan knows no None.
        self._nobody = object()
        self._table: dict[bytes, Any] = {}

    def of(self, topic: str) -> FrameClass | None:
        """None: no class was admitted for it, so nothing can be promised, and it is refused."""
        key = topic.encode()
        found = self._table.get(key)
        if found is None:
            if len(self._table) >= _TOPICS_MAX:
                self._table.clear()
            levels = topic.split("/")
            found = next((one for one in self.all if levels_match(one.levels, levels)), self._nobody)
            self._table[key] = found
        return found if isinstance(found, FrameClass) else None

    def split(self, run: Run) -> list[tuple[FrameClass, Run]] | None:
        """The messages of a run by class, in their order; None where no class takes one of them."""
        data, position, size = run.data, 0, len(run.data)
        found: dict[Any, tuple[list[bytes], list[int]]] = {}
        while position < size:
            position, spans = scan(data, position, self._table, run.v5, size)
            if position < size:
                # A topic that was not met yet, and perhaps many: all of them come to a new primary at once.
                for topic in new_topics(data, position, self._table, size, size, _TOPICS_LEARNT_MAX):
                    self.of(topic)
                end = skip(data, 1, position)
                cls = self.of(topic_of(data[position:end])) or self._nobody
                spans += (0, cls, position, end, 1)
                position = end
            if len(spans) == 5 and spans[4] == run.count:
                return None if spans[1] is self._nobody else [(spans[1], run)]
            for at in range(0, len(spans), 5):
                _, cls, start, end, count = spans[at : at + 5]
                if cls not in found:
                    found[cls] = [], []
                pieces, counts = found[cls]
                pieces.append(data[start:end])
                counts.append(count)
        if self._nobody in found:
            return None
        return [
            (cls, Run(b"".join(pieces), sum(counts), run.qos, run.v5))
            for cls, (pieces, counts) in found.items()
        ]
