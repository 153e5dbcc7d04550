"""The source in Java without a session of Spark: its rows are those of the messages, damage is seen, and its
options and their errors are those of the source in Python."""

import base64
import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")
pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'millrace[spark]'")

from millrace.errors import ConfigError
from millrace.kernels.checksum import crc32c
from millrace.spark import options
from millrace.storage.block import HEAD_BYTES, Codec, Kind, opaque_block
from millrace.types import Message, Version
from spark.java_parts import built_jar, class_path, jar_of_tests
from spark.test_arrow import BASE_US, expected, messages, to_block

pytestmark = [pytest.mark.spark]

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Ask a JVM with the jar."""
    if shutil.which("javac") is None:
        pytest.skip("there is no Java compiler")
    path = os.pathsep.join((jar_of_tests(tmp_path_factory.mktemp("java")), class_path(built_jar())))
    settings = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "--add-opens=java.base/java.nio=ALL-UNNAMED")
    java = ["java", *settings, "-cp", path, "millrace.spark.Probe"]
    jvm = subprocess.Popen(java, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert jvm.stdin is not None and jvm.stdout is not None
    questions, answers = jvm.stdin, jvm.stdout

    def asked(**question: Any) -> Any:
        questions.write(json.dumps(question).encode() + b"\n")
        questions.flush()
        return json.loads(answers.readline())

    yield asked
    questions.close()
    assert jvm.wait(60) == 0


def blocks(ask: Ask, data: bytes, **choice: Any) -> Any:
    return ask(**{"data": base64.b64encode(data).decode(), "start": 0, "end": 1 << 40, **choice})


def in_text(row: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: bytes in base64."""
    return json.loads(json.dumps(row, default=lambda value: base64.b64encode(value).decode()))


@settings(max_examples=60, deadline=None)
@given(
    found=st.lists(st.lists(messages, min_size=1, max_size=8), min_size=1, max_size=5),
    codec=st.sampled_from([Codec.NONE, Codec.ZLIB]),
    cut=st.tuples(st.integers(0, 12), st.integers(0, 45)),
    wanted=st.none() | st.sets(st.sampled_from(["a", "a/b", "c"])),
    until=st.none() | st.integers(0, 45),
)
def test_rows_are_what_a_loop_gives(
    ask: Ask,
    found: list[list[Any]],
    codec: Codec,
    cut: tuple[int, int],
    wanted: set[str] | None,
    until: int | None,
) -> None:
    """Any messages, in any blocks, cut anywhere, by topic and by time, compressed; a batch is a block."""
    data, loop, offset = b"", [], 100
    start, end = 100 + cut[0], 100 + cut[1]
    until_us = BASE_US + 100 + (10**6 if until is None else until)
    for rows in found:
        data += to_block(rows, offset, codec).to_bytes()
        of_block = []
        for position, (message, _, publisher) in enumerate(rows):
            time_us = BASE_US + offset + position
            is_in = start <= offset + position < end and time_us <= until_us
            if is_in and (wanted is None or message.topic in wanted):
                of_block.append(in_text(expected(message, publisher, offset + position, time_us)))
        loop += [of_block] if of_block else []
        offset += len(rows)
    topics = None if wanted is None else sorted(wanted)
    answer = blocks(ask, data, start=start, end=end, until=until_us, topics=topics)
    assert answer == {"batches": loop}


ROW = (Message(topic="a", payload=b"x"), Version.MQTT_3_1_1, "ann")


def test_both_checksums_of_a_block_are_proved(ask: Ask) -> None:
    """Every bit of head and body counts; a block that ends too early, and what is no block, are errors."""
    whole = to_block([ROW], 0, Codec.NONE).to_bytes()
    assert len(blocks(ask, opaque_block(Kind.NOOP).to_bytes() + whole)["batches"]) == 1
    for position in range(len(whole)):
        broken = bytearray(whole)
        broken[position] ^= 1 << position % 8
        answer = blocks(ask, bytes(broken))
        assert answer["kind"] == "BlockDamaged", position
        part = "no block starts" if position < 4 else "head" if position < HEAD_BYTES else "body of block 1"
        assert part in answer["error"], (position, answer)
    assert "bytes of body instead of" in blocks(ask, whole[:-8])["error"]
    assert "too few for a block" in blocks(ask, whole + b"MRBK")["error"]


def with_number(block: bytes, position: int, value: int) -> bytes:
    """The block with this number in its body, and checksums that fit: made by somebody who lies."""
    changed = bytearray(block)
    struct.pack_into("<I", changed, HEAD_BYTES + position, value)
    struct.pack_into("<I", changed, 88, crc32c(bytes(changed[HEAD_BYTES:])))
    struct.pack_into("<I", changed, 92, crc32c(bytes(changed[:92])))
    return bytes(changed)


def test_a_column_that_points_outside_of_its_block_is_damage(ask: Ask) -> None:
    """Vectors point into the answer, so each number that says where is proved: lengths, ids and places."""
    whole = to_block([ROW, ROW], 0, Codec.NONE).to_bytes()
    plain = struct.unpack_from("<I", whole, 12)[0]
    heads = {0: "topic bytes", 4: "names", 8: "name bytes", 12: "packet bytes", 20: "key bytes"}
    columns = {
        24 + 4: "edge of a topic",
        plain: "topic id",
        plain + 32: "payload position",
        plain + 40: "payload size",
        plain + 56: "publisher id",
    }
    for position, what in (heads | columns).items():
        for value in (0x7FFF_FFFF, 0xFFFF_FFF0, 0x8000_0000):
            answer = blocks(ask, with_number(whole, position, value))
            assert answer.get("kind") == "BlockDamaged", (what, hex(value), answer)


