"""What writers of a simulated cluster staged and asked for, and what may be in the logs for it.

Every row says in its payload who wrote it: writer, batch, attempt and a number. A *wish* is what one commit
named: the attempts that were to win, with all their rows. Of a batch that was decided exactly one wish is in
the logs, whole and once; of everything else nothing is, ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.lab.sim.violation import Violation

Batch = tuple[str, int]
"""Writer and number."""


def payload_of(batch: Batch, attempt: str, number: int, size: int) -> bytes:
    return f"{batch[0]} {batch[1]} {attempt} {number} ".encode().ljust(size, b".")


@dataclass(frozen=True, slots=True)
class Row:
    batch: Batch
    attempt: str

    @staticmethod
    def read(payload: bytes) -> "Row":
        writer, number, attempt, _ = payload.decode().split(" ", 3)
        return Row((writer, int(number)), attempt)


@dataclass(slots=True)
class Ledger:
    wishes: dict[Batch, list[dict[str, frozenset[bytes]]]] = field(default_factory=dict)
    """What commits named, each the rows of its attempts."""
    decided: dict[Batch, int] = field(default_factory=dict)
    """Batches of which a commit was answered, and how many were told that theirs decided it."""

    def wish(self, batch: Batch, attempts: Mapping[str, Sequence[bytes]]) -> None:
        """A commit is about to be sent."""
        rows = {name: frozenset(payloads) for name, payloads in attempts.items()}
        self.wishes.setdefault(batch, []).append(rows)

    def last_decided(self, writer: str) -> int:
        return max((number for name, number in self.decided if name == writer), default=-1)

    def answered(self, batch: Batch, *, is_repeat: bool, last: int) -> None:
        """A commit was answered; when it was sent, `last` was known to be decided."""
        self.decided[batch] = self.decided.get(batch, 0) + (not is_repeat)
        if self.decided[batch] > 1 or (not is_repeat and batch[1] <= last):
            raise Violation("decided once", f"batch {batch} was decided again, behind {last}")

    def check(self, shards: Mapping[int, Sequence[bytes]], *, is_whole: bool) -> None:
        """`shards`: the rows of each log in order; `is_whole`: from its beginning, nothing was trimmed."""
        found: dict[Batch, dict[str, set[bytes]]] = {}
        for number, payloads in shards.items():
            last: dict[str, int] = {}
            for payload in payloads:
                row = Row.read(payload)
                rows = found.setdefault(row.batch, {}).setdefault(row.attempt, set())
                if payload in rows:
                    raise Violation("staged once", f"{payload!r} is visible twice")
                rows.add(payload)
                writer, batch = row.batch
                if batch < last.get(writer, -1):
                    raise Violation("staged order", f"shard {number}: {payload!r} behind batch {last}")
                last[writer] = batch
        for one in found.keys() | self.decided.keys():
            self._check_batch(one, found.get(one, {}), is_whole=is_whole)

    def _check_batch(self, batch: Batch, found: Mapping[str, set[bytes]], *, is_whole: bool) -> None:
        wishes = self.wishes.get(batch, [])
        if not any(found.keys() <= wish.keys() for wish in wishes):
            raise Violation("staged winners", f"{batch}: rows of {sorted(found)} are visible together")
        if is_whole and not any(found == wish for wish in wishes):
            raise Violation(
                "staged whole",
                f"{batch}: {sum(map(len, found.values()))} rows of {sorted(found)} are visible, and no "
                f"commit named these alone",
            )
