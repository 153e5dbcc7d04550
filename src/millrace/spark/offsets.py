"""Where a query stands in a stream, and what it reads next. Plain values and arithmetic, no input or output.

A position maps the number of a shard to the next offset to read there; as JSON, with the numbers as text, it
is what Spark writes into its checkpoint. Shards come and go while a query runs: a stream that is altered
seals its shards and opens new ones. So a position may lack a shard that the stream has (the query begins it
at 0) and have one that the stream lacks (it stays where it is). A position never
goes back [rule 29].
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
"""About one block. Shorter ranges share a task, because a task costs more than reading them."""

# Kafka's numbers for the two ends of a log.
_NUMBERED_WORDS = {-1: LATEST, -2: EARLIEST}

Position = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class At:
    """The first message from this time on, in microseconds since 1970."""

    time_us: int


Value = str | int | At
"""Where to begin or end in one shard: a word, an offset or a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByShard:
    """A value for each of some shards, and the stream of those whose stream was named."""

    values: Mapping[int, Value]
    streams: Mapping[int, str]


Start = str | At | ByShard
"""What an option may say: a word or a time for all shards, or a value for each shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a shard holds: offsets from `first` to before `next`, in about `size_bytes`."""

    first: int
    next: int
    size_bytes: int = 0
    stream: str = field(default="", compare=False)
    is_sealed: bool = field(default=False, compare=False)
    """The stream was given other shards: these offsets are older than all in its open shards."""

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
    stream: str = field(default="", compare=False)

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
        return _parse_shards(option, words, _offset_value)
    try:
        return At(to_us(datetime.fromisoformat(words)))
    except ValueError:
        raise ConfigError(
            f"{option} = {text!r} is not earliest, latest, a time such as 2026-11-15T10:00:00+00:00, "
            'or offsets such as {"7": 120}'
        ) from None


def parse_time(option: str, text: str) -> Start:
    """The value of `startingTimestamp` or `endingTimestamp`: a time, or a time for each shard."""
    words = text.strip()
    if words.startswith("{"):
        return _parse_shards(option, words, _time_value)
    value = _time_value(int(words) if words.isascii() and words.isdigit() else words)
    if value is None:
        raise ConfigError(
            f"{option} = {text!r} is not a time such as 2026-11-15T10:00:00+00:00 or 1794736800000 "
            '(milliseconds since 1970), nor times by shard such as {"7": 1794736800000}'
        )
    return value


def _offset_value(given: Any) -> Value | None:
    if isinstance(given, int) and not isinstance(given, bool):
        return _NUMBERED_WORDS.get(given, given if given >= 0 else None)
    return given if given in (EARLIEST, LATEST) else None


def _time_value(given: Any) -> At | None:
    """A time in milliseconds since 1970 or as text; None for anything else."""
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return At(given * 1000)
    try:
        return At(to_us(datetime.fromisoformat(given)))
    except (TypeError, ValueError):
        return None


def to_us(moment: datetime) -> int:
    """Microseconds since 1970, exactly; a time without a zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _parse_shards(option: str, text: str, read: Callable[[Any], Value | None]) -> ByShard:
    """Values by shard, or by stream and then by shard as Kafka's connector has them."""
    try:
        fields: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{option} is not JSON: {error}") from None
    values: dict[int, Value] = {}
    streams: dict[int, str] = {}
    for name, given in fields.items():
        for shard, one in (given if isinstance(given, dict) else {name: given}).items():
            value = read(one)
            if not (shard.isascii() and shard.isdigit()) or value is None:
                raise ConfigError(
                    f'{option} maps shards to places, such as {{"7": 120, "8": "earliest"}} or '
                    f'{{"sensors": {{"7": 120}}}}, not {shard!r} to {one!r}'
                )
            values[int(shard)] = value
            if isinstance(given, dict):
                streams[int(shard)] = name
    return ByShard(values=values, streams=streams)


