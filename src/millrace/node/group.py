"""The driver of one replication group: runs the machine's effects and applies what is committed.

The machine says what must happen and in which order (`replication/contract.py` lists the driver's duties);
the `App` is the replicated state on top. A proposal comes with a *token*, which is handed back with the
committed block, or with None when the entry was lost to another leader: that is how whoever waits for it is
answered. Nothing here knows what a block means.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol, assert_never

from millrace.node.replica_log import ReplicaLog
from millrace.node.syncer import Job, Syncer
from millrace.replication.contract import (
    Accepted,
    Applied,
    Commit,
    Effect,
    EntryKind,
    Event,
    InstallSnapshot,
    PeerBody,
    Persist,
    Persisted,
    Propose,
    ReadReady,
    Refused,
    Repaired,
    ReplicaId,
    Reply,
    RequestId,
    RoleChanged,
    Send,
    SnapshotTaken,
    StageSnapshot,
    Status,
    Tick,
    Transferred,
)
from millrace.replication.options import RaftOptions
from millrace.replication.raft import Raft
from millrace.storage.block import Block, Kind
from millrace.types import Index

log = logging.getLogger("millrace.group")

_APPLY_BYTES_MAX = 4 << 20
# A replica that is its own majority needs no one's silence to become leader.
_ALONE_TICKS_MAX = 100


class App(Protocol):
    """The replicated state of a group. `apply` is called once for each committed block, in order."""

    def apply(self, block: Block, token: Any) -> None:
        """Data and control blocks only. `token` is what the proposer gave, None for others' entries."""

    def to_bytes(self) -> bytes:
        """The whole state after the last applied block, for a snapshot."""

    def restore(self, state: bytes) -> None:
        """Begin from a snapshot."""


