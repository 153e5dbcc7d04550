"""Groups made by command: what somebody asked for, and what the meta group remembers of it.

Such a group collects while nobody is there and lives until it is deleted [rule 12]. It takes the
messages of its filters in every shard that may hold some; `starts` fixes where it begins in the shards that
existed when it was made, and a shard opened later is read from 0, also if the topics have left its stream
before anybody asked the group. The number is never used again, so a cursor left over from a deleted group is
told from one of a later group of the same name.

The HTTP queue of a topic is the group `queue:TOPIC` with the topic as its only filter.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.broker.groups.cursor import IN_FLIGHT_MAX, Settings
from millrace.broker.topics.filters import is_valid, matches
from millrace.errors import LocalError

GROUPS_MAX = 100_000
GROUP_FILTERS_MAX = 100
QUEUE_PREFIX = "queue:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_DELIVERIES_TOP = 1_000_000
_IN_FLIGHT_TOP = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """Raises LocalError where it makes no sense."""

    name: str
    filters: tuple[str, ...]
    deliveries_max: int = 0
    """After so many deliveries without an acknowledgement a message goes to `dead_letter`; 0 is never."""
    dead_letter: str = ""
    in_flight_max: int = IN_FLIGHT_MAX

    def __post_init__(self) -> None:
        topic = self.name.removeprefix(QUEUE_PREFIX)
        is_queue = topic != self.name and self.filters == (topic,) and "+" not in topic and "#" not in topic
        if not is_queue and not _NAME.fullmatch(self.name):
            raise LocalError(f"{self.name!r} is not a group name: letters, digits, dot, dash, underscore")
        if not 1 <= len(self.filters) <= GROUP_FILTERS_MAX or len(set(self.filters)) != len(self.filters):
            raise LocalError(f"group {self.name!r}: 1 to {GROUP_FILTERS_MAX} filters, each once")
        for filter in self.filters:
            if not is_valid(filter) or filter.startswith("$"):
                raise LocalError(f"group {self.name!r}: {filter!r} is not a filter of ordinary topics")
        if not 0 <= self.deliveries_max <= _DELIVERIES_TOP:
            raise LocalError(f"group {self.name!r}: deliveries_max is 0 to {_DELIVERIES_TOP}")
        if not 1 <= self.in_flight_max <= _IN_FLIGHT_TOP:
            raise LocalError(f"group {self.name!r}: in_flight_max is 1 to {_IN_FLIGHT_TOP}")
        self._check_dead_letter()

    def _check_dead_letter(self) -> None:
        if bool(self.dead_letter) != bool(self.deliveries_max):
            raise LocalError(f"group {self.name!r}: deliveries_max and dead_letter go together")
        topic = self.dead_letter
        if not topic:
            return
        if not is_valid(topic) or "+" in topic or "#" in topic or topic.startswith("$"):
            raise LocalError(f"group {self.name!r}: {topic!r} is not a topic for dead letters")
        if any(matches(filter, topic) for filter in self.filters):
            raise LocalError(f"group {self.name!r} would take its own dead letters from {topic!r}")

    @property
    def is_queue(self) -> bool:
        return self.name.startswith(QUEUE_PREFIX)

    @property
    def settings(self) -> Settings:
        return Settings(deliveries_max=self.deliveries_max, in_flight_max=self.in_flight_max)

    def takes(self, topic: str) -> bool:
        return any(matches(filter, topic) for filter in self.filters)


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableGroup:
    """A group as it stands."""

    number: int
    spec: GroupSpec
    starts: Mapping[int, int] = field(default_factory=dict)
    """Shard -> offset, for the shards that were there when the group was made, and those its topics left."""

    def start(self, shard: int) -> int:
        return self.starts.get(shard, 0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "spec": group_to_dict(self.spec),
            "starts": sorted(self.starts.items()),
        }

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "DurableGroup":
        return DurableGroup(
            number=fields["number"], spec=group_from_dict(fields["spec"]), starts=dict(fields["starts"])
        )


def group_to_dict(spec: GroupSpec) -> dict[str, Any]:
    """As JSON and the HTTP door show it."""
    return {
        "name": spec.name,
        "filters": list(spec.filters),
        "deliveries_max": spec.deliveries_max,
        "dead_letter": spec.dead_letter,
        "in_flight_max": spec.in_flight_max,
    }


_KEYS = frozenset(("name", "filters", "deliveries_max", "dead_letter", "in_flight_max"))


def group_from_dict(fields: Mapping[str, Any], base: GroupSpec | None = None) -> GroupSpec:
    """The other way; what is absent is as in `base` or the default. LocalError says what is wrong."""
    unknown = sorted(set(fields) - _KEYS)
    if unknown:
        raise LocalError(f"a group has no setting {unknown[0]!r}; there are: {', '.join(sorted(_KEYS))}")
    given: dict[str, Any] = dict(fields)
    kinds = {"name": str, "dead_letter": str, "deliveries_max": int, "in_flight_max": int}
    for key, kind in kinds.items():
        if key in given and (not isinstance(given[key], kind) or isinstance(given[key], bool)):
            raise LocalError(f"{key} = {given[key]!r}: expected {kind.__name__}")
    if "filters" in given:
        filters = given["filters"]
        if not isinstance(filters, list | tuple) or not all(isinstance(item, str) for item in filters):
            raise LocalError(f"filters = {filters!r}: expected a list of strings")
        given["filters"] = tuple(filters)
    if base is not None:
        return replace(base, **given)
    return GroupSpec(**{"name": "", "filters": (), **given})


class DurableGroups:
    """All groups made by command, by name: part of the meta group's state. Raises LocalError."""

    __slots__ = ("_names", "_next_number", "by_name", "changes")

    def __init__(self) -> None:
        self.changes = 0
        """Of the definitions, since the node started: whoever follows them looks again when it rises."""
        self.by_name: dict[str, DurableGroup] = {}
        self._names: dict[int, str] = {}
        self._next_number = 1

    def numbered(self, number: int) -> DurableGroup | None:
        name = self._names.get(number)
        return None if name is None else self.by_name[name]

    def is_gone(self, number: int) -> bool:
        """Whether the group of this number was deleted; not one that others made and nobody told us yet."""
        return 0 < number < self._next_number and number not in self._names

    def put(self, spec: GroupSpec, create_only: bool, starts: Mapping[int, int]) -> None:
        """Make or change a group. A change keeps the cursors, also where the filters are others."""
        self.changes += 1
        old = self.by_name.get(spec.name)
        if old is not None:
            if create_only:
                raise LocalError(f"group {spec.name!r} exists")
            self.by_name[spec.name] = replace(old, spec=spec, starts={**starts, **old.starts})
            return
        if len(self.by_name) >= GROUPS_MAX:
            raise LocalError(f"there are {GROUPS_MAX} groups, the most")
        self.by_name[spec.name] = DurableGroup(number=self._next_number, spec=spec, starts=dict(starts))
        self._names[self._next_number] = spec.name
        self._next_number += 1

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
                self.by_name[name] = replace(group, starts=starts)

    def to_json(self) -> list[Any]:
        return [self._next_number, [group.to_dict() for _, group in sorted(self.by_name.items())]]

    @staticmethod
    def from_json(fields: list[Any]) -> "DurableGroups":
        groups = DurableGroups()
        groups._next_number, rows = fields
        for row in rows:
            group = DurableGroup.from_dict(row)
            groups.by_name[group.spec.name] = group
            groups._names[group.number] = group.spec.name
        return groups


def put_group(spec: GroupSpec, *, create: bool, starts: Mapping[int, int]) -> bytes:
    """The command that makes or changes a group; `create` refuses one that exists."""
    fields = {
        "op": "group.put",
        "spec": group_to_dict(spec),
        "create": create,
        "starts": list(starts.items()),
    }
    return json.dumps(fields).encode()


def delete_group(name: str) -> bytes:
    return json.dumps({"op": "group.delete", "name": name}).encode()
