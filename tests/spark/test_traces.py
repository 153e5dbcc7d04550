"""The last part of a trace: a task of Spark tells of the traced messages that it read."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.collector import Collector
from e2e.http_calls import call
from e2e.processes import BrokerProcess
from millrace.errors import ConfigError
from millrace.spark import options
from spark.java_parts import is_java
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CONSUMER = 5
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_trace_reaches_from_the_publisher_to_spark(spark: "SparkSession", tmp_path: Path) -> None:
    """By a user property, and by offset; the rows show the property."""
    if is_java():
        pytest.skip("the source in Java tells no traces")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="pip install 'millrace[otel]'")
    with Collector() as collector:
        settings = [f"tracing.endpoint={collector.url}", "tracing.one_in=4"]
        broker = BrokerProcess(tmp_path, *(word for one in settings for word in ("--set", one))).wait_ready()
        try:
            port = broker.ports["http"]
            form = {"name": "s", "filters": ["s/#"], "shards": 1}
            assert call(port, "POST", "/v1/streams", form).status == 201
            for number in range(6):
                asked: dict[str, Any] = {"traceparent": TRACEPARENT} if number == 1 else {}
                message = {"topic": f"s/{number}", "payload": str(number)}
                assert call(port, "POST", "/v1/publish", message, **asked).status == 200
            until(lambda: len(collector.named("receive s")) == 3, "three traces")
            reader = spark.read.format("millrace").option("url", broker.url).option("stream", "s")
            reader = reader.option("traceEndpoint", collector.url).option("traceOneIn", "4")
            rows = reader.load().orderBy("offset").collect()
        finally:
            broker.stop()
        until(lambda: len(collector.named("read s")) >= 3, "three reads")
    users = [row.properties.user if row.properties else () for row in rows]
    shown = [{one.name: one.value for one in user or ()} for user in users]
    assert shown == [{"traceparent": TRACEPARENT} if number == 1 else {} for number in range(6)]
    received = {span.attributes["millrace.offset"]: span for span in collector.named("receive s")}
    read = {span.attributes["millrace.offset"]: span for span in collector.named("read s")}
    assert sorted(read) == sorted(received) == [0, 1, 4]
    for offset, span in read.items():
        assert (span.trace, span.parent) == (received[offset].trace, received[offset].span)
        assert span.kind == CONSUMER and span.service == "millrace-spark"
        assert "spark.partition" in span.attributes
    assert read[1].trace == TRACE


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="traceEndpoint = 'collector:4318'"):
        options.parse({"stream": "s", "traceEndpoint": "collector:4318"})
    with pytest.raises(ConfigError, match="without traceEndpoint"):
        options.parse({"stream": "s", "traceOneIn": "10"})
