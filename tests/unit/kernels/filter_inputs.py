"""Input for the kernels of filters: texts, packets and tables, some right, some cut or damaged.

Everything comes from the generator that is passed in, so a seed is a case."""

from collections.abc import Iterator
from random import Random
from typing import Any

from millrace.kernels.filters import shape_of

LEVELS = ("a", "b", "", "$s", "ü", "☃", "long" * 40)
WILD = (*LEVELS, "+", "+", "+")
BAD = ("a+", "#a", "+#", "\0", "$share", "\ud800")


def a_topic(random: Random) -> str:
    return "/".join(random.choices(LEVELS, k=random.randint(1, 5)))


def a_filter(random: Random) -> str:
    levels = random.choices(WILD, k=random.randint(0, 5))
    if not levels or random.random() < 0.3:
        levels.append("#")
    return "/".join(levels)


def a_text(random: Random) -> bytes:
    """Mostly a filter; sometimes what no filter is."""
    text = a_filter(random)
    if random.random() < 0.1:
        text = "/".join((random.choice(BAD), text))
    if random.random() < 0.05:
        text = "$share/g/" + text
    return text.encode("utf-8", "surrogatepass")


def a_body(random: Random, has_options: bool) -> bytes:
    parts = []
    for _ in range(random.randint(0, 6)):
        text = a_text(random)
        parts.append(len(text).to_bytes(2, "big") + text)
        if has_options:
            parts.append(random.randbytes(1))
    body = b"".join(parts)
    return body[: random.randint(0, len(body))] if random.random() < 0.2 else body


def a_chunk(random: Random) -> bytes:
    """PUBLISH packets, now and then something else between them."""
    parts = []
    for _ in range(random.randint(0, 6)):
        topic = a_topic(random).encode() if random.random() < 0.9 else a_text(random)
        first = random.choice((0x30, 0x32, 0x34, 0x30, 0x31, 0xC0) if random.random() < 0.2 else (0x30,))
        body = len(topic).to_bytes(2, "big") + topic + random.randbytes(random.randint(0, 3))
        length, size = b"", len(body)
        while size > 127:
            length, size = length + bytes((size & 127 | 128,)), size >> 7
        parts.append(bytes((first,)) + length + bytes((size,)) + body)
    chunk = b"".join(parts)
    return chunk[: random.randint(0, len(chunk))] if random.random() < 0.2 else chunk


def filter_calls(random: Random) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """A call of each kernel of filters."""
    chosen = [a_filter(random) for _ in range(random.randint(0, 8))]
    shapes = tuple(dict.fromkeys(shape for shape in map(shape_of, chosen) if shape is not None))
    topic = a_topic(random)
    yield "shape_of", (a_filter(random),)
    yield "shape_of", (topic,)
    yield "fitting_filters", (topic, shapes)
    yield "find_filters", (topic, shapes, {filter: object() for filter in chosen})
    has_options = random.random() < 0.7
    body = a_body(random, has_options)
    yield "read_filters", (body, random.choice((0, 0, 0, 2, len(body))), has_options, random.randint(0, 8))
    data = a_chunk(random)
    routes = {a_topic(random).encode(): object() for _ in range(3)}
    yield "new_topics", (data, 0, routes, random.choice((2, 128)), random.choice((9, 65_535)), 4)
