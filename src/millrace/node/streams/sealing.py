"""Sealed shards: what replaces them waits for their end, so that the order of a topic holds across a change.

A stream that gets other shards seals the old ones [rule 16]. A message that went to a sealed log and was
refused there goes to the new one, before anything that came in after it; and a reader gets nothing from the
new log before the old one is complete at this node."""

import logging
from collections.abc import Callable

from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Intake
from millrace.node.leaderless.streams import LeaderlessStreams
from millrace.node.shards.shard import FINISH_MS, Shard
from millrace.node.streams.definitions import Definitions
from millrace.reasons import Reason

log = logging.getLogger("millrace.streams")


class Sealing:
    """Which shards are on their way out, and who waits for them."""

    def __init__(
        self,
        definitions: Definitions,
        shards: dict[int, Shard],
        leaderless: LeaderlessStreams,
        broker: Broker,
        now_ms: Callable[[], int],
    ) -> None:
        self._definitions = definitions
        self._shards = shards
        self._leaderless = leaderless
        self._broker = broker
        self._now_ms = now_ms
        # Sealed shards whose end did not come in time.
        self._given_up: set[int] = set()
        self.too_early: list[Intake] = []
        """Messages that wait for earlier ones on their way to a sealed shard."""

    def seal(self, shard: Shard) -> None:
        shard.seal(is_complete=not self._definitions.state.writers.waiting(shard.number))

    def seal_again(self) -> None:
        """The entry that seals may have been lost with a leader or with a run of this program, or it still
        waits for batches that were decided before."""
        for shard in self._shards.values():
            if shard.is_retired and not shard.is_finished:
                self.seal(shard)

    def hold_back(self) -> None:
        """Find which logs wait for older ones [rule 16]: before a sealed log is complete here nothing is
        delivered from those opened since, as they may go on with the same topics."""
        outbound, now_ms = self._broker.outbound, self._now_ms()
        retired = [number for number, shard in self._shards.items() if shard.is_retired]
        outbound.sealed = {number: number for number in retired} | self._leaderless.retired_logs()
        unfinished = []
        for number in retired:
            shard = self._shards[number]
            if shard.is_finished:
                continue
            if shard.finish_by_ms is None:
                shard.finish_by_ms = now_ms + FINISH_MS
            if now_ms < shard.finish_by_ms:
                unfinished.append(number)
            elif number not in self._given_up:
                self._given_up.add(number)
                log.error(
                    "shard %d was not sealed in time: newer messages are delivered before its last", number
                )
        oldest = min(unfinished, default=None)
        outbound.held = set()
        if oldest is not None:
            outbound.held.update((n for n in self._shards if n > oldest), self._leaderless.logs_after(oldest))

    def in_time(self, waiting: list[Intake], *, is_out_of_space: bool) -> list[Intake]:
        """Those whose messages may go on now; the others wait in `too_early`. They wait for messages that
        came in before and are still on their way to a log that is sealed, as what it refuses goes first;
        where that log's leader was quicker, for the definition of the log that comes after it; or for a
        leaderless log to be where they will be."""
        waiting = [*self.too_early, *waiting]
        sealed = self._shards.keys() & self._broker.outbound.sealed.keys() - self._given_up
        pending = {number for number in sealed if self._shards[number].group.has_data_pending}
        spreading = self._leaderless.spreading()
        self.too_early = []
        in_time: list[Intake] = []
        for intake in waiting:
            shard = self._shards.get(intake.shard)
            if intake.is_sealed and shard is not None and not shard.is_retired:
                is_early = True
                if is_out_of_space:
                    arrivals, intake.arrivals = intake.arrivals, []
                    shard.refuse(arrivals, Reason.QUOTA_EXCEEDED)
                    continue
            elif intake.is_sealed:
                # All that it refuses in one go, in their order.
                is_early = intake.shard in pending or intake.shard in spreading
            else:
                # Also in an older log: a topic may fall back to the stream that it was taken from.
                is_early = bool(pending) or intake.shard in spreading
            (self.too_early if is_early else in_time).append(intake)
        return sorted(in_time, key=lambda intake: not intake.is_sealed)
