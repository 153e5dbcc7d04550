"""Where a query stands in a stream, and what it reads next. Plain values and arithmetic, no input or output.

A position maps the number of a shard to the next offset to read there; as JSON, with the numbers as text, it
is what Spark writes into its checkpoint. Shards come and go while a query runs: a stream that is altered
seals its shards and opens new ones. So a position may lack a shard that the stream has (the query begins it
at 0) and have one that the stream lacks (it stays where it is). A position never
goes back [rule 29].
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from millrace.errors import ConfigError
from millrace.limits import SPARK_TASKS_MAX

EARLIEST = "earliest"
LATEST = "latest"

TIME_US_MIN, TIME_US_TOP = -(1 << 63), (1 << 63) - 1

TASK_ROWS_AIM = 1_000_000
"""A longer range is split, so that the cores of a machine share it."""
TASK_ROWS_LEAST = 10_000
"""About one block: a shorter piece reads mostly what its neighbours read too."""

Position = Mapping[int, int]
Start = str | int | dict[int, str | int]
"""What an option may say: a word, microseconds since 1970, or for each shard a word or an offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a shard holds: offsets from `first` to before `next`, in about `size_bytes`."""

    first: int
    next: int
    size_bytes: int = 0

    @property
    def row_bytes(self) -> int:
        """The mean size of a message on disk, at least 1."""
        return max(1, self.size_bytes // max(1, self.next - self.first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Offsets of one shard: `start` is in, `end` is not."""

    shard: int
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


def to_json(position: Position) -> dict[str, int]:
    return {str(shard): position[shard] for shard in sorted(position)}


def from_json(fields: Mapping[str, int]) -> dict[int, int]:
    return {int(shard): offset for shard, offset in fields.items()}


def parse_start(option: str, text: str) -> Start:
    """The value of `startingOffsets` or `endingOffsets`; ConfigError says what would be right."""
    words = text.strip()
    if words.lower() in (EARLIEST, LATEST):
        return words.lower()
    if words.startswith("{"):
        return _parse_shards(option, words)
    try:
        moment = datetime.fromisoformat(words)
    except ValueError:
        raise ConfigError(
            f"{option} = {text!r} is not earliest, latest, a time such as 2026-11-15T10:00:00+00:00, "
            'or offsets such as {"7": 120}'
        ) from None
    return to_us(moment)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970, exactly; a time without a zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _parse_shards(option: str, text: str) -> dict[int, str | int]:
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} is not JSON: {error}") from None
    found: dict[int, str | int] = {}
    for shard, value in fields.items():
        is_offset = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if not (shard.isascii() and shard.isdigit()) or not (is_offset or value in (EARLIEST, LATEST)):
            raise ConfigError(
                f'{option} maps shards to offsets, such as {{"7": 120, "8": "earliest"}}, '
                f"not {shard!r} to {value!r}"
            )
        found[int(shard)] = value
    return found


def resolve(
    option: str, start: str | dict[int, str | int], extents: Mapping[int, Extent], rest: str
) -> dict[int, int]:
    """Offsets for every shard. `rest` is the word for shards that are not named."""
    named = start if isinstance(start, dict) else {}
    word = rest if isinstance(start, dict) else start
    unknown = sorted(set(named) - set(extents))
    if unknown:
        raise ConfigError(
            f"{option} names shard {unknown[0]}; the stream has {', '.join(map(str, sorted(extents)))}"
        )
    position = {}
    for shard, extent in extents.items():
        value = named.get(shard, word)
        if isinstance(value, int) and value > extent.next:
            raise ConfigError(
                f"{option}: offset {value} of shard {shard} is not there yet; the next is {extent.next}"
            )
        position[shard] = (
            {EARLIEST: extent.first, LATEST: extent.next}[value] if isinstance(value, str) else value
        )
    return position


def advance(
    start: Position,
    extents: Mapping[int, Extent],
    *,
    rows_max: int | None = None,
    bytes_max: int | None = None,
) -> dict[int, int]:
    """As far as the next batch goes from `start`: to the end, or to a share of the limits for each shard.

    Shares are in proportion to what waits, so no shard starves; where anything waits, something is read.
    """
    end = {**start}
    for shard, extent in extents.items():
        # An empty shard that is new says nothing yet: a changed position makes Spark run a batch.
        if shard in start or extent.next > 0:
            end[shard] = max(start.get(shard, 0), extent.next)
    waiting = {shard: end[shard] - start.get(shard, 0) for shard in end}
    total = sum(waiting.values())
    if total == 0:
        return end
    portions = [1.0]
    if rows_max is not None:
        portions.append(rows_max / total)
    if bytes_max is not None:
        sizes = (count * extents[shard].row_bytes for shard, count in waiting.items() if count)
        portions.append(bytes_max / max(1, sum(sizes)))
    portion = min(portions)
    if portion >= 1:
        return end
    taken = {shard: int(count * portion) for shard, count in waiting.items()}
    if not any(taken.values()):
        most = max(waiting, key=lambda shard: waiting[shard])
        taken[most] = 1
    return {shard: start.get(shard, 0) + taken[shard] for shard in end}


def capped(position: Position, ceiling: Position, start: Position) -> dict[int, int]:
    """`position` where it is below `ceiling`, never below `start`; without shards that neither has."""
    return {
        shard: max(start.get(shard, 0), min(offset, ceiling.get(shard, 0)))
        for shard, offset in position.items()
        if shard in start or shard in ceiling
    }


def spans(start: Position, end: Position) -> list[Span]:
    """What lies between two positions, without the shards where nothing does."""
    between = (Span(shard=shard, start=start.get(shard, 0), end=end[shard]) for shard in sorted(end))
    return [span for span in between if span.count > 0]


def split(whole: Iterable[Span], tasks_least: int = 1) -> list[Span]:
    """The same offsets in pieces: none much longer than the aim, and at least `tasks_least` of them unless
    that makes pieces smaller than is worth a task."""
    given = list(whole)
    total = sum(span.count for span in given)
    aim = min(TASK_ROWS_AIM, max(TASK_ROWS_LEAST, -(-total // max(1, tasks_least))))
    aim = max(aim, -(-total // SPARK_TASKS_MAX))
    pieces = []
    for span in given:
        parts = -(-span.count // aim)
        cuts = [span.start + span.count * part // parts for part in range(parts + 1)]
        pieces += [Span(shard=span.shard, start=one, end=two) for one, two in pairwise(cuts)]
    return pieces
