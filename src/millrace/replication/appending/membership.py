"""Who counts, as a function of the log: one replica at a time, in force from the append on.

This is section 4.1 of the Raft thesis with its correction of 2015. Two configurations that differ by one
voter have overlapping majorities, so no joint phase is needed, under three rules:

- A change begins only after the change before it is committed.
- A change begins only after the leader has committed an entry of its own term. Without this rule two leaders
  can each commit a change made from the same base.
- A configuration whose entry is truncated is forgotten with it.

The leader keeps the first two (`Leader._unsettled`), the follower the third. Decision 003 has the reasons.
"""

from dataclasses import dataclass

from millrace.replication.contract import (
    ChangeKind,
    Config,
    ConfigAt,
    Entry,
    EntryKind,
    RefusedReason,
    ReplicaId,
)
from millrace.types import Index, Term


@dataclass(frozen=True, slots=True)
class _Item:
    index: Index
    config: Config
    term: Term | None
    """Of the entry that set it; None for a base, whose entry may be compacted."""


class ConfigHistory:
    """The configurations that entries of this log set, oldest first. Never empty."""

    __slots__ = ("_history", "config", "index", "term")

    def __init__(self, base: ConfigAt) -> None:
        self.config: Config
        self.index: Index
        """Where the configuration in force was set."""
        self.term: Term | None
        """The term of the entry there, if it is known."""
        self.reset(base)

    def _follow(self) -> None:
        """What is in force is asked in every step, and changes about never."""
        last = self._history[-1]
        self.config, self.index, self.term = last.config, last.index, last.term

    @property
    def replaced(self) -> Config:
        """The one before the configuration in force, while that is not known to be committed."""
        return self._history[-2].config

    def at(self, index: Index) -> Config:
        for item in reversed(self._history):
            if item.index <= index:
                return item.config
        raise AssertionError(f"the configuration at {index} lies before what this replica remembers")

    def append(self, entry: Entry) -> None:
        assert entry.kind is EntryKind.CONFIG and entry.index > self.index
        self._history.append(_Item(entry.index, Config.decode(entry.payload), entry.term))
        self._follow()

    def truncate_from(self, index: Index) -> None:
        while self._history[-1].index >= index:
            self._history.pop()
        self._follow()

    def compact(self, index: Index) -> None:
        """Forget what was replaced at or before `index`."""
        while len(self._history) > 1 and self._history[1].index <= index:
            self._history.pop(0)

    def reset(self, base: ConfigAt) -> None:
        self._history = [_Item(base.index, base.config, None)]
        self._follow()


def change(config: Config, kind: ChangeKind, replica: ReplicaId) -> Config | RefusedReason:
    """The configuration after the change, or why there is none."""
    voters, learners = set(config.voters), set(config.learners)
    if kind is ChangeKind.ADD_LEARNER:
        if replica in voters or replica in learners:
            return RefusedReason.ALREADY_SO
        learners.add(replica)
    elif replica not in voters and replica not in learners:
        return RefusedReason.NO_SUCH_REPLICA
    elif kind is ChangeKind.PROMOTE:
        if replica in voters:
            return RefusedReason.ALREADY_SO
        learners.remove(replica)
        voters.add(replica)
    elif config.voters == (replica,):
        return RefusedReason.LAST_VOTER
    elif kind is ChangeKind.DEMOTE:
        if replica in learners:
            return RefusedReason.ALREADY_SO
        voters.remove(replica)
        learners.add(replica)
    else:
        assert kind is ChangeKind.REMOVE
        voters.discard(replica)
        learners.discard(replica)
    return Config(voters=tuple(sorted(voters)), learners=tuple(sorted(learners)))
