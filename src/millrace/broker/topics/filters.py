"""Topic filters as sets of topics: membership, inclusion and intersection.

A filter stands for the set of topic names it matches (MQTT 5, 4.7): `+` is one level, a final `#` is any
number of further levels including none, and a wildcard in the first level never takes a topic that begins
with `$` (4.7.2). `matches` asks for membership, `covers` for inclusion, `overlaps` for a non-empty
intersection; all three are exact and linear in the number of levels.

The functions named `levels_*` take the split form, for callers that keep filters split. Arguments are
valid: wildcards stand alone in their level, `#` is last. `$share/NAME/` has been taken off before.
"""

from collections.abc import Sequence

from millrace.limits import STRING_BYTES_TOP

Levels = Sequence[str]


def matches(filter: str, topic: str) -> bool:
    """Whether the topic is in the filter's set."""
    return levels_match(filter.split("/"), topic.split("/"))


def covers(filter: str, other: str) -> bool:
    """Whether every topic that `other` matches is matched by `filter` too."""
    return levels_cover(filter.split("/"), other.split("/"))


def overlaps(filter: str, other: str) -> bool:
    """Whether some topic is matched by both."""
    return levels_overlap(filter.split("/"), other.split("/"))


def is_valid(filter: str) -> bool:
    """Whether the text is a topic filter at all (MQTT 5, 1.5.4, 4.7.1 and 4.7.3)."""
    try:
        size_bytes = len(filter.encode())
    except UnicodeEncodeError:
        return False
    if not 0 < size_bytes <= STRING_BYTES_TOP or "\0" in filter:
        return False
    levels = filter.split("/")
    return "#" not in levels[:-1] and all(
        level in ("+", "#") or ("+" not in level and "#" not in level) for level in levels
    )


def levels_match(filter: Levels, topic: Levels) -> bool:
    if topic[0].startswith("$") and filter[0] in ("+", "#"):
        return False
    depth = len(topic)
    for position, level in enumerate(filter):
        if level == "#":
            return True
        if position == depth or level not in ("+", topic[position]):
            return False
    return len(filter) == depth


def levels_cover(filter: Levels, other: Levels) -> bool:
    if other[0].startswith("$") and filter[0] in ("+", "#"):
        return False
    if other[0] == "#":
        # A topic has at least one level, so `+/#` is the same set as `#`.
        return filter[0] == "#" or (len(filter) == 2 and filter[0] == "+" and filter[1] == "#")
    depth = len(other)
    for position, level in enumerate(filter):
        if level == "#":
            return True
        if position == depth or other[position] == "#" or level not in ("+", other[position]):
            return False
    return len(filter) == depth


def levels_overlap(filter: Levels, other: Levels) -> bool:
    for one, two in ((filter[0], other[0]), (other[0], filter[0])):
        if one in ("+", "#") and two.startswith("$"):
            return False
    for one, two in zip(filter, other, strict=False):
        if one == "#" or two == "#":
            return True
        if one != two and one != "+" and two != "+":
            return False
    longer, depth = (filter, len(other)) if len(filter) > len(other) else (other, len(filter))
    # `a/#` takes `a` itself, so one level more is no difference if it is `#`.
    return len(longer) == depth or longer[depth] == "#"
