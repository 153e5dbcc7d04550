"""A replica that writes down what goes in and comes out, and checks the rules of effect lists each step.

A machine's inputs are its events, what its `LogView` answered and its random numbers. All three are recorded
or known, so a replay to a fresh machine must give the same effects, or there was a fourth input.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from millrace.replication.contract import (
    ChangeMembership,
    Commit,
    Config,
    Effect,
    Entry,
    Event,
    InstallSnapshot,
    LogView,
    Persist,
    Persisted,
    Propose,
    ReadIndex,
    Replica,
    Reply,
    RequestId,
    Snapshot,
    Status,
    TransferLeadership,
)
from millrace.types import Index, Term

EFFECTS_PER_STEP_MAX = 2000


class RecordingView:
    """A `LogView` that remembers every question and answer."""

    def __init__(self, view: LogView) -> None:
        self._view = view
        self.calls: list[tuple[str, tuple[object, ...], object]] = []

    def _note(self, method: str, *arguments: object) -> Any:
        answer = getattr(self._view, method)(*arguments)
        self.calls.append((method, arguments, answer))
        return answer

    def first_index(self) -> Index:
        return cast(Index, self._note("first_index"))

    def last_index(self) -> Index:
        return cast(Index, self._note("last_index"))

    def term(self, index: Index) -> Term | None:
        return cast(Term | None, self._note("term", index))

    def entries(self, first: Index, last: Index, bytes_max: int) -> Sequence[Entry]:
        return cast(Sequence[Entry], self._note("entries", first, last, bytes_max))

    def snapshot(self) -> Snapshot | None:
        return cast(Snapshot | None, self._note("snapshot"))

    def snapshot_bytes(self, snapshot: Snapshot, position: int, bytes_max: int) -> bytes:
        return cast(bytes, self._note("snapshot_bytes", snapshot, position, bytes_max))


class ReplayedView(RecordingView):
    """Gives the recorded answers, and insists on the recorded questions."""

    def __init__(self, recorded: RecordingView) -> None:
        self._answers = iter(recorded.calls)

    def _note(self, method: str, *arguments: object) -> Any:
        expected = next(self._answers, None)
        assert expected is not None and expected[:2] == (method, arguments), (expected, method, arguments)
        return expected[2]


@dataclass
class Recording:
    """Wraps one machine from its start on. Also a `Replica`, so any driver runs it unawares."""

    machine: Replica
    applied: int
    steps: list[tuple[Event, list[Effect]]] = field(default_factory=list)
    number: int = 0
    persisted: int = 0
    open_requests: set[RequestId] = field(default_factory=set)

    def step(self, event: Event) -> list[Effect]:
        effects = self.machine.step(event)
        self.steps.append((event, list(effects)))
        if isinstance(event, Persisted):
            self.persisted = max(self.persisted, event.number)
        self._check_order(effects)
        self._check_log_order(effects)
        self._check_answers(event, effects)
        assert len(effects) <= EFFECTS_PER_STEP_MAX
        return effects

    def status(self) -> Status:
        return self.machine.status()

    def config_at(self, index: Index) -> Config:
        return self.machine.config_at(index)

    @property
    def writes_pending(self) -> int:
        return self.number - self.persisted

    def _check_order(self, effects: list[Effect]) -> None:
        """One write at most, numbered in sequence; nothing that feeds the state machine waits for it."""
        positions = [place for place, effect in enumerate(effects) if isinstance(effect, Persist)]
        assert len(positions) <= 1, "two writes in one list"
        for place in positions:
            write = effects[place]
            assert isinstance(write, Persist)
            self.number += 1
            assert write.number == self.number, "writes are numbered one by one"
            assert not any(isinstance(effect, Commit | InstallSnapshot | Reply) for effect in effects[place:])
            indexes = [entry.index for entry in write.entries]
            assert indexes == list(range(indexes[0], indexes[0] + len(indexes))) if indexes else True
            if write.truncate_from is not None and indexes:
                assert indexes[0] == write.truncate_from

    def _check_log_order(self, effects: list[Effect]) -> None:
        """Each index is given to the state machine once, in order."""
        for effect in effects:
            if isinstance(effect, Commit):
                assert effect.index > self.applied, "an index was given to apply twice"
                self.applied = effect.index
            if isinstance(effect, InstallSnapshot):
                assert effect.snapshot.index >= self.applied, "a snapshot goes back"
                self.applied = effect.snapshot.index

    def _check_answers(self, event: Event, effects: list[Effect]) -> None:
        """No request is answered twice or unasked; a proposal and a change are answered at once."""
        if isinstance(event, Propose | ReadIndex | ChangeMembership | TransferLeadership):
            assert event.request not in self.open_requests
            self.open_requests.add(event.request)
        for effect in effects:
            if isinstance(effect, Reply):
                assert effect.request in self.open_requests, "answered unasked or twice"
                self.open_requests.remove(effect.request)
        if isinstance(event, Propose | ChangeMembership):
            assert event.request not in self.open_requests, "not answered at once"
