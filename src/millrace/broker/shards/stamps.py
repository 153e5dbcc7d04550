"""Which log says what is retained on a topic.

A topic may have been kept by several logs in its life: streams change, and each log is applied in its own
time, by a replica that is behind or starts anew also out of order. The stamp of a retained value is
(routing generation, log, index); the newest wins at every node, whatever order they arrive in [rule 17].
A deletion is a value like any other and leaves a stamp without a message.
"""

Stamp = tuple[int, int, int]
"""Routing generation, number of the log, index of the entry."""


class Stamps:
    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, Stamp] = {}

    def admit(self, topic: str, stamp: Stamp) -> bool:
        """Whether a value with this stamp is the newest of its topic; if so, the stamp is remembered."""
        if stamp < self._last.get(topic, stamp):
            return False
        self._last[topic] = stamp
        return True

    def is_last_of(self, topic: str, log: int) -> bool:
        """Whether the newest value of the topic is of this log."""
        last = self._last.get(topic)
        return last is not None and last[1] == log

    def forget(self, topic: str) -> None:
        self._last.pop(topic, None)

    def forget_log(self, log: int) -> list[str]:
        """A log is gone with what it kept. Returns the topics whose newest value was there."""
        gone = [topic for topic, stamp in self._last.items() if stamp[1] == log]
        for topic in gone:
            del self._last[topic]
        return gone
