"""The last message of each topic whose publisher asked to keep it.

Stored as it was published, one packet in its publisher's framing; a fresh subscriber gets it rewritten. An
empty payload deletes ([MQTT-3.3.1-6]). Bounded in number and bytes.

Where a log keeps a topic, the log decides what is retained on it. A message at QoS 0 is shown before the log
has its value: as long as such values of this node are on their way, subscribers here get the newest of them,
and what the log says is put by. That counts again when the last of them is in the log, or lost.
"""

import heapq
from collections.abc import Iterator

from millrace.broker.limits_reached import LimitsReached
from millrace.broker.messages.message import Run
from millrace.broker.shards.retained_owners import RetainedOwners
from millrace.broker.topics.trees import TopicTree

# Work of one call of `expire_some`.
_EXPIRE_MAX = 10_000
# Entries of `_expiring` that may be out of date before it is worth to look for them.
_EXPIRING_SPARE = 64
# Tree nodes that one message may hold on average, and some for a store that is very small.
_NODES_PER_MESSAGE_MAX = 8
_NODES_SPARE = 1024


class _PutBy:
    """Of a topic with notes under way: how many, and what is retained without them."""

    __slots__ = ("notes", "run")

    def __init__(self, run: Run | None) -> None:
        self.notes = 0
        self.run = run


