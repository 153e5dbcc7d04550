"""The coordinator of staged publishing: per writer the last batch that was decided, and which attempts won.

Part of the meta group's state, so a decision is one entry on a majority's disks, every node learns of it by
applying it, and shards are sealed and decisions made in one order [rules 27, 28].

`commit` takes a batch above the last one and records the winners once; the same batch, or one below, changes
nothing, whoever asks: that makes a repeat harmless and fences a second driver. From then on the batch will be
visible whoever dies: the leaders of the shards roll it forward and report `rolled`, and when none is left the
winners are forgotten. `abort` records attempts that will never win. A shard lets go of staged data only by
what is recorded here.
"""

from collections.abc import Callable, Mapping

import msgspec

from millrace.broker.shards.staging import AttemptKey, check_name
from millrace.errors import LocalError
from millrace.limits import ATTEMPTS_MAX, DECISIONS_MAX, WRITERS_MAX

Winners = dict[str, dict[int, int]]
"""For each attempt the shards it staged at, and how many blocks."""


class Decision(msgspec.Struct):
    batch: int
    winners: Winners
    left: list[int]
    """Shards that have not rolled it forward, in order."""

    def attempts(self, shard: int) -> list[tuple[str, int]]:
        """The attempts that won at this shard, in the order in which they are released, with their blocks."""
        return [(name, shards[shard]) for name, shards in sorted(self.winners.items()) if shard in shards]


class Writer(msgspec.Struct):
    user: str
    last: int = -1
    decisions: list[Decision] = []
    aborted: dict[str, int] = {}
    """Attempts that were given up, with their batch, the latest last; only those above the last batch."""

    def decision(self, batch: int) -> Decision | None:
        return next((one for one in self.decisions if one.batch == batch), None)


class Writers:
    """Deterministic. Every method is one command; LocalError says why it changed nothing."""

    __slots__ = ("_rolling", "writers")

    def __init__(self, writers: Mapping[str, Writer] | None = None) -> None:
        # The one that has been quiet longest comes first.
        self.writers = dict(writers or {})
        # Those with a decision, since few of many have one.
        self._rolling = {name: writer for name, writer in self.writers.items() if writer.decisions}

    # ------------------------------------------------------------------------------------ commands

    def commit(
        self, name: str, batch: int, winners: Winners, user: str, is_open: Callable[[int], bool]
    ) -> bool:
        """Decide a batch. False for one that was decided before. `is_open`: whether a shard takes data."""
        for attempt in winners:
            check_name("attempt", attempt)
        writer = self._writer(name, user)
        if batch <= writer.last:
            return False
        if len(winners) > ATTEMPTS_MAX:
            raise LocalError(
                f"{len(winners)} attempts are too many for one batch; the most is {ATTEMPTS_MAX}"
            )
        if len(writer.decisions) >= DECISIONS_MAX:
            raise LocalError(f"writer {name}: {DECISIONS_MAX} batches are not visible yet; try again")
        given_up = sorted(winners.keys() & writer.aborted.keys())
        if given_up:
            raise LocalError(f"writer {name}: attempt {given_up[0]} was given up; stage the batch again")
        shards = {shard for placed in winners.values() for shard in placed}
        sealed = sorted(shard for shard in shards if not is_open(shard))
        if sealed:
            raise LocalError(
                f"writer {name}: shard {sealed[0]} takes no more data, its stream was changed; "
                "stage the batch again"
            )
        writer.last = batch
        writer.aborted = {attempt: b for attempt, b in writer.aborted.items() if b > batch}
        if shards:
            writer.decisions.append(Decision(batch, winners, sorted(shards)))
            self._rolling[name] = writer
        return True

    def abort(self, name: str, batch: int, attempts: list[str], user: str) -> None:
        """These attempts will never win. One that has won already is not touched."""
        for attempt in attempts:
            check_name("attempt", attempt)
        if len(attempts) > ATTEMPTS_MAX:
            raise LocalError(
                f"{len(attempts)} attempts are too many to give up at once; the most is {ATTEMPTS_MAX}"
            )
        writer = self._writer(name, user)
        if batch <= writer.last:
            return
        for attempt in attempts:
            writer.aborted.pop(attempt, None)
            writer.aborted[attempt] = batch
        # A writer may never commit again. What it gave up first was let go long ago, and so cannot win.
        for attempt in list(writer.aborted)[:-ATTEMPTS_MAX]:
            del writer.aborted[attempt]

    def rolled(self, name: str, batch: int, shard: int) -> None:
        """The batch is visible at this shard."""
        writer = self.writers.get(name)
        decision = writer.decision(batch) if writer is not None else None
        if writer is None or decision is None:
            return
        if shard in decision.left:
            decision.left.remove(shard)
        if not decision.left:
            writer.decisions.remove(decision)
            if not writer.decisions:
                del self._rolling[name]

    def remove_shards(self, shards: tuple[int, ...]) -> None:
        """A stream was deleted with everything in it: nothing is left to roll forward there."""
        for name, writer in list(self._rolling.items()):
            for decision in list(writer.decisions):
                for shard in set(decision.left).intersection(shards):
                    self.rolled(name, decision.batch, shard)

    def _writer(self, name: str, user: str) -> Writer:
        """The record of a writer, made where there is none. It belongs to the user who came first."""
        check_name("writer", name)
        writer = self.writers.pop(name, None)
        if writer is None:
            writer = Writer(user)
            if len(self.writers) >= WRITERS_MAX:
                idle = (other for other, record in self.writers.items() if not record.decisions)
                oldest = next(idle, None)
                if oldest is None:
                    raise LocalError(
                        f"{WRITERS_MAX} writers have batches that are not visible yet; try again"
                    )
                del self.writers[oldest]
        self.writers[name] = writer
        if writer.user != user:
            raise LocalError(f"writer {name} belongs to another user")
        return writer

    # ------------------------------------------------------------------------------------- answers

    def is_given_up(self, owner: AttemptKey) -> bool:
        """Whether staged data of this attempt may be let go: it was aborted, or its batch is decided and
        either others won or it is visible wherever it was staged."""
        writer = self.writers.get(owner.writer)
        if writer is None:
            return False
        if writer.aborted.get(owner.attempt) == owner.batch:
            return True
        if owner.batch > writer.last:
            return False
        decision = writer.decision(owner.batch)
        return decision is None or owner.attempt not in decision.winners

    def waiting(self, shard: int) -> list[tuple[str, Decision]]:
        """What this shard has to roll forward, the batches of each writer in order."""
        return [
            (name, decision)
            for name, writer in self._rolling.items()
            for decision in writer.decisions
            if shard in decision.left
        ]


def winners_from(fields: Mapping[str, Mapping[str, int]]) -> Winners:
    """As JSON has them: numbers of shards are text there. LocalError for anything else."""
    winners: Winners = {}
    for attempt, placed in fields.items():
        check_name("attempt", attempt)
        try:
            winners[attempt] = {int(shard): int(blocks) for shard, blocks in placed.items()}
        except (AttributeError, TypeError, ValueError):
            raise LocalError(f"attempt {attempt}: expected the number of blocks at each shard") from None
        if any(blocks < 1 for blocks in winners[attempt].values()):
            raise LocalError(f"attempt {attempt}: a shard where it staged has at least one block")
    return winners