class Group:
    def __init__(
        self,
        number: int,
        replica: ReplicaId,
        replica_log: ReplicaLog,
        app: App,
        syncer: Syncer,
        *,
        voters: tuple[ReplicaId, ...],
        rng: Random,
        send: Callable[[int, ReplicaId, PeerBody], None],
        on_lost: Callable[[Any], None],
    ) -> None:
        self.number = number
        self.app = app
        self.replica_log = replica_log
        self._syncer = syncer
        self._send = send
        self._on_lost = on_lost
        state = replica_log.initial_state(voters)
        saved = replica_log.snapshot_state()
        if saved is not None:
            app.restore(saved)
        self.applied: Index = state.applied
        self._machine = Raft(replica, state=state, log=replica_log, options=RaftOptions(), rng=rng)
        self._is_alone = self._machine.status().config.voters == (replica,)
        self._next_request = 0
        # Proposals whose index is not known yet (between step and its Accepted), then by index.
        self._offered: tuple[Sequence[Block], Sequence[Any]] | None = None
        self._tokens: dict[int, tuple[int, Any]] = {}
        self._blocks: dict[int, Block] = {}
        # Effects that wait for a Persist: (number, effects).
        self._waiting: deque[tuple[int, list[Effect]]] = deque()
        self._accepted = False
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self.serving = asyncio.Event()
        if self._is_alone:
            self._elect_alone()

    def _elect_alone(self) -> None:
        """Let the time-out pass at once; the vote goes to disk, and `Persisted` does the rest."""
        for _ in range(_ALONE_TICKS_MAX):
            if self.status().role != "follower":
                return
            self.step(Tick())

    # --------------------------------------------------------------------------------- proposals

    def propose(self, blocks: Sequence[Block], tokens: Sequence[Any], kind: EntryKind) -> bool:
        """Offer blocks, one token each. False: refused, nothing happened. True: each token comes back with
        its block through `App.apply`, or alone through `on_lost`. Not to be called from `App.apply`."""
        assert not self._is_stepping
        self._next_request += 1
        self._offered = (blocks, tokens)
        self._accepted = False
        payloads = tuple(block.to_bytes() for block in blocks)
        self.step(Propose(request=RequestId(self._next_request), payloads=payloads, kind=kind))
        self._offered = None
        return self._accepted

    def status(self) -> Status:
        return self._machine.status()

    @property
    def is_serving(self) -> bool:
        return self._machine.status().serving

    def tick(self) -> None:
        """Time passes. A replica alone has no one to speak to and nothing to wait for."""
        if not self._is_alone:
            self.step(Tick())

    def snapshot_taken(self) -> None:
        """*blocking* Write the state as a snapshot; for the end of a run and for quiet times."""
        index = self.applied
        if index == 0 or (self.replica_log.snapshot() or _NOTHING).index == index:
            return
        term = self.replica_log.term(index)
        assert term is not None
        config = self._machine.config_at(index)
        self.replica_log.take_snapshot(index, term, config, self.app.to_bytes())
        self.step(SnapshotTaken(index=index, term=term, config=config))

    # ----------------------------------------------------------------------------------- effects

    def step(self, event: Event) -> None:
        """One event. Called while the effects of another run, it waits its turn: lists keep their order."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                self._run(self._machine.step(self._events.popleft()))
        finally:
            self._is_stepping = False

    def _run(self, effects: list[Effect]) -> None:
        # The answer to a proposal stands after its Persist, but the blocks are needed to persist them.
        for position, effect in enumerate(effects):
            if isinstance(effect, Persist):
                self._waiting.append((effect.number, effects[position + 1 :]))
                self._note_accepted(effects[position + 1 :])
                self._persist(effect)
                return
            self._run_one(effect)

    def _note_accepted(self, effects: list[Effect]) -> None:
        """Learn where the offered blocks were put. `Accepted` promises nothing, so it may be read early."""
        for effect in effects:
            if isinstance(effect, Reply) and isinstance(effect.outcome, Accepted) and self._offered:
                self._place(effect.outcome)

    def _place(self, accepted: Accepted) -> None:
        assert self._offered is not None
        blocks, tokens = self._offered
        self._accepted = True
        for position, token in enumerate(tokens):
            index = accepted.first_index + position
            self._tokens[index] = (accepted.term, token)
            self._blocks[index] = blocks[position]
        self._offered = None

    def _run_one(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(self.number, effect.to, effect.body)
            case Commit():
                self._commit(effect.index)
            case Reply():
                self._reply(effect)
            case RoleChanged():
                log.debug(
                    "group %d: %s in term %d%s",
                    self.number,
                    effect.role,
                    effect.term,
                    ", serving" if effect.serving else "",
                )
                if effect.serving:
                    self.serving.set()
                else:
                    self.serving.clear()
            case Repaired() | StageSnapshot() | InstallSnapshot():
                raise AssertionError(f"{type(effect).__name__} needs peers, and there are none yet")
            case Persist():
                raise AssertionError("a list has one Persist at most")
            case _:
                assert_never(effect)

    def _reply(self, reply: Reply) -> None:
        match reply.outcome:
            case Accepted():
                if self._offered is not None:
                    self._place(reply.outcome)
            case Refused() | ReadReady() | Transferred():
                log.debug("group %d: %s", self.number, reply.outcome)

    def _persist(self, persist: Persist) -> None:
        if persist.truncate_from is not None:
            self.replica_log.rewind(persist.truncate_from)
            for index in [i for i in self._tokens if i >= persist.truncate_from]:
                self._on_lost(self._tokens.pop(index)[1])
                self._blocks.pop(index, None)
        stamped = []
        for entry in persist.entries:
            block = self.replica_log.stamp(entry, self._blocks.get(entry.index))
            self._blocks[entry.index] = block
            stamped.append(block)
        self._syncer.submit(Job(self.replica_log, persist, stamped, self._persisted))

    def _persisted(self, number: int) -> None:
        while self._waiting and self._waiting[0][0] <= number:
            _, effects = self._waiting.popleft()
            for effect in effects:
                self._run_one(effect)
        self.step(Persisted(number=number))

    def _commit(self, index: Index) -> None:
        while self.applied < index:
            first = Index(self.applied + 1)
            block = self._blocks.pop(first, None)
            blocks = [block] if block is not None else self.replica_log.blocks(first, index, _APPLY_BYTES_MAX)
            for found in blocks:
                header = found.header
                term, token = self._tokens.pop(header.index, (0, None))
                if token is not None and term != header.term:
                    self._on_lost(token)
                    token = None
                if header.kind in (Kind.DATA, Kind.CONTROL):
                    self.app.apply(found, token)
                self.applied = Index(header.index)
        self.step(Applied(index=self.applied))


class _Nothing:
    index = Index(0)


_NOTHING = _Nothing()
