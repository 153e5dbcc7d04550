"""Links between simulated nodes as TCP gives them: in order on one connection, lost when it breaks, and late.

A connection that broke may still bring what was under way, at a time at which the next one has opened long
since: both sockets are readable, and nothing says in which order they are read. A connection that cannot
take more drops what is sent, in silence. One pair has at most one connection that is open.
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

from millrace.lab.sim.surroundings.clock import US_PER_S, Clock
from millrace.node.peers.messages import NodeMessage
from millrace.node.peers.registry import decode, encode
from millrace.wire.peer import Frames

_DELAY_US_MAX = 5_000
_LATE_US_MAX = US_PER_S
_NOTICED_US_MAX = 200_000


class Host(Protocol):
    """What a link ends at."""

    name: str
    is_up: bool
    life: int

    def link_opened(self, peer: str) -> None: ...

    def link_closed(self, peer: str) -> None: ...

    def receive(self, peer: str, message: NodeMessage) -> None: ...


class Connection:
    __slots__ = ("ends", "is_open", "lives", "paused_us", "ready_us")

    def __init__(self, one: Host, two: Host) -> None:
        self.ends = (one, two)
        self.lives = {one.name: one.life, two.name: two.life}
        self.is_open = True
        # By sender: when its last frame arrives, and until when it drops what it is given.
        self.ready_us = {one.name: 0, two.name: 0}
        self.paused_us = {one.name: 0, two.name: 0}

    def other(self, name: str) -> Host:
        return self.ends[0] if self.ends[1].name == name else self.ends[1]


class RoutedLinks:
    def __init__(self, clock: Clock, rng: Random, watch: Callable[[str, str, NodeMessage], None]) -> None:
        self._clock = clock
        self._rng = rng
        self._watch = watch
        self._open: dict[frozenset[str], Connection] = {}
        self.messages = 0
        self.dropped = 0

    def between(self, one: str, two: str) -> Connection | None:
        return self._open.get(frozenset((one, two)))

    def connect(self, one: Host, two: Host) -> None:
        """Both ends learn of it at once, as after a handshake."""
        if self.between(one.name, two.name) is not None or not (one.is_up and two.is_up):
            return
        self._open[frozenset((one.name, two.name))] = Connection(one, two)
        one.link_opened(two.name)
        two.link_opened(one.name)

    def cut(self, one: str, two: str) -> None:
        """The connection breaks; each end notices in its own time, unless the next one comes before."""
        connection = self._open.pop(frozenset((one, two)), None)
        if connection is None:
            return
        connection.is_open = False
        for end in connection.ends:
            self._clock.after(self._rng.randrange(_NOTICED_US_MAX), self._closed, connection, end)

    def _closed(self, connection: Connection, end: Host) -> None:
        other = connection.other(end.name)
        is_same = end.is_up and end.life == connection.lives[end.name]
        if is_same and self.between(end.name, other.name) is None:
            end.link_closed(other.name)

    def pause(self, one: str, two: str, us: int) -> None:
        """`one` drops what it is given for `two`, for a while."""
        connection = self.between(one, two)
        if connection is not None:
            connection.paused_us[one] = self._clock.now_us + us

    def send(self, sender: Host, to: str, message: NodeMessage) -> bool:
        """Under way it is the bytes that nodes send."""
        connection = self.between(sender.name, to)
        if connection is None or connection.paused_us[sender.name] > self._clock.now_us:
            self.dropped += 1
            return False
        self.messages += 1
        self._watch(sender.name, to, message)
        now_us = self._clock.now_us
        arrives_us = max(connection.ready_us[sender.name], now_us + self._rng.randrange(1, _DELAY_US_MAX))
        connection.ready_us[sender.name] = arrives_us
        self._clock.after(arrives_us - now_us, self._arrive, connection, sender.name, bytes(encode(message)))
        return True

    def _arrive(self, connection: Connection, sender: str, frame: bytes) -> None:
        if not connection.is_open:
            # Under way when it broke: lost, or read late.
            if self._rng.random() < 0.5:
                late_us = self._rng.randrange(_LATE_US_MAX)
                self._clock.after(late_us, self._deliver, connection, sender, frame)
            return
        self._deliver(connection, sender, frame)

    def _deliver(self, connection: Connection, sender: str, frame: bytes) -> None:
        end = connection.other(sender)
        if end.is_up and end.life == connection.lives[end.name]:
            for tag, _, body in Frames().receive(frame):
                end.receive(sender, decode(tag, body))
