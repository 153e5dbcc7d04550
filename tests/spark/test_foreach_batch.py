"""`foreachBatch` with `writer` and `batch`: a batch that Spark repeats is written once."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.filling import fill
from spark.test_sink_stream import payloads, staged
from waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeStream = Callable[..., str]
_QUERY_S_MAX = 300
ROWS = 1_000


def run(spark: Any, node: BrokerProcess, checkpoint: Path, source: str, each: Callable[..., None]) -> None:
    frame = (
        spark.readStream.format("millrace")
        .options(url=node.url, stream=source, startingOffsets="earliest", maxRowsPerTrigger="400")
        .load()
    )
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(_QUERY_S_MAX), "the query did not end"


def test_a_batch_that_fails_after_its_write_is_repeated_and_written_once(
    spark: Any, http: Http, node: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    """The second batch is written and then fails, so Spark runs it again from its checkpoint. Every row is in
    the log once; without the two options those of that batch would be there twice."""
    source, target = make_stream(shards=2), make_stream(shards=2)
    fill(node.port, [(f"{source}/{n % 9}", b"%d" % n) for n in range(ROWS)])
    written: list[int] = []

    def publish(batch: Any, number: int) -> None:
        rows = batch.selectExpr(f"replace(topic, '{source}/', '{target}/') as topic", "payload")
        rows.write.format("millrace").mode("append").options(
            url=node.url, writer=f"copy-{target}", batch=number
        ).save()
        written.append(number)
        if written.count(1) == 1 and number == 1:
            raise RuntimeError("after the write")

    with pytest.raises(Exception, match="after the write"):
        run(spark, node, tmp_path / "checkpoint", source, publish)
    run(spark, node, tmp_path / "checkpoint", source, publish)
    assert written == [0, 1, 1, 2]
    assert payloads(http, target) == Counter(b"%d" % n for n in range(ROWS))
    until(lambda: staged(http, target) == 0, "what the repeated write staged to be dropped")
    assert http.get(f"/v1/writers/copy-{target}")["last_batch"] == 2


def test_a_named_write_that_fails_may_be_tried_again(
    spark: Any, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """A job that fails decides nothing: the next try under its name writes all rows, and a third none."""
    stream = make_stream(shards=2)
    frame = spark.range(0, ROWS, numPartitions=4)

    def write(payload: str) -> None:
        rows = frame.selectExpr(f"concat('{stream}/', id % 5) as topic", f"{payload} as payload")
        named = {"url": node.url, "writer": f"job-{stream}", "batch": "7"}
        rows.write.format("millrace").mode("append").options(**named).save()

    with pytest.raises(Exception, match="no such row"):
        write(f"if(id = {ROWS - 1}, raise_error('no such row'), cast(id as string))")
    assert payloads(http, stream) == Counter()
    for _ in range(2):
        write("cast(id as string)")
        assert payloads(http, stream) == Counter(b"%d" % n for n in range(ROWS))
    until(lambda: staged(http, stream) == 0, "what was staged in vain to be dropped")


def test_modes_that_write_rows_again_are_refused(
    spark: Any, node: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    """Spark refuses `update` itself; `complete` and a pipeline say what to do instead."""
    from millrace.errors import ConfigError
    from millrace.spark.flow import Flow
    from millrace.spark.options import UPDATE_MODE

    stream = make_stream()
    fill(node.port, [(f"{stream}/t", b"1")])
    frame = spark.readStream.format("millrace").options(url=node.url, stream=stream).load()
    counts = frame.groupBy("topic").count().selectExpr("topic", "cast(count as string) as payload")

    def start(mode: str) -> None:
        writer = counts.writeStream.format("millrace").outputMode(mode).option("url", node.url)
        checkpoint = str(tmp_path / mode)
        writer.option("checkpointLocation", checkpoint).start().awaitTermination(_QUERY_S_MAX)

    with pytest.raises(Exception, match="does not support Update mode"):
        start("update")
    with pytest.raises(
        Exception, match="use foreachBatch and write each batch with the options writer and batch"
    ):
        start("complete")
    flow = Flow(spark=spark, url=node.url, checkpoints=str(tmp_path), settings={})
    with pytest.raises(ConfigError) as refused:
        flow.sink("counts", counts, mode="update")
    assert str(refused.value) == f"sink 'counts': {UPDATE_MODE}"
