"""`spark.readStream.format("millrace")` against a real node: each row once, over restarts and changes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.filling import fill
from waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeStream = Callable[..., str]
_QUERY_S_MAX = 120


class Job:
    """A query from a stream to a Parquet table; it may be run again from its checkpoint."""

    def __init__(self, spark: Any, url: str, directory: Path) -> None:
        self._spark, self._url = spark, url
        self._table, self._checkpoint = str(directory / "table"), str(directory / "checkpoint")

    def start(self, stream: str | None, *, trigger: dict[str, Any], **options: str) -> Any:
        if stream is not None:
            options["stream"] = stream
        frame = self._spark.readStream.format("millrace").options(url=self._url, **options).load()
        writer = frame.select("topic", "payload", "shard", "offset").writeStream.format("parquet")
        return (
            writer.option("checkpointLocation", self._checkpoint)
            .option("path", self._table)
            .trigger(**trigger)
            .start()
        )

    def run(self, stream: str, **options: str) -> list[int]:
        """To the end of what is there; the number of rows of each batch that had any."""
        query = self.start(stream, trigger={"availableNow": True}, **options)
        assert query.awaitTermination(_QUERY_S_MAX), "the query did not end"
        return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]

    def payloads(self) -> list[bytes]:
        rows = self._spark.read.parquet(self._table).orderBy("shard", "offset").collect()
        return [bytes(row.payload) for row in rows]


@pytest.fixture
def job(spark: Any, node: BrokerProcess, tmp_path: Path) -> Job:
    return Job(spark, node.url, tmp_path)


def numbers(first: int, after: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, after)]


def test_limits_and_restart_from_a_checkpoint(job: Job, node: BrokerProcess, make_stream: MakeStream) -> None:
    """Batches keep to the limit; a second run reads what came since, and nothing twice."""
    stream = make_stream()
    fill(node.port, [(f"{stream}/t", one) for one in numbers(0, 100)])
    sizes = job.run(stream, startingOffsets="earliest", maxRowsPerTrigger="40")
    assert sizes == [40, 40, 20]
    fill(node.port, [(f"{stream}/t", one) for one in numbers(100, 130)])
    assert job.run(stream, startingOffsets="earliest") == [30]
    assert job.payloads() == numbers(0, 130)
    assert job.run(stream, startingOffsets="earliest") == []


def test_a_running_query_gets_what_comes(job: Job, node: BrokerProcess, make_stream: MakeStream) -> None:
    """Without startingOffsets a query begins at the end, and goes on with every message after it."""
    stream = make_stream()
    fill(node.port, [(f"{stream}/t", b"before")])
    query = job.start(stream, trigger={"processingTime": "200 milliseconds"})
    try:
        until(lambda: query.lastProgress is not None, "the first progress", _QUERY_S_MAX)
        fill(node.port, [(f"{stream}/t", one) for one in numbers(0, 20)])

        def last_end() -> dict[str, int]:
            found = query.lastProgress["sources"][0]["endOffset"]
            return json.loads(found) if isinstance(found, str) else found

        until(lambda: list(last_end().values()) == [21], "the query to read to the end", _QUERY_S_MAX)
        assert json.loads(query.lastProgress["sources"][0]["latestOffset"]) == last_end()
    finally:
        query.stop()
    assert job.payloads() == numbers(0, 20)


def test_a_group_is_at_the_end_after_a_run(
    job: Job, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """A job that a timer starts is protected from its first run on, and its group shows all of each run."""
    stream = make_stream()

    def position() -> int:
        shown = http.get(f"/v1/groups/g-{stream}")
        assert shown["filters"] == [f"{stream}/#"]
        (row,) = [row for row in shown["shards"] if row["stream"] == stream]
        return int(row["position"])

    options = {"startingOffsets": "earliest", "group": f"g-{stream}"}
    fill(node.port, [(f"{stream}/t", one) for one in numbers(0, 100)])
    assert job.run(stream, maxRowsPerTrigger="40", **options) == [40, 40, 20]
    assert position() == 100
    fill(node.port, [(f"{stream}/t", one) for one in numbers(100, 110)])
    assert job.run(stream, **options) == [10]
    assert position() == 110


def test_several_streams_in_one_read(
    spark: Any, job: Job, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """By name, by pattern, also one that is created between two runs, and by shard; a checkpoint holds the
    positions of all, and one task reads the small ranges of all shards."""
    one, two = make_stream(shards=3), make_stream(shards=2)
    fill(node.port, [(f"{name}/{n}", name.encode()) for name in (one, two) for n in range(20)])
    read = spark.read.format("millrace").option("url", node.url)
    both = read.option("subscribe", f"{one},{two}").load()
    assert both.count() == 40 and both.rdd.getNumPartitions() == 1
    (shard, *_) = [row["shard"] for row in http.get(f"/v1/streams/{one}")["shard_list"]]
    assigned = spark.read.format("millrace").options(url=node.url, assign=json.dumps({one: [shard]})).load()
    assert [row.shard for row in assigned.select("shard").distinct().collect()] == [shard]
    options = {"subscribePattern": f"{one}|{two}|later-{one}", "startingOffsets": "earliest"}
    query = job.start(None, trigger={"availableNow": True}, **options)
    assert query.awaitTermination(_QUERY_S_MAX)
    http.call("POST", "/v1/streams", {"name": f"later-{one}", "filters": [f"later-{one}/#"], "shards": 1})
    fill(node.port, [(f"later-{one}/t", b"later"), (f"{two}/t", two.encode())])
    query = job.start(None, trigger={"availableNow": True}, **options)
    assert query.awaitTermination(_QUERY_S_MAX)
    assert sorted(job.payloads()) == sorted([one.encode()] * 20 + [two.encode()] * 21 + [b"later"])


def test_retention_that_passed_a_checkpoint_is_an_error(
    job: Job, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """Lost rows end the query with a sentence; the user may let it go on without them."""
    stream = make_stream()
    fill(node.port, [(f"{stream}/t", one) for one in numbers(0, 10)])
    job.run(stream, startingOffsets="earliest")
    fill(node.port, [(f"{stream}/t", one) for one in numbers(10, 30)])
    http.call("POST", f"/v1/streams/{stream}/purge", {"before": 25})
    with pytest.raises(
        Exception, match="offset 10 was asked for, but the earliest offset that is left is 25"
    ):
        job.run(stream)
    assert job.payloads() == numbers(0, 10)
    job.run(stream, failOnDataLoss="false")
    assert job.payloads() == numbers(0, 10) + numbers(25, 30)


def test_new_shards_are_read_from_their_beginning(
    job: Job, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """A stream that was given other shards between two runs loses and repeats nothing."""
    stream = make_stream()
    topics = [f"{stream}/{n}" for n in range(8)]
    fill(node.port, [(topic, b"old") for topic in topics])
    assert sum(job.run(stream, startingOffsets="earliest")) == 8
    http.call("PATCH", f"/v1/streams/{stream}", {"shards": 3})
    fill(node.port, [(topic, b"new") for topic in topics])
    assert sum(job.run(stream)) == 8
    assert sorted(job.payloads()) == [b"new"] * 8 + [b"old"] * 8


def test_an_empty_stream_makes_no_batch(job: Job, make_stream: MakeStream) -> None:
    assert job.run(make_stream(), startingOffsets="earliest") == []
