"""Groups made by command: what somebody asked for, and what the meta group remembers of it.

Such a group collects while nobody is there and lives until it is deleted [rule 12]. It takes the
messages of its filters in every shard that may hold some; `starts` fixes where it begins in the shards that
existed when it was made, and a shard opened later is read from 0, also if the topics have left its stream
before anybody asked the group. The number is never used again, so a cursor left over from a deleted group is
told from one of a later group of the same name.

The HTTP queue of a topic is the group `queue:TOPIC` with the topic as its only filter.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Protocol

import msgspec

from millrace.broker.filter_settings import wrong_filters
from millrace.broker.groups.cursor import Settings as CursorSettings
from millrace.broker.topics.filters import is_valid, matches
from millrace.errors import LocalError
from millrace.limits import GROUP_FILTERS_MAX, GROUP_IN_FLIGHT_MAX, GROUPS_MAX
from millrace.settings import Settings, says

QUEUE_PREFIX = "queue:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DELIVERIES_TOP = 1_000_000
_IN_FLIGHT_TOP = 100_000


class Start(StrEnum):
    LATEST = "latest"
    EARLIEST = "earliest"


class DurableGroupSpec(Settings, frozen=True, kw_only=True):
    """Raises LocalError where it makes no sense."""

    NOUN: ClassVar[str] = "group"

    name: Annotated[str, says("The name of the group; queue:TOPIC is the HTTP queue of a topic.")]
    filters: Annotated[
        tuple[str, ...],
        says("Topic filters: the group takes the messages of their topics.", option="--filter"),
    ]
    deliveries_max: Annotated[
        int,
        says(
            "How often a message is delivered without an acknowledgement before it counts as "
            "dead; 0: any number of times.",
            0,
            _DELIVERIES_TOP,
        ),
    ] = 0
    dead_letter: Annotated[str, says("Topic to which dead messages are moved.", metavar="TOPIC")] = ""
    in_flight_max: Annotated[
        int, says("How many messages its members may have at one time.", 1, _IN_FLIGHT_TOP)
    ] = GROUP_IN_FLIGHT_MAX

    def refusals(self) -> Iterator[str]:
        topic = self.name.removeprefix(QUEUE_PREFIX)
        is_queue = topic != self.name and self.filters == (topic,) and "+" not in topic and "#" not in topic
        if not is_queue and not _NAME.fullmatch(self.name):
            yield f"name = {self.name!r}: expected a name of letters, digits, dot, dash, underscore"
        if not self.filters:
            yield "it needs at least one topic filter"
        yield from wrong_filters(self.filters, GROUP_FILTERS_MAX)
        yield from self._wrong_dead_letter()

    def _wrong_dead_letter(self) -> Iterator[str]:
        topic = self.dead_letter
        if bool(topic) != bool(self.deliveries_max):
            yield "deliveries_max and dead_letter go together"
        if not topic:
            return
        if not is_valid(topic) or "+" in topic or "#" in topic or topic.startswith("$"):
            yield f"{topic!r} is not a topic for dead letters"
        if any(matches(filter, topic) for filter in self.filters):
            yield f"it would take its own dead letters from {topic!r}"

    @property
    def is_queue(self) -> bool:
        return self.name.startswith(QUEUE_PREFIX)

    @property
    def settings(self) -> CursorSettings:
        return CursorSettings(deliveries_max=self.deliveries_max, in_flight_max=self.in_flight_max)

    def takes(self, topic: str) -> bool:
        return any(matches(filter, topic) for filter in self.filters)


class NewDurableGroup(DurableGroupSpec, frozen=True, kw_only=True):
    """A group that is to be made, and where it begins."""

    start: Annotated[
        Start,
        says(
            "Where the group begins. latest: with messages that come from now on; earliest: with "
            "what the logs have.",
            option="--from",
        ),
    ] = Start.LATEST

    @property
    def spec(self) -> DurableGroupSpec:
        return DurableGroupSpec(**{name: getattr(self, name) for name in DurableGroupSpec.fields()})


class DurableGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it stands."""

    number: int
    spec: DurableGroupSpec
    starts: dict[int, int] = {}
    """Shard -> offset, for the shards that were there when the group was made, and those its topics left."""

    def start(self, shard: int) -> int:
        return self.starts.get(shard, 0)


class GroupDefinitions(Protocol):
    """The groups made by command as they stand, as the broker asks for them."""

    @property
    def by_name(self) -> Mapping[str, DurableGroup]: ...


class DurableGroups:
    """All groups made by command, by name: part of the meta group's state. Raises LocalError."""

    __slots__ = ("_names", "by_name", "changes", "next_number")

    def __init__(self, groups: Iterable[DurableGroup] = (), next_number: int = 1) -> None:
        self.changes = 0
        """Of the definitions, since the node started: whoever follows them looks again when it rises."""
        self.by_name = {group.spec.name: group for group in groups}
        self.next_number = next_number
        self._names = {group.number: name for name, group in self.by_name.items()}

    def numbered(self, number: int) -> DurableGroup | None:
        name = self._names.get(number)
        return None if name is None else self.by_name[name]

    def is_gone(self, number: int) -> bool:
        """Whether the group of this number was deleted; not one that others made and nobody told us yet."""
        return 0 < number < self.next_number and number not in self._names

    def put(self, spec: DurableGroupSpec, create_only: bool, starts: Mapping[int, int]) -> None:
        """Make or change a group. A change keeps the cursors, also where the filters are others."""
        self.changes += 1
        old = self.by_name.get(spec.name)
        if old is not None:
            if create_only:
                raise LocalError(f"group {spec.name!r} exists")
            self.by_name[spec.name] = msgspec.structs.replace(old, spec=spec, starts={**starts, **old.starts})
            return
        if len(self.by_name) >= GROUPS_MAX:
            raise LocalError(f"there are {GROUPS_MAX} groups, the most")
        self.by_name[spec.name] = DurableGroup(number=self.next_number, spec=spec, starts=dict(starts))
        self._names[self.next_number] = spec.name
        self.next_number += 1

    def delete(self, name: str) -> None:
        self.changes += 1
        group = self.by_name.pop(name, None)
        if group is None:
            raise LocalError(f"there is no group {name!r}")
        del self._names[group.number]

    def keep(self, left_by: Callable[[str], Iterable[int]]) -> None:
        """Streams changed, and a filter's topics left these shards. A group that nobody has asked since they
        were opened has no cursor there, and nothing else would lead it to what they hold."""
        for name, group in self.by_name.items():
            left = {shard for filter in group.spec.filters for shard in left_by(filter)}
            if not left <= group.starts.keys():
                starts = {**dict.fromkeys(sorted(left), 0), **group.starts}
                self.by_name[name] = msgspec.structs.replace(group, starts=starts)
