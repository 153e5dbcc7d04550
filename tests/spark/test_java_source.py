"""What the source in Java has beside the one in Python: both on one checkpoint, figures of a query, and what
Spark names by itself, columns and conditions. The jar is in the session where the variable says so."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.filling import fill
from spark.java_parts import JAR_VARIABLE, ROOT, is_java
from spark.test_sink_stream import Copy, numbers, payloads

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeStream = Callable[..., str]
_RUN_S_MAX = 300

needs_jar = pytest.mark.skipif(not is_java(), reason=f"needs {JAR_VARIABLE}=1")


def copy_in_python(node: BrokerProcess, checkpoint: Path, source: str, target: str) -> None:
    """A run of the copying query in a process without the jar: source and sink are those in Python."""
    code = f"""
from pathlib import Path
from pyspark.sql import SparkSession
from spark.test_sink_stream import Copy
session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
Copy({node.url!r}, Path({str(checkpoint)!r}), {source!r}, {target!r}).run(session)
"""
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT / "tests")))
    variables = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable}
    variables.pop(JAR_VARIABLE)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=variables,
        capture_output=True,
        text=True,
        timeout=_RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]


@needs_jar
def test_either_source_goes_on_where_the_other_stopped(
    spark: Any, http: Http, node: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    """One checkpoint, in turn with the jar, without it and with it again, over a change of the shards: each
    row once, by source and by sink."""
    source, target = make_stream(shards=2), make_stream(shards=2)
    checkpoint = tmp_path / "checkpoint"
    in_java = Copy(node.url, checkpoint, source, target)

    def put(first: int, after: int) -> None:
        fill(node.port, [(f"{source}/{n % 9}", b"%d" % n) for n in range(first, after)])

    put(0, 700)
    in_java.run(spark)
    assert payloads(http, target) == numbers(700)
    put(700, 1_000)
    http.call("PATCH", f"/v1/streams/{source}", {"shards": 3})
    put(1_000, 1_400)
    copy_in_python(node, checkpoint, source, target)
    assert payloads(http, target) == numbers(1_400)
    put(1_400, 1_500)
    in_java.run(spark)
    in_java.run(spark)
    assert payloads(http, target) == numbers(1_500)
    texts = [one.read_text().splitlines()[-1] for one in (checkpoint / "offsets").glob("[0-9]*")]
    assert all(text == json.dumps(json.loads(text)) for text in texts), texts


@needs_jar
def test_a_query_shows_how_far_it_is_behind(
    spark: Any, node: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    """`metrics` in the progress of each batch: what is left to read, which Spark asks of sources in Java
    only; and the rows that a sink wrote."""
    stream, target = make_stream(shards=2), make_stream()
    fill(node.port, [(f"{stream}/{n % 9}", b"%0100d" % n) for n in range(100)])
    options = {"url": node.url, "stream": stream, "startingOffsets": "earliest", "maxRowsPerTrigger": "40"}
    frame = spark.readStream.format("millrace").options(**options).load()
    rows = frame.selectExpr(f"'{target}/t' AS topic", "payload")
    writer = rows.writeStream.format("millrace").options(url=node.url, checkpointLocation=str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(_RUN_S_MAX)
    found = [one for one in query.recentProgress if one["numInputRows"]]
    assert sum(one["numInputRows"] for one in found) == 100
    assert sum(one["sink"]["numOutputRows"] for one in found) == 100
    read, behind = 0, []
    for one in found:
        read += one["numInputRows"]
        metrics = one["sources"][0]["metrics"]
        assert int(metrics["offsetsBehindLatest"]) == 100 - read
        assert int(metrics["maxOffsetsBehindLatest"]) <= 100 - read
        assert int(metrics["shards"]) == 2
        behind.append(int(metrics["bytesBehindLatest"]))
    assert behind == sorted(behind, reverse=True) and behind[0] > 0 and behind[-1] == 0


@needs_jar
def test_spark_names_columns_and_conditions(
    spark: Any, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """Without an option: only the columns of the query are in the plan, and what the source applies is not
    applied again. A field of the properties may be asked for alone."""
    stream, described = make_stream(), make_stream()
    http.publish(f"{described}/t", b"x", response_topic="answers", user_properties=[["k", "1"]])
    read = spark.read.format("millrace").options(url=node.url, stream=described).load()
    (row,) = read.select("properties.response_topic", "properties.user.value").collect()
    assert (row.response_topic, row.value) == ("answers", ["1"])
    fill(node.port, [(f"{stream}/{n % 5}", b"%d" % n) for n in range(200)])
    frame = spark.read.format("millrace").options(url=node.url, stream=stream).load()
    chosen = frame.where(f"topic = '{stream}/3' AND offset >= 100").select("payload")
    assert sorted(int(row.payload) for row in chosen.collect()) == list(range(103, 200, 5))
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan and "qos" not in plan and "millrace" in plan, plan
    assert frame.count() == 200
    counted = frame.groupBy().count()._jdf.queryExecution().executedPlan().toString()
    assert "payload" not in counted, counted
    # A condition that is taken in part only is Spark's.
    both = frame.where(f"topic = '{stream}/3' OR qos = 2")
    assert both.count() == 40
    assert "Filter (" in both._jdf.queryExecution().executedPlan().toString()