def resolve(option: str, start: Start, extents: Mapping[int, Extent], rest: str) -> dict[int, int | At]:
    """Offsets for every shard, or times that are still to be looked up. `rest` is the word for shards that
    are not named."""
    named = start if isinstance(start, ByShard) else ByShard(values={}, streams={})
    other = rest if isinstance(start, ByShard) else start
    for shard in sorted(named.values):
        name = named.streams.get(shard)
        if shard not in extents or name not in (None, extents[shard].stream):
            of = "" if name is None else f" of stream {name!r}"
            raise ConfigError(
                f"{option} names shard {shard}{of}; the stream has {', '.join(map(str, sorted(extents)))}"
            )
    position: dict[int, int | At] = {}
    for shard, extent in extents.items():
        value = named.values.get(shard, other)
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
    Where a limit cuts, the open shards of a stream wait until its sealed ones are read to their end.
    """
    end = {**start}
    for shard, extent in extents.items():
        # An empty shard that is new says nothing yet: a changed position makes Spark run a batch.
        if shard in start or extent.next > 0:
            end[shard] = max(start.get(shard, 0), extent.next)
    waiting = {shard: end[shard] - start.get(shard, 0) for shard in end}
    if _portion(waiting, extents, rows_max, bytes_max) >= 1:
        return end
    older = {extents[shard].stream for shard, count in waiting.items() if count and extents[shard].is_sealed}
    for shard, count in waiting.items():
        if count and extents[shard].stream in older and not extents[shard].is_sealed:
            waiting[shard] = 0
    portion = min(1.0, _portion(waiting, extents, rows_max, bytes_max))
    taken = {shard: int(count * portion) for shard, count in waiting.items()}
    if not any(taken.values()):
        most = max(waiting, key=lambda shard: waiting[shard])
        taken[most] = 1
    return {shard: start.get(shard, 0) + taken[shard] for shard in end}


def _portion(
    waiting: Mapping[int, int], extents: Mapping[int, Extent], rows_max: int | None, bytes_max: int | None
) -> float:
    """Which part of what waits the limits allow; 1 or more for all of it."""
    portions = [1.0]
    if rows_max is not None:
        portions.append(rows_max / max(1, sum(waiting.values())))
    if bytes_max is not None:
        sizes = (count * extents[shard].row_bytes for shard, count in waiting.items() if count)
        portions.append(bytes_max / max(1, sum(sizes)))
    return min(portions)


def capped(position: Position, ceiling: Position, start: Position) -> dict[int, int]:
    """`position` where it is below `ceiling`, never below `start`; without shards that neither has."""
    return {
        shard: max(start.get(shard, 0), min(offset, ceiling.get(shard, 0)))
        for shard, offset in position.items()
        if shard in start or shard in ceiling
    }


def spans(start: Position, end: Position, streams: Mapping[int, str] | None = None) -> list[Span]:
    """What lies between two positions, without the shards where nothing does."""
    known = streams or {}
    between = (
        Span(shard=shard, start=start.get(shard, 0), end=end[shard], stream=known.get(shard, ""))
        for shard in sorted(end)
    )
    return [span for span in between if span.count > 0]


def plan(
    whole: Iterable[Span], tasks_least: int | None = None, rows_max: int | None = None
) -> list[tuple[Span, ...]]:
    """The same offsets divided into tasks: long ranges are split, and short ones share a task. There are at
    least `tasks_least` tasks if there are so many offsets, and none has more than `rows_max` offsets."""
    given = list(whole)
    total = sum(span.count for span in given)
    aim = min(TASK_ROWS_AIM, rows_max or TASK_ROWS_AIM)
    if tasks_least is not None:
        aim = min(aim, max(1, total // tasks_least))
    aim = max(aim, -(-total // SPARK_TASKS_MAX))
    pieces: list[Span] = []
    for span in given:
        parts = -(-span.count // aim)
        cuts = [span.start + span.count * part // parts for part in range(parts + 1)]
        pieces += [replace(span, start=one, end=two) for one, two in pairwise(cuts)]
    return _bundled(pieces, min(aim, TASK_ROWS_LEAST))


def _bundled(pieces: Iterable[Span], rows_most: int) -> list[tuple[Span, ...]]:
    """Neighbours together as long as they have no more than `rows_most` offsets."""
    bundles: list[tuple[Span, ...]] = []
    rows = 0
    for piece in pieces:
        if bundles and rows + piece.count <= rows_most:
            bundles[-1] += (piece,)
            rows += piece.count
        else:
            bundles.append((piece,))
            rows = piece.count
    return bundles