class Retained:
    __slots__ = (
        "_expiring",
        "_owners",
        "_put_by",
        "_reached",
        "_tree",
        "bytes_held",
        "bytes_max",
        "messages_max",
    )

    def __init__(
        self,
        messages_max: int,
        bytes_max: int,
        reached: LimitsReached | None = None,
        user_bytes_max: int = 0,
    ) -> None:
        self._reached = reached or LimitsReached()
        self._tree: TopicTree[Run] = TopicTree()
        self._expiring: list[tuple[int, str]] = []
        self._put_by: dict[str, _PutBy] = {}
        self._owners = RetainedOwners(user_bytes_max) if user_bytes_max else None
        self.bytes_held = 0
        self.messages_max = messages_max
        self.bytes_max = bytes_max

    def __len__(self) -> int:
        return self._tree.count

    def get(self, topic: str) -> Run | None:
        return self._tree.get(topic)

    def logged(self, topic: str) -> Run | None:
        """As `get`, without what is shown ahead of its log."""
        put_by = self._put_by.get(topic)
        return self._tree.get(topic) if put_by is None else put_by.run

    def has_room(self, topic: str, run: Run, username: str | None = None) -> bool:
        """Whether the bounds allow to keep this message, of this user where it is known. Those that they do
        not allow are counted."""
        owners = self._owners if username is not None else None
        if owners is not None and not owners.has_room(topic, username or "", len(run.data)):
            self._reached.count("user_retained_bytes")
            return False
        is_within = self._is_within(topic, run)
        if not is_within:
            self._reached.count("retained")
        return is_within

    def own(self, topic: str, username: str | None) -> None:
        """A user has left what is retained there now; called whenever one may have."""
        if self._owners is not None and username is not None:
            run = self._tree.get(topic)
            if run is not None:
                self._owners.own(topic, username, len(run.data))

    def _is_within(self, topic: str, run: Run) -> bool:
        old = self._tree.get(topic)
        held = self.bytes_held - (len(old.data) if old else 0) + len(run.data)
        if held > self.bytes_max or old is not None:
            return held <= self.bytes_max
        nodes_max = self.messages_max * _NODES_PER_MESSAGE_MAX + _NODES_SPARE
        return self._tree.count < self.messages_max and self._tree.nodes + topic.count("/") < nodes_max

    def keep(self, topic: str, run: Run, *, is_empty: bool) -> None:
        """A retained message was published: it takes the place of the last one, or deletes it."""
        put_by = self._put_by.get(topic)
        if put_by is not None:
            put_by.run = None if is_empty else run
        else:
            self._show(topic, None if is_empty else run)

    def drop(self, topic: str) -> None:
        """Nothing is retained on this topic any more, but for what is under way."""
        put_by = self._put_by.get(topic)
        if put_by is not None:
            put_by.run = None
        else:
            self.delete(topic)

    def show(self, topic: str, run: Run, *, is_empty: bool) -> None:
        """This one is on its way to a log, and seen at once; `settle` follows when it is there, or lost."""
        put_by = self._put_by.get(topic)
        if put_by is None:
            put_by = self._put_by[topic] = _PutBy(self._tree.get(topic))
        put_by.notes += 1
        self._show(topic, None if is_empty else run)

    def settle(self, topic: str) -> None:
        """One that was shown has come to its end."""
        put_by = self._put_by[topic]
        put_by.notes -= 1
        if not put_by.notes:
            del self._put_by[topic]
            if not _is_same(self._tree.get(topic), put_by.run):
                self._show(topic, put_by.run)

    def _show(self, topic: str, run: Run | None) -> None:
        if run is None:
            self.delete(topic)
        else:
            self.store(topic, run)

    def store(self, topic: str, run: Run) -> bool:
        """Keep this message; False where a bound forbids it (what was there before stays)."""
        if not self.has_room(topic, run):
            return False
        old = self._tree.get(topic)
        held = self.bytes_held - (len(old.data) if old else 0) + len(run.data)
        if run.shard or not run.retain:
            # A copy of its own: where the run stands in a log is no concern of a later subscriber.
            run = Run(run.data, 1, run.qos, run.v5, True, run.expires_ms)
        self._tree.set(topic, run)
        if self._owners is not None:
            self._owners.release(topic)
        if run.expires_ms is not None:
            if len(self._expiring) > 2 * self._tree.count + _EXPIRING_SPARE:
                self._expiring = sorted({entry for entry in self._expiring if self._is_current(*entry)})
            heapq.heappush(self._expiring, (run.expires_ms, topic))
        self.bytes_held = held
        return True

    def _is_current(self, expires_ms: int, topic: str) -> bool:
        run = self._tree.get(topic)
        return run is not None and run.expires_ms == expires_ms

    def delete(self, topic: str) -> None:
        old = self._tree.pop(topic)
        if old is not None:
            self.bytes_held -= len(old.data)
            if self._owners is not None:
                self._owners.release(topic)

    def may_match(self, filter: str) -> bool:
        """False where nothing is retained that this filter takes, as far as one look tells."""
        return self._tree.may_match(filter)

    def match(self, filter: str, now_ms: int) -> Iterator[tuple[str, Run]]:
        """Retained messages of this filter that have not expired."""
        for topic, run in self._tree.match(filter):
            if run.expires_ms is None or run.expires_ms > now_ms:
                yield topic, run

    def walk(self, filter: str, now_ms: int) -> Iterator[tuple[str, Run] | None]:
        """As `match`, in steps between which messages may change; see `TopicTree.walk`."""
        for step in self._tree.walk(filter):
            is_over = step is not None and step[1].expires_ms is not None and step[1].expires_ms <= now_ms
            yield None if is_over else step

    def expire_some(self, now_ms: int) -> list[str]:
        """Delete messages whose time has passed, a bounded number per call; returns their topics."""
        gone: list[str] = []
        for _ in range(_EXPIRE_MAX):
            if not self._expiring or self._expiring[0][0] > now_ms:
                break
            _, topic = heapq.heappop(self._expiring)
            run = self._tree.get(topic)
            # A newer message may have taken the place of the one that was to expire.
            if run is not None and run.expires_ms is not None and run.expires_ms <= now_ms:
                self.delete(topic)
                gone.append(topic)
        return gone


def _is_same(shown: Run | None, logged: Run | None) -> bool:
    """Whether what was shown ahead of its log is what the log says, as nearly always."""
    if shown is None or logged is None:
        return shown is logged
    return (
        shown.data == logged.data
        and shown.v5 == logged.v5
        and shown.qos == logged.qos
        and shown.expires_ms == logged.expires_ms
    )
