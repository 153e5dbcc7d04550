"""The primary's side of the lease [rule 23]: for how long nobody takes over.

It is given by the one who could take over. A backup that heard an answer promotes nobody for `promise_ticks`;
its next question says which answer it heard, and from the moment that answer left the primary may take
proposals for `lease_ticks`, which is less.
"""

from millrace.replication.pair.messages import Check
from millrace.replication.pair.options import PairOptions


class Lease:
    __slots__ = ("_answers", "_options", "_until_tick")

    def __init__(self, options: PairOptions) -> None:
        self._options = options
        # When each recent answer left, by the number of its question.
        self._answers: dict[int, int] = {}
        self._until_tick = -1

    def on_check(self, body: Check, tick: int) -> None:
        """A question of the backup, which is answered now."""
        sent_tick = self._answers.get(body.answered)
        if sent_tick is not None:
            self._until_tick = max(self._until_tick, sent_tick + self._options.lease_ticks)
        if not body.answered:
            # Perhaps one that began anew, and counts anew.
            self._answers.clear()
        # A question that comes twice was answered when it came first: by that answer the backup counts.
        self._answers.setdefault(body.number, tick)
        while len(self._answers) > 2 * self._options.misses_max:
            del self._answers[next(iter(self._answers))]

    def runs(self, tick: int) -> bool:
        return tick < self._until_tick

    def end(self) -> None:
        """Another backup has promised nothing yet."""
        self._until_tick = -1
