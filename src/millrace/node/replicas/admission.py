"""Which blocks go into the log of a group: of every origin each number once, and in order [rule 2].

Every run of every node is an *origin* that numbers its blocks per group. The numbers applied are part of the
group's state; a leader also knows the numbers it has taken and not applied yet.
"""

from collections.abc import Callable
from dataclasses import replace

from millrace.limits import EARLY_BYTES_MAX, STAMP_LEAD_US_MAX
from millrace.node.replicas.app import App, Pending
from millrace.node.running_clock import RunningClock
from millrace.replication.contract import EntryKind
from millrace.storage.block import Block, Header

# Runs of nodes whose numbers are remembered; one more forgets the one that was quiet longest.
_ORIGINS_MAX = 1024


class Admission:
    def __init__(
        self,
        app: App,
        append: Callable[[tuple[bytes, ...], EntryKind], bool],
        is_alone: Callable[[], bool],
        wall_us: Callable[[], int],
        running_us: Callable[[], int],
    ) -> None:
        """`append` puts payloads into the log, all or none, and says whether they are there."""
        self._wall_us = wall_us
        self._running_us = running_us
        # As leader: the time of the log, which goes on from where it was, whatever the clock says.
        self._clock = RunningClock(wall_us, running_us)
        self._app = app
        self._append = append
        self._is_alone = is_alone
        self.origins: dict[int, int] = {}
        """Last number applied of each origin, in the order in which they were heard."""
        self.time_us = 0
        """Of the last block applied."""
        # As leader: last number and time taken, applied or not. Valid for one term of serving.
        self._taken: dict[int, int] = {}
        self._taken_time_us = 0
        self._early: list[Pending] = []
        self._early_bytes = 0

    def begin_term(self) -> None:
        """This replica leads from now on. Everything before its own-term entry is applied: the numbers taken
        are those applied."""
        self._taken = dict(self.origins)
        self._taken_time_us = self.time_us
        start_us = max(self._wall_us(), self.time_us)
        self._clock = RunningClock(self._wall_us, self._running_us, start_us)

    def applied(self, header: Header) -> None:
        self.time_us = max(self.time_us, header.base_time_us)
        if header.origin:
            self.origins.pop(header.origin, None)
            self.origins[header.origin] = header.sequence
            if len(self.origins) > _ORIGINS_MAX:
                del self.origins[next(iter(self.origins))]

    def take(self, batch: list[Pending]) -> bool:
        """Put blocks of one origin into the log. False where the log did not take all of them, or where one
        before them is missing: to be offered again."""
        origin = batch[0].block.header.origin
        taken = self._taken.get(origin, self.origins.get(origin, 0))
        fresh = [pending for pending in batch if pending.block.header.sequence > taken]
        if not fresh:
            return True
        if fresh[0].block.header.sequence != taken + 1:
            return False
        runs = self._admitted(fresh)
        for position, (kind, blocks) in enumerate(runs):
            if not self._append(tuple([self._timed(block, kind).to_bytes() for block in blocks]), kind):
                self._withdraw(runs[position:])
                return False
            self._taken[origin] = blocks[-1].header.sequence
        return True

    def keep_early(self, pending: Pending) -> None:
        """A forwarded block for a leader that is elected and whose first entry is not committed: its origin
        would come again a second later."""
        if self._early_bytes < EARLY_BYTES_MAX:
            self._early.append(pending)
            self._early_bytes += pending.block.header.block_bytes

    def take_early(self) -> None:
        early = self._early
        if early:
            self.forget_early()
            for pending in early:
                self.take([pending])

    def forget_early(self) -> None:
        self._early, self._early_bytes = [], 0

    def _timed(self, block: Block, kind: EntryKind) -> Block:
        """Time never goes back in a group [rule 2] and never runs ahead of the leader's clock by more than a
        bound, whatever the clocks of nodes do. Messages keep the time at which they came to their node, also
        where they waited for a leader; the time of everything else is that of the leader [rule 37]."""
        header = block.header
        if not header.base_time_us and not self._taken_time_us:
            # A group without time: the meta group, those of sessions.
            return block
        now_us = self._clock()
        earliest_us = self._taken_time_us
        if kind is not EntryKind.DATA and header.base_time_us < now_us - STAMP_LEAD_US_MAX:
            earliest_us = max(earliest_us, now_us)
        if earliest_us <= header.base_time_us <= now_us + STAMP_LEAD_US_MAX:
            self._taken_time_us = header.base_time_us
            return block
        latest_us = max(earliest_us, now_us + STAMP_LEAD_US_MAX)
        self._taken_time_us = min(max(header.base_time_us, earliest_us), latest_us)
        if header.base_time_us == self._taken_time_us:
            return block
        return Block(header=replace(header, base_time_us=self._taken_time_us), body=block.body)

    def _admitted(self, fresh: list[Pending]) -> list[tuple[EntryKind, list[Block]]]:
        """What goes into the log: the app may put a note in place of a block that says nothing new. Its
        number stays, so its origin learns that it is settled."""
        runs: list[tuple[EntryKind, list[Block]]] = []
        # Alone, whoever proposes has applied everything that could be repeated and asks before.
        is_alone = self._is_alone()
        for pending in fresh:
            block, kind = pending.block, pending.kind
            if kind is EntryKind.DATA and (pending.is_judged or not is_alone):
                admitted = self._app.admit(block, pending.token)
                if admitted is not block:
                    header = replace(
                        admitted.header, origin=block.header.origin, sequence=block.header.sequence
                    )
                    block = Block(header=header, body=admitted.body)
                    kind = EntryKind(int(header.kind))
            if runs and runs[-1][0] is kind:
                runs[-1][1].append(block)
            else:
                runs.append((kind, [block]))
        return runs

    def _withdraw(self, runs: list[tuple[EntryKind, list[Block]]]) -> None:
        """Not taken: what was admitted counts as new when it comes again, or it would pass for a repeat."""
        for kind, blocks in runs:
            if kind is EntryKind.DATA:
                for block in blocks:
                    self._app.withdraw(block)
