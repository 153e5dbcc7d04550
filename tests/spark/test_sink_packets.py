"""From Arrow batches to packets: what is staged is exactly what the codec would have made."""

from collections.abc import Callable

import pytest

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'millrace[spark]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from millrace.errors import LocalError  # noqa: E402
from millrace.kernels.blocks import Run  # noqa: E402
from millrace.spark.packets import Packer, Route, Section  # noqa: E402
from millrace.storage.block import BLOCK_BYTES_AIM, keyed_block  # noqa: E402
from millrace.types import Properties  # noqa: E402
from millrace.wire.mqtt.codec import encode_properties, encode_publish  # noqa: E402

_KEY = b"writer-0123456789012345678901234567890123456789/123456/attempt-01234567890123456789/1234"


def by_length(topic: str) -> Route:
    return "s", len(topic) % 2


def pack(
    *batches: "pa.RecordBatch",
    topic: str | None = None,
    qos: int = 1,
    retain: bool = False,
    find_route: Callable[[str], Route] = by_length,
) -> list[Section]:
    packer = Packer(topic=topic, qos=qos, retain=retain, find_route=find_route)
    return [section for batch in batches for section in packer.add(batch)] + list(packer.finish())


def joined(sections: list[Section]) -> dict[Route, bytes]:
    found: dict[Route, bytes] = {}
    for section in sections:
        found[section.route] = found.get(section.route, b"") + section.packets
    return found


Rows = list[tuple[str, bytes, int, bool]]
rows = st.lists(
    st.tuples(
        st.text(st.characters(exclude_characters="\0+#$", exclude_categories=["Cs"]), min_size=1, max_size=5),
        st.binary(max_size=300),
        st.integers(0, 2),
        st.booleans(),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(1, 40))
def test_packets_are_those_of_the_codec(rows: Rows, cut: int) -> None:
    """Any topics, payloads, QoS and retain flags, in any cut into batches; order is kept in each shard."""
    table = pa.table(
        {
            "topic": [row[0] for row in rows],
            "payload": pa.array([row[1] for row in rows], pa.binary()),
            "qos": pa.array([row[2] for row in rows], pa.int32()),
            "retain": [row[3] for row in rows],
        }
    )
    wanted: dict[Route, bytes] = {}
    for topic, payload, qos, retain in rows:
        first = 0x30 | qos << 1 | retain
        packet = encode_publish(topic.encode(), payload, first, 1 if qos else 0, b"")
        wanted[by_length(topic)] = wanted.get(by_length(topic), b"") + packet
    sections = pack(*table.to_batches(max_chunksize=cut))
    assert joined(sections) == wanted
    assert sum(section.rows for section in sections) == len(rows)


@pytest.mark.parametrize(
    ("count", "size"), [(25_000, 1), (30_000, 100), (3_000, 1_024), (40, 100_000), (3, 1_200_000)]
)
def test_sections_keep_to_the_bounds_of_a_block(count: int, size: int) -> None:
    """Each becomes one block, with the longest key there is; few are much smaller than they could be."""
    batch = pa.record_batch({"payload": pa.array([b"x" * size] * count, pa.binary())})
    sections = pack(*(batch.slice(at, 7_000) for at in range(0, count, 7_000)), topic="some/topic")
    assert sum(section.rows for section in sections) == count
    for section in sections:
        block = keyed_block([Run(packets=section.packets, version=section.version)], _KEY)
        assert block.header.count == section.rows
    least = max(1, count * (size + 48) // BLOCK_BYTES_AIM, count // 10_000)
    assert len(sections) <= 2 * least + 3


def test_a_topic_that_no_row_has_makes_no_section() -> None:
    """A column that comes as a dictionary may hold more topics than its rows use."""
    topics = pa.DictionaryArray.from_arrays(pa.array([1, 1], pa.int32()), pa.array(["ab", "a", "abcd"]))
    batch = pa.record_batch({"topic": topics, "payload": pa.array([b"1", b"2"], pa.binary())})
    (section,) = pack(batch)
    assert (section.route, section.rows) == (by_length("a"), 2)


def test_rows_with_properties_are_mqtt_5() -> None:
    """A batch in which a row has properties is of version 5; what waited before it goes out as it was."""
    plain = pa.record_batch({"payload": pa.array([b"1"], pa.binary())})
    fields = {"response_topic": "answers", "user": [{"name": "k", "value": "v"}, {"name": "k", "value": "w"}]}
    rich = pa.record_batch(
        {
            "payload": pa.array([b"2", b"3"], pa.binary()),
            "properties": [fields, None],
            "content_type": [None, "text/plain"],
        }
    )
    first, second = pack(plain, rich, topic="t")
    assert (first.version, second.version) == (4, 5)
    full = Properties(response_topic="answers", user=(("k", "v"), ("k", "w")))
    described = Properties(content_type="text/plain")
    assert second.packets == b"".join(
        encode_publish(b"t", payload, 0x32, 1, encode_properties(properties))
        for payload, properties in ((b"2", full), (b"3", described))
    )


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"topic": ["a", None], "payload": [b"1", b"2"]}, "1 rows have no topic"),
        ({"topic": ["a", "b"], "payload": [b"1", None]}, "1 rows have no payload"),
        ({"topic": ["a", "b"], "payload": [b"1", b"2"], "qos": [1, 3]}, "qos is 0 to 2, not 1 to 3"),
        ({"topic": ["a", "b" * 70_000], "payload": [b"1", b"2"]}, "more than 65535 bytes"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_an_error(columns: dict[str, list[object]], sentence: str) -> None:
    with pytest.raises(LocalError, match=sentence):
        pack(pa.record_batch(columns))


def test_text_is_a_payload_too() -> None:
    (section,) = pack(pa.record_batch({"payload": ["grün"]}), topic="t", qos=0)
    assert section.packets == encode_publish(b"t", "grün".encode(), 0x30, 0, b"")
