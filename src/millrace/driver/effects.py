"""The driver of any replication machine: one event at a time goes in, and what comes out happens in order.

A machine decides and does nothing; the `EffectDriver` does what it decided. It keeps the duties 1 to 3 and 6
of `replication/contract.py` for every protocol: the effects of one list run in list order, what stands behind
a write waits until that write is on disk, writes complete in order, and an event that arises while effects
run waits its turn. What a write or any other effect *means* is the owner's business:

- the log takes writes (`WriteLog`) and says, through `persisted`, when they are on disk;
- the network takes messages (`Network`);
- time is an event like any other: whoever owns a clock steps `Tick`;
- every other kind of effect has a *runner*, a function of the owner that is looked up by the effect's type.

Nodes, the simulator and the tests differ only in what stands behind these. The simulator sees every step by
wrapping the machine, and every effect by wrapping the runners, the log and the network.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from millrace.errors import StorageError
from millrace.replication.contract import PeerBody, Persisted, ReplicaId, Send

EventT = TypeVar("EventT", contravariant=True)
EffectT = TypeVar("EffectT")
WriteT = TypeVar("WriteT", contravariant=True)

Runner = Callable[[Any], None]
"""What is done for one kind of effect."""
_Rest = tuple[Sequence[Any], int]
"""A list of effects of which those from this position on are left to run."""


class SteppedMachine(Protocol[EventT, EffectT]):
    def step(self, event: EventT) -> list[EffectT]: ...


class WriteLog(Protocol[WriteT]):
    """Where a machine's writes go."""

    def write(self, write: WriteT) -> None:
        """Put this behind all that was written before. Once it is on disk, and so is all before it, call
        `EffectDriver.persisted` with its number, now or later. A write that failed is never reported."""


class Network(Protocol):
    def send(self, to: ReplicaId, body: PeerBody) -> None:
        """Send it, or lose it: a machine never depends on the network."""


class EffectDriver(Generic[EventT, EffectT]):
    def __init__(
        self,
        machine: SteppedMachine[EventT, EffectT],
        *,
        network: Network,
        runners: Mapping[type, Runner],
        write_kind: type | None = None,
        log: WriteLog[Any] | None = None,
        on_storage_error: Callable[[StorageError], bool] | None = None,
    ) -> None:
        """`write_kind` is the type of this machine's writes, None for one that keeps nothing on disk.
        `on_storage_error` may stop the driver and return True; whatever it does not take is raised."""
        self.is_stopped = False
        """Nothing is stepped and no effect runs any more."""
        self.is_stepping = False
        self._machine = machine
        self._network = network
        self._runners = runners
        self._write_kind = write_kind
        self._log = log
        self._on_storage_error = on_storage_error
        self._queue: deque[EventT | _Rest] = deque()
        # Writes that are not on disk yet, each with what waits for it.
        self._waiting: deque[tuple[int, _Rest]] = deque()
        self._last_write = 0

    @property
    def writes_waiting(self) -> int:
        """Writes that were given to the log and not reported yet."""
        return len(self._waiting)

    def stop(self) -> None:
        """Also in the middle of a list: what is left of it does not happen."""
        self.is_stopped = True
        self._queue.clear()

    def step(self, event: EventT) -> Sequence[EffectT]:
        """Step one event and run its effects, and then the events that arose meanwhile. Returns the effects
        of this event; none where it waits its turn, because it was stepped while the effects of another one
        run."""
        if self.is_stopped:
            return ()
        self._queue.append(event)
        return self._drain(event)

    def run(self, effects: Sequence[Any]) -> None:
        """Run effects that were put off, as those of a step."""
        if not self.is_stopped:
            self._queue.append((effects, 0))
            self._drain(None)

    def _drain(self, event: EventT | None) -> Sequence[EffectT]:
        """Everything that is queued, in order; returns the effects of this event."""
        if self.is_stepping:
            return ()
        self.is_stepping = True
        own: Sequence[EffectT] = ()
        queue = self._queue
        try:
            while queue:
                item: Any = queue.popleft()
                if type(item) is tuple:
                    self._run(*item)
                else:
                    effects = self._machine.step(item)
                    if item is event:
                        own = effects
                    if effects:
                        self._run(effects, 0)
        except StorageError as error:
            if self._on_storage_error is None or not self._on_storage_error(error):
                raise
        finally:
            self.is_stepping = False
        return own

    def persisted(self, number: int, *, tells_first: bool = False) -> None:
        """Everything up to this write is on disk: what waited for it runs, and the machine is told. The order
        of the two is open; with `tells_first` the machine hears of it before anything that waited runs."""
        if self.is_stopped:
            return
        due: list[Any] = []
        while self._waiting and self._waiting[0][0] <= number:
            rest = self._waiting.popleft()[1]
            if rest[1] < len(rest[0]):
                due.append(rest)
        due.insert(0 if tells_first else len(due), Persisted(number=number))
        self._queue.extend(due[:-1])
        self.step(due[-1])

    def _run(self, effects: Sequence[Any], start: int) -> None:
        for position in range(start, len(effects)):
            if self.is_stopped:
                # By one of these effects: nothing may be on its way to the disk from there on.
                return
            effect = effects[position]
            kind = type(effect)
            if kind is Send:
                self._network.send(effect.to, effect.body)
            elif kind is self._write_kind:
                assert start == 0, "a list has one write at most"
                self._hold(effect, effects, position + 1)
                return
            else:
                self._runners[kind](effect)

    def _hold(self, write: Any, effects: Sequence[Any], rest: int) -> None:
        """Write, and let the effects from `rest` on wait for it."""
        assert self._log is not None
        assert write.number == self._last_write + 1, "writes are numbered one by one"
        self._last_write = write.number
        self._waiting.append((write.number, (effects, rest)))
        self._log.write(write)
