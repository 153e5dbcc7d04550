"""Which topics a segment may hold, small enough to ask every segment of a long log.

A summary is a set of keys: for each topic the CRC-32C of the topic and of each of its prefixes that end in a
slash, down to 8 levels. A filter asks with `filter_keys`: a plain topic by its own key, `a/b/+/c` by the
prefix `a/b/`. The answer "no" is certain, so a cursor with a narrow filter skips the whole segment
[rule 18]; "maybe" is wrong now and then and costs a read.

Up to 16,384 keys are kept as they are; beyond that as 2**20 bits, one for each key modulo 2**20.
"""

from array import array
from collections.abc import Collection, Iterable

from millrace.kernels.checksum import crc32c

SUMMARY_LEVELS = 8
_KEYS_MAX = 16_384
_BITS = 1 << 20
_SEEN_MAX = 16_384
# Both forms are told apart by their length: this one is longer than any list of keys.
_BITS_BYTES = _BITS // 8
assert _BITS_BYTES > 4 * _KEYS_MAX


def topic_keys(topic: bytes) -> list[int]:
    """All keys of one topic."""
    keys = [crc32c(topic)]
    end = topic.find(b"/") + 1
    while end and len(keys) <= SUMMARY_LEVELS:
        keys.append(crc32c(topic[:end]))
        end = topic.find(b"/", end) + 1
    return keys


def filter_keys(topic_filter: bytes) -> tuple[int, ...] | None:
    """Keys of which a segment has at least one if any of its topics matches; None if all segments may."""
    levels = topic_filter.split(b"/")
    literal = next((n for n, level in enumerate(levels) if level in (b"+", b"#")), len(levels))
    if literal == len(levels):
        return (crc32c(topic_filter),)
    if not literal:
        return None
    prefix = b"/".join(levels[: min(literal, SUMMARY_LEVELS)])
    keys: tuple[int, ...] = (crc32c(prefix + b"/"),)
    # `a/b/#` matches `a/b` as well (MQTT 5, 4.7.1.2).
    if levels[literal] == b"#" and literal <= SUMMARY_LEVELS:
        keys += (crc32c(prefix),)
    return keys


def _set_bits(bits: bytearray, keys: Iterable[int]) -> None:
    for key in keys:
        bits[key % _BITS >> 3] |= 1 << (key & 7)


class TopicSummary:
    """The keys of one segment. Only ever grows; what was cut off the segment stays in it."""

    __slots__ = ("_bits", "_keys", "_last", "_seen")

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._bits: bytearray | None = None
        # Spares the keys of topics that come again; by the topic itself, since keys of two may be equal.
        self._seen: set[bytes] = set()
        self._last = b""

    def is_last(self, dictionary: bytes) -> bool:
        """These are the topics that were added last; blocks of steady traffic repeat theirs."""
        if dictionary == self._last:
            return True
        self._last = dictionary
        return False

    def add(self, topics: Iterable[bytes]) -> None:
        seen = self._seen
        fresh = [topic for topic in topics if topic not in seen]
        if not fresh:
            return
        if len(seen) + len(fresh) > _SEEN_MAX:
            seen.clear()
        seen.update(fresh[:_SEEN_MAX])
        for topic in fresh:
            self._add_keys(topic_keys(topic))

    def fill(self) -> None:
        """From now on the segment may hold any topic."""
        self._bits = bytearray(b"\xff" * _BITS_BYTES)

    def _add_keys(self, keys: Iterable[int]) -> None:
        if self._bits is None:
            self._keys.update(keys)
            if len(self._keys) > _KEYS_MAX:
                bits = bytearray(_BITS_BYTES)
                _set_bits(bits, self._keys)
                # In this order, so that a reader beside the writer never meets neither of the two.
                self._bits = bits
                self._keys = set()
        else:
            _set_bits(self._bits, keys)

    def may_hold(self, keys: Collection[int]) -> bool:
        """False if no topic with any of these keys was added."""
        known, bits = self._keys, self._bits
        if bits is None:
            return not known.isdisjoint(keys)
        return any(bits[key % _BITS >> 3] >> (key & 7) & 1 for key in keys)

    def to_bytes(self) -> bytes:
        if self._bits is not None:
            return bytes(self._bits)
        return array("I", sorted(self._keys)).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "TopicSummary":
        summary = cls()
        if len(data) == _BITS_BYTES:
            summary._bits = bytearray(data)
        else:
            summary._keys = set(memoryview(data).cast("I").tolist())
        return summary
