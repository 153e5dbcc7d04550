"""The driver of a replica that applies one log: Raft and primary-backup (`replication/contract.py`).

To the order of effects it adds the duties about the state on top of the log: what is committed is applied in
log order, each entry once; a snapshot from the leader takes the place of the state; the machine hears how far
the state is. The state may lag behind, and so may the machine's knowledge of it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from millrace.driver.effects import EffectDriver, Network, Runner, SteppedMachine, WriteLog
from millrace.errors import StorageError
from millrace.replication.contract import (
    Applied,
    ChangeMembership,
    Commit,
    Effect,
    Event,
    InstallSnapshot,
    Outcome,
    Persist,
    Propose,
    ReadIndex,
    Repaired,
    Reply,
    RoleChanged,
    Snapshot,
    StageSnapshot,
    TransferLeadership,
)
from millrace.types import Index

EntryT = TypeVar("EntryT")
EntryInT = TypeVar("EntryInT", contravariant=True)
EntryOutT = TypeVar("EntryOutT", covariant=True)


class AppliedLog(WriteLog[Persist], Protocol[EntryOutT]):
    """The log of one replica. The form in which it gives entries is between it and the state."""

    def stage(self, snapshot: Snapshot, position: int, data: bytes) -> None:
        """See `StageSnapshot`."""

    def repaired(self) -> None:
        """See `Repaired`."""

    def committed(self, first: Index, last: Index) -> Sequence[EntryOutT]:
        """Entries of the disk from `first` on, in order and without a gap, up to `last` or as many as are
        good to have at a time. None only after `ReplicaDriver.pass_over`."""


class AppliedState(Protocol[EntryInT]):
    """The state on top of the log, and whoever hears what becomes of the replica."""

    def apply(self, entry: EntryInT) -> None:
        """The next entry; `ReplicaDriver.applied` says its index."""

    def restore(self, snapshot: Snapshot, loaded: Callable[[], None]) -> None:
        """Load this snapshot, which is the disk's newest, and call `loaded` once that is done: at once, or
        later. Until then nothing is applied; but another one may come, to be loaded behind it."""

    def has_applied(self) -> None:
        """After each run of entries and each snapshot: time to call `ReplicaDriver.tell_applied`, at once or
        later."""

    def on_reply(self, reply: Reply) -> None: ...

    def on_role_changed(self, change: RoleChanged) -> None: ...


@dataclass(frozen=True, slots=True)
class _Resume:
    """What was committed while a snapshot was loaded is applied now."""

    index: Index


class ReplicaDriver(EffectDriver[Event, Effect]):
    def __init__(
        self,
        machine: SteppedMachine[Event, Effect],
        *,
        network: Network,
        log: AppliedLog[EntryT],
        state: AppliedState[EntryT],
        applied: Index,
        runners: Mapping[type, Runner] | None = None,
        on_storage_error: Callable[[StorageError], bool] | None = None,
    ) -> None:
        """`applied` is what the state holds already. `runners` are for the effects of one protocol only, and
        take the place of those given here."""
        own: dict[type, Runner] = {
            Commit: lambda effect: self.apply_to(effect.index),
            Reply: state.on_reply,
            RoleChanged: state.on_role_changed,
            StageSnapshot: lambda effect: log.stage(effect.snapshot, effect.position, effect.data),
            InstallSnapshot: self.install,
            Repaired: lambda effect: log.repaired(),
            _Resume: lambda effect: self.apply_to(effect.index),
        }
        super().__init__(
            machine,
            network=network,
            runners={**own, **(runners or {})},
            write_kind=Persist,
            log=log,
            on_storage_error=on_storage_error,
        )
        self.applied = applied
        """The last entry that is part of the state."""
        self._told = applied
        # The last snapshot that is being loaded, and what is to be applied when it is.
        self._loading: Index | None = None
        self._put_off = Index(0)
        self._entries: Callable[[Index, Index], Sequence[Any]] = log.committed
        self._state: AppliedState[Any] = state

    def ask(self, request: Propose | ReadIndex | ChangeMembership | TransferLeadership) -> Outcome | None:
        """Step a request. Returns what the machine answered at once; None where it answers later, if ever."""
        for effect in self.step(request):
            if type(effect) is Reply and effect.request == request.request:
                return effect.outcome
        return None

    def apply_to(self, commit: Index) -> None:
        """Apply everything up to this committed index."""
        if self._loading is not None:
            self._put_off = commit
            return
        while self.applied < commit:
            for entry in self._entries(Index(self.applied + 1), commit):
                self.applied = Index(self.applied + 1)
                self._state.apply(entry)
        self._state.has_applied()

    def pass_over(self, last: Index) -> None:
        """Nobody has the entries up to `last`: the state goes on without them."""
        self.applied = last

    @property
    def has_told_applied(self) -> bool:
        """Whether the machine knows how far the state is."""
        return self._told == self.applied

    def tell_applied(self) -> None:
        """Step `Applied`, unless the machine knows."""
        if self._told != self.applied:
            self._told = self.applied
            self.step(Applied(index=self.applied))

    def install(self, effect: InstallSnapshot) -> None:
        """The snapshot takes the place of the state, unless that is past it."""
        index = effect.snapshot.index
        if index <= (self._loading or self.applied):
            self._has_installed()
            return
        # What was committed before it is not in the log any more.
        self._loading, self._put_off = index, Index(0)
        self._state.restore(effect.snapshot, lambda: self._loaded(index))

    def _loaded(self, index: Index) -> None:
        if self.is_stopped:
            return
        self.applied = index
        if index == self._loading:
            self._loading = None
            self._has_installed()
            if self._put_off > index:
                # As an effect: nothing is applied while another list is being run.
                self.run([_Resume(self._put_off)])

    def _has_installed(self) -> None:
        self._state.has_applied()
        self.tell_applied()
