"""Every row of the two tables of options in docs/reference/spark.md is tried with a real Spark.

Most rows have their test where what they do is tested; the others are here. A row without a test fails."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess, millrace
from millrace.client.http import Http
from spark.filling import fill
from spark.test_sink_stream import payloads
from waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeStream = Callable[..., str]
HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "reference" / "spark.md"
_QUERY_S_MAX = 300

BATCH, STREAM, OWN = "test_batch.py", "test_stream.py", "test_option_rows.py"
OPTIONS = {
    "url": (BATCH, "test_a_hundred_thousand_rows_past_a_dead_node"),
    "stream": (BATCH, "test_columns_hold_what_was_published"),
    "subscribe": (STREAM, "test_several_streams_in_one_read"),
    "subscribePattern": (STREAM, "test_several_streams_in_one_read"),
    "assign": (STREAM, "test_several_streams_in_one_read"),
    "topics": (BATCH, "test_topic_filters_choose_rows"),
    "startingOffsets": (BATCH, "test_offsets_bound_a_range"),
    "endingOffsets": (BATCH, "test_offsets_bound_a_range"),
    "startingTimestamp": (BATCH, "test_a_time_bounds_a_range"),
    "endingTimestamp": (BATCH, "test_a_time_bounds_a_range"),
    "maxRowsPerTrigger": (STREAM, "test_limits_and_restart_from_a_checkpoint"),
    "maxBytesPerTrigger": (OWN, "test_a_micro_batch_may_be_bounded_in_bytes"),
    "minOffsetsPerTrigger": (OWN, "test_a_micro_batch_waits_for_offsets_or_time"),
    "maxTriggerDelay": (OWN, "test_a_micro_batch_waits_for_offsets_or_time"),
    "minPartitions": (OWN, "test_the_number_of_tasks_may_be_chosen"),
    "maxRecordsPerPartition": (OWN, "test_the_number_of_tasks_may_be_chosen"),
    "failOnDataLoss": (BATCH, "test_expired_offsets_are_an_error_or_skipped"),
    "group": (STREAM, "test_a_group_is_at_the_end_after_a_run"),
    "connectTimeout": (OWN, "test_a_node_that_says_nothing_costs_what_the_options_say"),
    "requestTimeout": (OWN, "test_a_node_that_says_nothing_costs_what_the_options_say"),
    "passwordFile": (OWN, "test_a_password_comes_from_a_file"),
    "tokenFile": ("test_https.py", "test_rows_go_out_and_come_back_over_https_with_a_token"),
    "caFile": ("test_https.py", "test_rows_go_out_and_come_back_over_https_with_a_token"),
    "pushFilters": (BATCH, "test_conditions_are_pushed_down_exactly"),
    "traceEndpoint": ("test_traces.py", "test_a_trace_reaches_from_the_publisher_to_spark"),
    "traceOneIn": ("test_traces.py", "test_a_trace_reaches_from_the_publisher_to_spark"),
}
KAFKA = (OWN, "test_a_query_for_kafka_runs_with_another_format_and_address")
REFUSED = (OWN, "test_what_has_no_meaning_here_is_an_error_that_says_so")
WRITTEN = (OWN, "test_a_write_for_kafka_needs_its_mode")
OF_KAFKA = {
    "kafka.bootstrap.servers": KAFKA,
    "subscribe": KAFKA,
    "subscribePattern": KAFKA,
    "assign": KAFKA,
    "startingOffsets": KAFKA,
    "endingOffsets": KAFKA,
    "startingTimestamp": KAFKA,
    "endingTimestamp": KAFKA,
    "startingOffsetsByTimestamp": KAFKA,
    "endingOffsetsByTimestamp": KAFKA,
    "startingOffsetsByTimestampStrategy": REFUSED,
    "maxOffsetsPerTrigger": KAFKA,
    "minOffsetsPerTrigger": KAFKA,
    "maxTriggerDelay": KAFKA,
    "minPartitions": KAFKA,
    "maxRecordsPerPartition": KAFKA,
    "failOnDataLoss": KAFKA,
    "kafka.group.id": KAFKA,
    "includeHeaders": REFUSED,
    "topic": WRITTEN,
    "key": REFUSED,
    "value": REFUSED,
    "partition": REFUSED,
    "headers": REFUSED,
}


def rows_of(title: str) -> list[str]:
    """What the first cells of the table below a title name."""
    table = PAGE.read_text().partition(f"{title}\n")[2].partition("\n|")[2].partition("\n\n")[0]
    cells = [line.split("|")[0 if line.startswith(" ") else 1] for line in table.split("\n")[2:]]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_no_row_is_without_a_test() -> None:
    """And each test has the word of its row."""
    assert set(rows_of("## Options")) == set(OPTIONS)
    assert set(rows_of("### Coming from Kafka")) == set(OF_KAFKA)
    for name, (file, test) in [*OPTIONS.items(), *OF_KAFKA.items()]:
        body = (HERE / file).read_text().partition(f"def {test}(")[2].partition("\ndef ")[0]
        assert name in body or name in ("stream", "url", "tokenFile", "caFile"), (name, file, test)


def started(spark: Any, node: BrokerProcess, checkpoint: Path, **options: str) -> Any:
    """A running query that looks for messages ten times a second and says so each time."""
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
    frame = spark.readStream.format("millrace").options(url=node.url, **options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="100 milliseconds").start()


def sizes(query: Any) -> list[int]:
    return [one["numInputRows"] for one in query.recentProgress if one["numInputRows"]]


def test_a_micro_batch_may_be_bounded_in_bytes(
    spark: Any, node: BrokerProcess, http: Http, make_stream: MakeStream, tmp_path: Path
) -> None:
    stream = make_stream()
    fill(node.port, [(f"{stream}/t", b"%0200d" % n) for n in range(100)])
    (row,) = http.get(f"/v1/streams/{stream}")["shard_list"]
    options = {"startingOffsets": "earliest", "maxBytesPerTrigger": str(row["bytes"] // 4)}
    frame = spark.readStream.format("millrace").options(url=node.url, stream=stream, **options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(_QUERY_S_MAX)
    assert sum(sizes(query)) == 100 and max(sizes(query)) <= 26 and len(sizes(query)) >= 4


def test_a_micro_batch_waits_for_offsets_or_time(
    spark: Any, node: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    """Ten messages are fewer than a batch is to have: they are seen and wait, until sixty more have come.
    With a short delay they do not wait for others."""
    stream = make_stream()

    def publish(count: int) -> None:
        fill(node.port, [(f"{stream}/t", b"x") for _ in range(count)])

    def is_seen(end: int) -> bool:
        """A look that found messages up to here made no batch of them."""
        looks = [one["sources"][0] for one in query.recentProgress if not one["numInputRows"]]
        ends = [one["latestOffset"] for one in looks if one["latestOffset"]]
        return any(list(json.loads(found).values()) == [end] for found in ends)

    options = {"stream": stream, "startingOffsets": "earliest"}
    publish(20)
    waiting = {**options, "minOffsetsPerTrigger": "50", "maxTriggerDelay": "1h"}
    query = started(spark, node, tmp_path / "long", **waiting)
    try:
        until(lambda: sizes(query) == [20], "the first batch", _QUERY_S_MAX)
        publish(10)
        until(lambda: is_seen(30), "a look at ten messages", _QUERY_S_MAX)
        assert sizes(query) == [20]
        publish(60)
        until(lambda: sum(sizes(query)) == 90, "the second batch", _QUERY_S_MAX)
        assert sizes(query) == [20, 70]
    finally:
        query.stop()
    short = {**options, "minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1s"}
    query = started(spark, node, tmp_path / "short", **short)
    try:
        until(lambda: sizes(query) == [90], "the first batch", _QUERY_S_MAX)
        publish(5)
        until(lambda: sizes(query) == [90, 5], "what did not wait for more", _QUERY_S_MAX)
    finally:
        query.stop()


def test_the_number_of_tasks_may_be_chosen(spark: Any, node: BrokerProcess, make_stream: MakeStream) -> None:
    stream = make_stream(shards=2)
    fill(node.port, [(f"{stream}/{n % 16}", b"x") for n in range(400)])

    def tasks(**options: str) -> int:
        frame = spark.read.format("millrace").options(url=node.url, stream=stream, **options).load()
        assert frame.count() == 400
        return int(frame.rdd.getNumPartitions())

    assert tasks() == 1
    assert tasks(minPartitions="5") >= 5
    assert tasks(maxRecordsPerPartition="50") >= 8


def test_a_node_that_says_nothing_costs_what_the_options_say(
    spark: Any, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """A listener that takes connections and never answers stands first. After the time of the options the
    other one is asked; where it stands alone, there is an error after that time."""
    stream = make_stream()
    fill(node.port, [(f"{stream}/t", b"x")])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        options = {"stream": stream, "connectTimeout": "200ms", "requestTimeout": "200ms"}
        both = spark.read.format("millrace").options(url=f"{address},{node.url}", **options).load()
        assert both.count() == 1
        with pytest.raises(Exception, match=r"did not answer|0\.2 s|timed out"):
            spark.read.format("millrace").options(url=address, **options).load().count()


def test_a_password_comes_from_a_file(spark: Any, tmp_path: Path) -> None:
    users = str(tmp_path / "users.toml")
    for words, said in (
        (("user", "add", "ann", "--password-stdin"), "wonder\n"),
        (("acl", "add", "ann", "allow", "all", "#"), ""),
    ):
        done = millrace(*words, "--users", users, stdin=said)
        assert done.returncode == 0, done.stderr
    settings = (f"access.users_file={users}", "access.anonymous=never")
    node = BrokerProcess(tmp_path / "node", *(word for one in settings for word in ("--set", one)))
    try:
        url = node.wait_ready().url.replace("http://", "http://ann@")
        Http(url, password="wonder").call("POST", "/v1/streams", {"name": "s", "filters": ["s/#"]})
        good, bad = tmp_path / "good", tmp_path / "bad"
        good.write_text("wonder\n")
        bad.write_text("other\n")
        rows = spark.range(10).selectExpr("'s/t' AS topic", "cast(id AS string) AS payload")
        rows.write.format("millrace").mode("append").options(url=url, passwordFile=str(good)).save()
        read = spark.read.format("millrace").options(url=url, stream="s")
        assert read.option("passwordFile", str(good)).load().count() == 10
        with pytest.raises(Exception, match=r"user|password|401"):
            read.option("passwordFile", str(bad)).load().count()
    finally:
        node.stop()


def test_a_query_for_kafka_runs_with_another_format_and_address(
    spark: Any, http: Http, node: BrokerProcess, make_stream: MakeStream, tmp_path: Path
) -> None:
    """All names of Kafka's connector, in batch and in a streaming query."""
    stream = make_stream()
    fill(node.port, [(f"{stream}/t", b"%d" % n) for n in range(60)])
    (row,) = http.get(f"/v1/streams/{stream}")["shard_list"]
    shard = row["shard"]
    server = {"kafka.bootstrap.servers": node.url.removeprefix("http://")}

    def places(where: int) -> str:
        return json.dumps({stream: {shard: where}})

    def read(**options: str) -> int:
        return int(spark.read.format("millrace").options(**server, **options).load().count())

    assert (
        read(subscribe=stream, minPartitions="2", maxRecordsPerPartition="10", failOnDataLoss="false") == 60
    )
    assert read(subscribePattern=f"{stream}$", startingOffsets="earliest", endingOffsets="latest") == 60
    assert read(assign=json.dumps({stream: [shard]}), startingOffsets=places(50)) == 10
    assert read(subscribe=stream, startingOffsets=places(-2), endingOffsets=places(-1)) == 60
    assert read(subscribe=stream, startingTimestamp="0", endingTimestamp="1000") == 0
    times = {"startingOffsetsByTimestamp": places(0), "endingOffsetsByTimestamp": places(2**42)}
    assert read(subscribe=stream, **times) == 60
    options = {
        **server,
        "kafka.group.id": f"k-{stream}",
        "subscribe": stream,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "25",
        "minOffsetsPerTrigger": "5",
        "maxTriggerDelay": "1m",
    }
    frame = spark.readStream.format("millrace").options(**options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(_QUERY_S_MAX)
    assert sizes(query) == [25, 25, 10]
    held = http.get(f"/v1/groups/k-{stream}")["shards"]
    assert [one["position"] for one in held if one["stream"] == stream] == [60]


def test_what_has_no_meaning_here_is_an_error_that_says_so(
    spark: Any, node: BrokerProcess, make_stream: MakeStream
) -> None:
    stream = make_stream()
    read = spark.read.format("millrace").options(url=node.url, stream=stream)
    for name, said in (
        ("startingOffsetsByTimestampStrategy", "means the end of the shard"),
        ("includeHeaders", "are always there"),
    ):
        with pytest.raises(Exception, match=said):
            read.options(**{name: "true"}).load().count()
        read = spark.read.format("millrace").options(url=node.url, stream=stream)
    for column in ("key", "value", "partition", "headers"):
        with pytest.raises(Exception, match=column):
            read.load().select(column)


def test_a_write_for_kafka_needs_its_mode(
    spark: Any, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """The option topic gives the topic of all rows. Without mode("append") Spark itself refuses."""
    stream = make_stream()
    rows = spark.range(5).selectExpr("cast(id AS string) AS payload")
    writer = rows.write.format("millrace").options(
        **{"kafka.bootstrap.servers": node.url.removeprefix("http://"), "topic": f"{stream}/t"}
    )
    with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE|[Ss]ave ?[Mm]ode|append"):
        writer.save()
    writer.mode("append").save()
    assert payloads(http, stream).total() == 5
