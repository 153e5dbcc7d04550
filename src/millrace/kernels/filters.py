"""Topic filters as text: how they are read from a packet, what shape they have, which of them take a topic.

The *shape* of a filter is what is left of it without its names: `device/7/+` has the shape `//+`. A million
filters have a handful of shapes, and of each shape one filter at most takes a given topic. So the filters
that take a topic are found by writing, for each shape in use, that one filter, and looking whether it is
there. This is the reference for the C twin (`_filters.c`), and the path where there is no compiler.
"""

from collections.abc import Mapping
from typing import Any


def shape_of(filter: str) -> str | None:
    """None for a filter without wildcards: that one is the topic itself."""
    if "+" not in filter and "#" not in filter:
        return None
    return "/".join([level if level in ("+", "#") else "" for level in filter.split("/")])


def fitting_filters(topic: str, shapes: tuple[str, ...]) -> list[str]:
    """The topic itself and every filter of these shapes that takes it (MQTT 5, 4.7)."""
    levels = topic.split("/")
    found = [topic]
    for shape in shapes:
        wanted = shape.split("/")
        is_open = wanted[-1] == "#"
        depth = len(wanted) - is_open
        if len(levels) != depth and not (is_open and len(levels) > depth):
            continue
        if wanted[0] and topic.startswith("$"):
            # [MQTT-4.7.2-1]
            continue
        parts = [mark or level for mark, level in zip(wanted, levels, strict=False)][:depth]
        if is_open:
            parts.append("#")
        found.append("/".join(parts))
    return found


def find_filters(topic: str, shapes: tuple[str, ...], filters: Mapping[str, Any]) -> list[Any]:
    """What `filters` has for the topic itself and for the filters of these shapes that take it, in order."""
    return [filters[one] for one in fitting_filters(topic, shapes) if one in filters]


def read_filters(body: bytes, pos: int, has_options: bool, count_max: int) -> tuple[int, list[Any]]:
    """Read the filters of a SUBSCRIBE, each with its byte of options, or of an UNSUBSCRIBE, from `pos` until
    the first that is unusual: broken, shared or one too many. Returns where that is, and the texts and
    options, flat."""
    size = len(body)
    if not 0 <= pos <= size:
        raise ValueError("position outside the data")
    found: list[Any] = []
    while count_max > 0 and pos + 2 < size:
        start = pos + 2
        end = start + (body[pos] << 8 | body[pos + 1])
        after = end + has_options
        if after > size or end == start:
            break
        try:
            text = body[start:end].decode()
        except UnicodeDecodeError:
            break
        if "\0" in text or text.startswith("$share/") or not _is_in_form(text):
            break
        found.append(text)
        if has_options:
            found.append(body[end])
        pos = after
        count_max -= 1
    return pos, found


def _is_in_form(text: str) -> bool:
    """Whether every wildcard fills its level, and `#` is the last one ([MQTT-4.7.1-1], [MQTT-4.7.1-2])."""
    if "+" not in text and "#" not in text:
        return True
    levels = text.split("/")
    return "#" not in levels[:-1] and all(
        level in ("+", "#") or ("+" not in level and "#" not in level) for level in levels
    )


def new_topics(
    data: bytes, pos: int, routes: Mapping[bytes, Any], levels_max: int, bytes_max: int, count_max: int
) -> list[str]:
    """The topics of the PUBLISH packets that follow each other from `pos` on and are not in `routes`, each
    once for every time it comes; nothing where the first one is known. Ends with the first packet of another
    kind, with DUP, or retained above QoS 0, and with a topic that is not a good one: broken, with wildcards,
    or beyond the bounds."""
    size = len(data)
    if not 0 <= pos <= size:
        raise ValueError("position outside the data")
    found: list[str] = []
    while len(found) < count_max and size - pos >= 2 and data[pos] in (0x30, 0x31, 0x32, 0x34):
        start, after, end = _bounds(data, pos, size)
        if not end or end > size:
            break
        topic = data[start:after]
        if topic not in routes:
            if not topic or len(topic) > bytes_max or topic.count(b"/") >= levels_max:
                break
            try:
                text = topic.decode()
            except UnicodeDecodeError:
                break
            if "+" in text or "#" in text or "\0" in text:
                break
            found.append(text)
        elif not found:
            break
        pos = end
    return found


def _bounds(data: bytes, pos: int, size: int) -> tuple[int, int, int]:
    """Where the topic of the PUBLISH at `pos` begins and ends, and the packet ends; 0 for the last where its
    lengths are broken or not minimal."""
    body = pos + 1
    value = shift = 0
    while body < size and shift < 28:
        byte = data[body]
        body += 1
        value |= (byte & 127) << shift
        if byte < 128:
            end = body + value
            if (not byte and shift) or body + 2 > min(end, size):
                break
            after = body + 2 + (data[body] << 8 | data[body + 1])
            return (body + 2, after, end) if after <= end else (0, 0, 0)
        shift += 7
    return 0, 0, 0
