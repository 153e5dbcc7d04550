"""The topic summary: "no" is certain, "maybe" is seldom wrong, and it survives its bytes."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kernels.checksum import crc32c
from millrace.storage.summary import TopicSummary, filter_keys

LEVEL = st.sampled_from([b"", b"a", b"b", b"temp", b"$x"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=12).map(b"/".join).filter(bool)


def matches(topic: list[bytes], pattern: list[bytes]) -> bool:
    """The rule of MQTT 5, 4.7.1, level by level."""
    if not pattern:
        return not topic
    if pattern[0] == b"#":
        return True
    if not topic:
        return pattern == [b"#"]
    return pattern[0] in (b"+", topic[0]) and matches(topic[1:], pattern[1:])


@given(st.lists(TOPIC, min_size=1, max_size=8), st.data())
@settings(max_examples=100, deadline=None)
def test_a_segment_with_a_match_is_never_skipped(topics: list[bytes], data: st.DataObject) -> None:
    """Whatever filter is made from a topic that is there, the summary says maybe."""
    summary = TopicSummary()
    summary.add(topics)
    levels = data.draw(st.sampled_from(topics)).split(b"/")
    pattern = [b"+" if data.draw(st.booleans()) else level for level in levels]
    if data.draw(st.booleans()):
        pattern = [*pattern[: data.draw(st.integers(0, len(pattern)))], b"#"]
    assert matches(levels, pattern)
    keys = filter_keys(b"/".join(pattern))
    for known in (summary, TopicSummary.from_bytes(summary.to_bytes())):
        assert keys is None or known.may_hold(keys)


def test_absent_topics_are_skipped() -> None:
    summary = TopicSummary()
    summary.add(b"fleet/%d/engine" % n for n in range(1_000))
    absent = [b"fleet/1000/engine", b"fleet/7", b"other/#", b"fleet/2000/+", b"fleet/5/engine/#x"]
    for topic_filter in absent:
        keys = filter_keys(topic_filter)
        assert keys is not None and not summary.may_hold(keys)


@pytest.mark.parametrize("topic_filter", [b"#", b"+", b"+/a", b"+/a/#"])
def test_a_filter_that_begins_with_a_wildcard_skips_nothing(topic_filter: bytes) -> None:
    assert filter_keys(topic_filter) is None


def test_many_topics_fit_a_bounded_summary() -> None:
    """100,000 topics: nothing is lost, most others are still told apart, the size stays 128 KiB."""
    summary = TopicSummary()
    topics = [b"d/%d" % n for n in range(100_000)]
    for n in range(0, len(topics), 10_000):
        summary.add(topics[n : n + 10_000])
    again = TopicSummary.from_bytes(summary.to_bytes())
    assert len(again.to_bytes()) == 131_072
    rng = random.Random(1)
    for topic in rng.sample(topics, 2_000):
        keys = filter_keys(topic)
        assert keys is not None and summary.may_hold(keys) and again.may_hold(keys)
    wrong = sum(again.may_hold(filter_keys(b"other/%d" % n) or ()) for n in range(2_000))
    assert wrong < 600


def test_equal_keys_of_two_topics_do_not_hide_their_prefixes() -> None:
    """Two topics with one checksum: both are known with their prefixes."""
    first, second = b"a/1/4ki4ih7", b"b/1/4ki4ih7"
    summary = TopicSummary()
    summary.add([first])
    # Four bytes lead from any checksum to any other, so a topic below `b/` with the same one exists.
    wanted = crc32c(first)
    twin = second + forge(crc32c(second), wanted)
    assert crc32c(twin) == wanted and twin != first
    summary.add([twin])
    keys = filter_keys(b"b/#")
    assert keys is not None and summary.may_hold(keys)


def forge(start: int, wanted: int) -> bytes:
    """Four bytes that lead from one CRC-32C to another."""
    table = []
    for n in range(256):
        value = n
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    reverse = {value >> 24: n for n, value in enumerate(table)}
    state = wanted ^ 0xFFFF_FFFF
    path = []
    for _ in range(4):
        n = reverse[state >> 24]
        path.append(n)
        state = (state ^ table[n]) << 8 & 0xFFFF_FFFF
    out = bytearray()
    state = start ^ 0xFFFF_FFFF
    for n in reversed(path):
        out.append((state ^ n) & 0xFF)
        state = state >> 8 ^ table[n]
    return bytes(out)
