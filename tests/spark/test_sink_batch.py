"""`df.write.format("millrace")` against a real node: all rows once and at once, or none."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeStream = Callable[..., str]
Source = Callable[..., Any]


def write(frame: Any, node: BrokerProcess, **options: str) -> None:
    frame.write.format("millrace").mode("append").options(url=node.url, **options).save()


def rows_of(source: Source, stream: str) -> Counter[tuple[str, bytes]]:
    """What is in the log, as a multiset."""
    found = source(stream).load().select("topic", "payload").collect()
    return Counter((row.topic, bytes(row.payload)) for row in found)


def staged(http: Http, stream: str) -> int:
    return sum(int(row["staged_bytes"]) for row in http.get(f"/v1/streams/{stream}")["shard_list"])


def test_rows_become_messages(
    spark: Any, source: Source, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """Every row once, at the shard of its topic, in order per topic; nothing stays staged."""
    stream = make_stream(shards=3)
    frame = spark.range(0, 20_000, numPartitions=4).selectExpr(
        f"concat('{stream}/', id % 17) as topic", "cast(cast(id as string) as binary) as payload"
    )
    write(frame, node, stream=stream)
    wanted = Counter((f"{stream}/{n % 17}", b"%d" % n) for n in range(20_000))
    assert rows_of(source, stream) == wanted
    assert staged(http, stream) == 0
    found = source(stream).load().where(f"topic = '{stream}/3'").orderBy("offset").collect()
    numbers = [int(bytes(row.payload)) for row in found]
    by_task = [[n for n in numbers if n // 5_000 == task] for task in range(4)]
    assert all(rows == sorted(rows) for rows in by_task)


def test_a_failed_job_leaves_nothing(
    spark: Any, source: Source, http: Http, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """One of four tasks fails after the others staged: no row is visible, and what was staged is given up."""
    stream = make_stream(shards=2)
    payload = "if(id = 19999, raise_error('no such row'), cast(id as string))"
    frame = spark.range(0, 20_000, numPartitions=4).selectExpr(
        f"concat('{stream}/', id % 5) as topic", f"{payload} as payload"
    )
    with pytest.raises(Exception, match="no such row"):
        write(frame, node)
    assert rows_of(source, stream) == Counter()
    until(lambda: staged(http, stream) == 0, "what was staged to be given up", 60)
    write(frame.where("id < 19999"), node)
    assert rows_of(source, stream).total() == 19_999


def test_every_column_arrives(
    spark: Any, source: Source, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """QoS, retain, content type and properties come back as they were written; a dead node is passed over."""
    stream = make_stream()
    given = source(stream).load().select("payload", "topic", "qos", "retain", "content_type", "properties")
    user = [{"name": "k", "value": "1"}, {"name": "k", "value": "2"}]
    properties = (1, 60, "answers", b"\0\1", user)
    rows = [
        (b"\xff\0", f"{stream}/full", 2, True, "image/png", properties),
        (b"", f"{stream}/bare", 0, False, None, None),
        (b"x", f"{stream}/null", None, None, None, None),
    ]
    frame = spark.createDataFrame(rows, given.schema).coalesce(1)
    frame.write.format("millrace").mode("append").option("url", f"http://127.0.0.1:1,{node.url}").save()
    full, bare, null = source(stream).load().orderBy("offset").collect()
    assert (bytes(full.payload), full.qos, full.retain, full.content_type) == (
        b"\xff\0",
        2,
        True,
        "image/png",
    )
    assert (full.properties.payload_format, full.properties.message_expiry_s) == (1, 60)
    assert (full.properties.response_topic, bytes(full.properties.correlation_data)) == ("answers", b"\0\1")
    assert [(one.name, one.value) for one in full.properties.user] == [("k", "1"), ("k", "2")]
    assert (bytes(bare.payload), bare.qos, bare.retain, bare.properties) == (b"", 0, False, None)
    assert (null.qos, null.retain) == (1, False)


def test_rows_go_to_the_streams_of_their_topics(
    spark: Any, source: Source, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """Without the option each topic finds its stream; with it a topic of another stream is an error."""
    one, two = make_stream(), make_stream(shards=2)
    frame = spark.createDataFrame([(f"{one}/a", "1"), (f"{two}/a", "2")], "topic string, payload string")
    write(frame, node)
    assert rows_of(source, one) == Counter([(f"{one}/a", b"1")])
    assert rows_of(source, two) == Counter([(f"{two}/a", b"2")])
    with pytest.raises(Exception, match=f"topic '{two}/a' belongs to stream '{two}', not to '{one}'"):
        write(frame, node, stream=one)
    write(frame.select("payload"), node, topic=f"{one}/b", qos="0")
    assert rows_of(source, one).total() == 3


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        ("'a' as topic", {}, "there is no column 'payload'"),
        ("'1' as payload", {}, "there is no column 'topic', and no option topic"),
        ("'1' as payload, 'a' as topic", {"topic": "b"}, "the column 'topic' or the option topic, not both"),
        ("'1' as payload, 'a' as topic, 3 as price", {}, "no column 'price' to write"),
        ("3 as payload, 'a' as topic", {}, "column 'payload' is int, not binary or string"),
        ("'1' as payload, 'a' as topic, '1' as qos", {}, "column 'qos' is string"),
        ("'1' as payload, 'a' as topic, struct(1 as x) as properties", {}, "has a field 'x'"),
        ("'1' as payload", {"topic": "a/#"}, "topic = 'a/#' is not a topic"),
        ("'1' as payload", {"topic": "a", "qos": "3"}, "qos = '3' is not 0, 1 or 2"),
        ("'1' as payload", {"topic": "a", "retian": "true"}, "did you mean 'retain'"),
        ("'1' as payload", {"topic": "a", "token": "x"}, "a secret in an option is written into the plan"),
        ("'1' as payload", {"topic": "a", "stream": "nowhere"}, "there is no stream 'nowhere'"),
        ("'1' as payload, '$SYS/x' as topic", {}, "begins with \\$"),
        ("'1' as payload, 'a/+' as topic", {}, "'a/\\+' is not a topic to publish to"),
        ("cast(null as string) as payload, 'a' as topic", {}, "1 rows have no payload"),
    ],
)
def test_what_cannot_be_written_is_named(
    spark: Any, node: BrokerProcess, columns: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception, match=sentence):
        write(spark.sql(f"select {columns}"), node, **options)


def test_a_log_is_not_overwritten(spark: Any, node: BrokerProcess) -> None:
    frame = spark.sql("select '1' as payload, 'a' as topic")
    with pytest.raises(Exception, match="a log is only ever appended to"):
        frame.write.format("millrace").mode("overwrite").option("url", node.url).save()
