"""How micro-batches are planned: what Spark asks a stream reader, without Spark and without nodes."""

import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")
from pyspark.sql.streaming.datasource import ReadAllAvailable

from millrace.spark import options, source
from millrace.spark.offsets import Extent, Span
from millrace.spark.schema import SCHEMA
from millrace.spark.source import StreamReader, Task

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NODE = "http://127.0.0.1:1"
ANSWER_ROWS = 20_000


class Nodes:
    """Stands for the cluster, counts what it is asked, and has a clock that the test moves."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends = ends
        self.asked = 0
        self.told: list[dict[int, int]] = []
        self.now_s = 1_000.0
        self.rooms: list[bytearray | None] = []

    @property
    def http(self) -> Any:
        return type("Addresses", (), {"urls": (NODE,), "close": lambda: None, "prefer": lambda url: None})

    def extents(self, *streams: str) -> dict[int, Extent]:
        self.asked += 1
        return {shard: Extent(first=0, next=end, stream=streams[0]) for shard, end in self.ends.items()}

    def blocks(
        self, stream: str, shard: int, start: int, end: int, room: bytearray | None
    ) -> tuple[bytes, int]:
        self.rooms.append(room)
        return b"", min(end, start + ANSWER_ROWS)

    def advance(
        self, group: str, filters: Sequence[str], streams: Sequence[str], position: dict[int, int]
    ) -> None:
        self.told.append(position)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    made = Nodes(dict.fromkeys(range(8), 60))
    monkeypatch.setattr(source, "_kept", lambda given: made)
    monkeypatch.setattr(source.time, "monotonic", lambda: made.now_s)
    return made


def reader(**given: str) -> StreamReader:
    return StreamReader(options.parse({"stream": "s", "startingOffsets": "earliest", **given}), SCHEMA)


def test_a_small_micro_batch_is_one_question_and_one_task(nodes: Nodes) -> None:
    made = reader()
    start = made.initialOffset()
    nodes.asked = 0
    end = made.latestOffset(start, ReadAllAvailable())
    assert made.reportLatestOffset() == end
    (task,) = made.partitions(start, end)
    made.commit(end)
    assert nodes.asked == 1
    assert isinstance(task, Task) and task.node == NODE
    assert [(span.shard, span.count, span.stream) for span in task.spans] == [(n, 60, "s") for n in range(8)]


def test_a_group_is_told_once_what_is_finished(nodes: Nodes) -> None:
    """At the beginning, so that it is there, and whenever a batch is through: Spark plans the next batch, or
    finds that there is none, only after it has written that down."""
    made = reader(group="g")
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    assert nodes.told == [dict.fromkeys(range(8), 0)]
    made.commit(end)
    assert made.latestOffset(end, ReadAllAvailable()) == end
    assert nodes.told[1:] == [dict.fromkeys(range(8), 60)]


def test_a_micro_batch_waits_for_enough_offsets_but_not_too_long(nodes: Nodes) -> None:
    made = reader(minOffsetsPerTrigger="100", maxTriggerDelay="10s")
    start = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    nodes.ends = {**nodes.ends, 0: 90}
    assert made.latestOffset(start, ReadAllAvailable()) == start
    nodes.now_s += 9
    assert made.latestOffset(start, ReadAllAvailable()) == start
    nodes.now_s += 2
    later = made.latestOffset(start, ReadAllAvailable())
    assert later["0"] == 90
    # Nothing has come: that is no batch, and the time runs on.
    nodes.now_s += 20
    assert made.latestOffset(later, ReadAllAvailable()) == later
    nodes.ends = {**nodes.ends, 0: 91}
    assert made.latestOffset(later, ReadAllAvailable())["0"] == 91
    nodes.ends = {**nodes.ends, 0: 191}
    assert made.latestOffset({**later, "0": 91}, ReadAllAvailable())["0"] == 191


def test_a_bounded_run_does_not_wait(nodes: Nodes) -> None:
    made = reader(minOffsetsPerTrigger="100000")
    start = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    nodes.ends = {**nodes.ends, 0: 61}
    made.prepareForTriggerAvailableNow()
    nodes.ends = {**nodes.ends, 0: 70}
    assert made.latestOffset(start, ReadAllAvailable())["0"] == 61


def test_options_divide_the_work(nodes: Nodes) -> None:
    for given, tasks in (({"minPartitions": "4"}, 4), ({"maxRecordsPerPartition": "60"}, 8)):
        made = reader(**given)
        start = made.initialOffset()
        assert len(made.partitions(start, made.latestOffset(start, ReadAllAvailable()))) == tasks


def test_shards_may_be_chosen(nodes: Nodes) -> None:
    chosen = StreamReader(options.parse({"assign": '{"s": [2, 3]}', "startingOffsets": "earliest"}), SCHEMA)
    assert set(chosen.initialOffset()) == {"2", "3"}
    wrong = StreamReader(options.parse({"assign": '{"s": [99]}'}), SCHEMA)
    with pytest.raises(Exception, match="assign names shard 99; the stream has 0, 1"):
        wrong.initialOffset()


def test_a_thousand_shards_are_planned_with_one_question_and_little_cpu(nodes: Nodes) -> None:
    """Counted in round trips and CPU: how long it takes on the clock depends on who else uses the machine."""
    nodes.ends = dict.fromkeys(range(1_000), 60)
    made = reader()
    start = made.initialOffset()
    nodes.asked = 0
    began_s = time.process_time()
    end = made.latestOffset(start, ReadAllAvailable())
    tasks = made.partitions(start, end)
    made.commit(end)
    assert time.process_time() - began_s < 1.0
    assert nodes.asked == 1
    assert sorted(span.shard for task in tasks for span in task.spans) == list(range(1_000))


def test_a_small_task_takes_no_room_and_large_ones_share_two(nodes: Nodes) -> None:
    """The first touch of 36 MiB costs more than to read a micro-batch; the next task of a worker finds them
    touched. No answer is read into the room of the one before, which may still be in use."""

    def read(rows: int) -> list[bytearray | None]:
        nodes.rooms = []
        task = Task(spans=(Span(shard=1, start=0, end=rows, stream="s"),))
        assert list(reader().read(task)) == []
        return nodes.rooms

    assert read(500) == [None]
    first, second = read(100_000), read(100_000)
    assert len(first) == len(second) == 5
    assert len({id(room) for room in (*first, *second)}) == 2
    for rooms in (first, second):
        assert all(one is not other for one, other in pairwise(rooms))


def test_a_commit_does_not_load_what_only_tasks_need() -> None:
    """Spark plans and commits each batch of a sink in processes that are new each time."""
    program = "import sys, millrace.spark.source, millrace.spark.sink; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "millrace.spark.writing" in loaded
    assert not {"millrace.storage.block", "millrace.broker.streams.stream", "millrace.spark.arrow"} & loaded