def test_a_compressed_block_that_lies_about_its_size_is_damage(ask: Ask) -> None:
    rows = [(Message(topic="a", payload=b"x" * 500), Version.MQTT_3_1_1, None)]
    whole = bytearray(to_block(rows, 0, Codec.ZLIB).to_bytes())
    assert whole[7] == Codec.ZLIB
    for more in (-8, 8, 1 << 20):
        changed = bytearray(whole)
        struct.pack_into("<I", changed, 16, struct.unpack_from("<I", whole, 16)[0] + more)
        struct.pack_into("<I", changed, 92, crc32c(bytes(changed[:92])))
        assert "expands to another length" in blocks(ask, bytes(changed))["error"]


URL = "http://127.0.0.1:18831"
WRONG_TO_READ = [
    {},
    {"stream": "a", "subscribe": "b"},
    {"subscribe": " , "},
    {"assign": '["a"]'},
    {"assign": '{"a": ["x"]}'},
    {"stream": "a", "maxTriggerDelay": "15"},
    {"stream": "a", "connectTimeout": "0s"},
    {"stream": "a", "maxRecordsPerPartition": "0"},
    {"stream": "a", "includeHeaders": "true"},
    {"stream": "a", "startingOffsetsByTimestampStrategy": "latest"},
    {"stream": "a", "maxOffsetsPerTrigger": "1", "maxRowsPerTrigger": "2"},
    {"provider": "millrace", "stream": "a"},
    {"startingOffset": "earliest"},
    {"strem": "a"},
    {"zzz": "a"},
    {"topics": "a/#/b"},
    {"token": "secret"},
    {"url": "ftp://a"},
    {"url": "http://ann:secret@a"},
    {"url": ","},
    {"startingOffsets": "yesterday"},
    {"startingOffsets": '{"a": 1}'},
    {"startingOffsets": '{"7": -3}'},
    {"endingOffsets": "earliest"},
    {"startingTimestamp": "it's late"},
    {"startingTimestamp": '{"7": "latest"}'},
    {"failOnDataLoss": "maybe"},
    {"group": "a b"},
]
WRONG_TO_WRITE = [
    {},
    {"url": URL, "writer": "a"},
    {"url": URL, "writer": "a b", "batch": "1"},
    {"url": URL, "writer": "a", "batch": "-1"},
    {"url": URL, "qos": "3"},
    {"url": URL, "topic": "a/#"},
    {"url": URL, "retian": "true"},
    {"url": URL, "topics": "a/#"},
    {"url": URL, "token": "x"},
]


@pytest.mark.parametrize("side", ["read", "write"])
def test_what_is_wrong_is_said_in_the_same_words(
    ask: Ask, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole sentence; where Python lists all options, Java lists its own."""
    monkeypatch.delenv(options.URL_VARIABLE, raising=False)
    parse = options.parse if side == "read" else options.parse_sink
    for wrong in WRONG_TO_READ if side == "read" else WRONG_TO_WRITE:
        with pytest.raises(ConfigError) as said:
            parse(wrong)
        words = str(said.value).partition("; there are ")[0]
        answer = ask(**{side: wrong})
        assert answer.get("kind") == "ConfigError", (wrong, answer)
        assert answer["error"].partition("; there are ")[0] == words, wrong


def test_what_is_right_is_taken_by_both(ask: Ask) -> None:
    """Every option of the source in Python, but for traces, of which that one alone tells."""
    values = {
        "url": "one:1,http://ann@two:2",
        "subscribePattern": "a|b",
        "topics": "a/#,+/b",
        "startingOffsets": '{"a": {"7": -1}, "8": "earliest", "9": 5}',
        "endingOffsets": "2026-11-15 10:00:00.5+01:00",
        "startingTimestamp": '{"7": 1794736800000}',
        "endingTimestamp": "2026-11-15",
        "maxTriggerDelay": "1.5h",
        "connectTimeout": "500ms",
        "requestTimeout": "2 s",
        "failOnDataLoss": "False",
        "group": "g",
        "pushFilters": "true",
        "passwordFile": "/a",
        "tokenFile": "/b",
        "caFile": "/c",
    }
    whole = set(options._KNOWN) - {"stream", "subscribe", "assign", "traceEndpoint", "traceOneIn"}
    given = {name: values.get(name, "7") for name in whole}
    options.parse(given)
    assert ask(read=given) == {}
    aliases = {name: given.get(own, "7") for name, own in options.ALIASES.items()}
    options.parse(aliases)
    assert ask(read=aliases) == {}
    written = {"kafka.bootstrap.servers": "a:1", "txnAppId": "w", "txnVersion": "3", "retain": "true"}
    options.parse_sink(written)
    assert ask(write=written) == {}
    view = {"url": URL, "stream": "s", "topics": "s/#"}
    assert ask(write=view, view=True) == {}
