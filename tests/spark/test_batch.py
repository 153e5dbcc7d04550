"""`spark.read.format("millrace")` against a real node."""

import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.filling import fill

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeStream = Callable[..., str]
ShardOf = Callable[[str], int]
Source = Callable[..., Any]


def payloads(frame: Any) -> list[bytes]:
    return [
        bytes(row.payload)
        for row in frame.select("payload", "shard", "offset").orderBy("shard", "offset").collect()
    ]


def test_columns_hold_what_was_published(
    source: Source, http: Http, node: BrokerProcess, make_stream: MakeStream, shard_of: ShardOf
) -> None:
    """Every column of a message with everything, of one with nothing, and of one by MQTT 3.1.1."""
    stream = make_stream()
    raw = bytes(range(256))
    http.publish(
        f"{stream}/full",
        raw,
        qos=2,
        retain=True,
        content_type="image/png",
        response_topic="answers",
        expiry_s=3_600,
        user_properties=[["k", "1"], ["k", "2"]],
    )
    http.publish(f"{stream}/bare", b"")
    fill(node.port, [(f"{stream}/ünï", b"old")], client_id="sensor-7")
    places = [
        http.messages(stream, shard_of(stream), offset)["messages"][0]["time_us"] for offset in range(3)
    ]
    full, bare, old = source(stream).load().orderBy("offset").collect()
    assert (full.topic, bytes(full.payload), full.qos, full.retain) == (f"{stream}/full", raw, 2, True)
    assert full.content_type == "image/png"
    assert full.properties.response_topic == "answers"
    assert full.properties.message_expiry_s == 3_600
    assert [(one.name, one.value) for one in full.properties.user] == [("k", "1"), ("k", "2")]
    assert (full.shard, full.offset, bare.offset, old.offset) == (shard_of(stream), 0, 1, 2)
    assert (bytes(bare.payload), bare.content_type, bare.properties, bare.retain) == (b"", None, None, False)
    assert (old.topic, bytes(old.payload), old.qos) == (f"{stream}/ünï", b"old", 1)
    assert (old.publisher, old.properties) == ("sensor-7", None)
    found = [row.timestamp.replace(tzinfo=datetime.UTC) for row in (full, bare, old)]
    assert all(isinstance(moment, datetime.datetime) for moment in found)
    stamps = source(stream).load().orderBy("offset").selectExpr("unix_micros(timestamp) as us").collect()
    assert [row.us for row in stamps] == places


def test_an_empty_stream_has_no_rows(source: Source, make_stream: MakeStream) -> None:
    assert source(make_stream()).load().count() == 0


def test_topic_filters_choose_rows(source: Source, node: BrokerProcess, make_stream: MakeStream) -> None:
    """Exact names, one level and all levels; several filters take what any of them takes."""
    stream = make_stream(shards=2)
    names = ["a/temp", "b/temp", "b/door", "b", "a/temp/deep"]
    fill(node.port, [(f"{stream}/{name}", name.encode()) for name in names])

    def found(*filters: str) -> set[str]:
        topics = ",".join(f"{stream}/{one}" for one in filters)
        return {text.decode() for text in payloads(source(stream, topics=topics).load())}

    assert found("a/temp") == {"a/temp"}
    assert found("+/temp") == {"a/temp", "b/temp"}
    assert found("b/#") == {"b/temp", "b/door", "b"}
    assert found("+/door", "b") == {"b/door", "b"}
    assert found("nothing") == set()


def test_offsets_bound_a_range(
    source: Source, node: BrokerProcess, make_stream: MakeStream, shard_of: ShardOf
) -> None:
    """The first and the last block reach over the range; the rows do not."""
    stream = make_stream()
    fill(node.port, [(f"{stream}/t", b"%d" % n) for n in range(50)])
    shard = shard_of(stream)
    frame = source(
        stream, startingOffsets=json.dumps({shard: 7}), endingOffsets=json.dumps({shard: 20})
    ).load()
    assert payloads(frame) == [b"%d" % n for n in range(7, 20)]
    with pytest.raises(Exception, match=r"offset 51 of shard .* is not there yet; the next is 50"):
        source(stream, startingOffsets=json.dumps({shard: 51})).load().count()
    with pytest.raises(Exception, match=f"names shard 999999; the stream has {shard}"):
        source(stream, startingOffsets='{"999999": 0}').load().count()


def test_a_time_bounds_a_range(
    source: Source, http: Http, make_stream: MakeStream, shard_of: ShardOf
) -> None:
    stream = make_stream()
    for number in range(9):
        http.publish(f"{stream}/t", b"%d" % number)
    page = http.messages(stream, shard_of(stream), 0)["messages"]
    moments = [
        datetime.datetime.fromtimestamp(row["time_us"] // 1_000_000, datetime.UTC).replace(
            microsecond=row["time_us"] % 1_000_000
        )
        for row in page
    ]
    assert len(set(moments)) == 9
    frame = source(
        stream, startingOffsets=moments[4].isoformat(), endingOffsets=moments[7].isoformat()
    ).load()
    assert payloads(frame) == [b"4", b"5", b"6"]
    by_shard = json.dumps({stream: {shard_of(stream): moments[2].isoformat()}})
    frame = source(stream, startingTimestamp=by_shard, endingTimestamp=moments[3].isoformat()).load()
    assert payloads(frame) == [b"2"]
    ends = json.dumps({stream: {shard_of(stream): -1}})
    frame = source(stream, startingOffsets=ends.replace("-1", "-2"), endingOffsets=ends).load()
    assert len(payloads(frame)) == 9


def test_expired_offsets_are_an_error_or_skipped(
    source: Source, http: Http, node: BrokerProcess, make_stream: MakeStream, shard_of: ShardOf
) -> None:
    """The error names stream, shard, asked and earliest; without it the query gets what is left."""
    stream = make_stream()
    fill(node.port, [(f"{stream}/t", b"%d" % n) for n in range(10)])
    shard = shard_of(stream)
    http.call("POST", f"/v1/streams/{stream}/purge", {"before": 6})
    asked = json.dumps({shard: 2})
    sentence = f"stream '{stream}', shard {shard}: offset 2 was asked for, but the earliest .* is 6"
    with pytest.raises(Exception, match=sentence):
        source(stream, startingOffsets=asked).load().count()
    left = source(stream, startingOffsets=asked, failOnDataLoss="false").load()
    assert payloads(left) == [b"6", b"7", b"8", b"9"]
    assert payloads(source(stream).load()) == [b"6", b"7", b"8", b"9"]


def test_a_hundred_thousand_rows_past_a_dead_node(
    source: Source, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """All rows once, over several tasks, with an address first where nobody answers."""
    stream = make_stream(shards=2)
    rows = 100_000
    fill(node.port, ((f"{stream}/{n % 40}", b"%0100d" % n) for n in range(rows)))
    frame = source(stream, url=f"http://127.0.0.1:1,{node.url}", minPartitions="4").load()
    assert frame.rdd.getNumPartitions() >= 4
    total = frame.selectExpr(
        "count(*) as rows",
        "count(distinct shard, offset) as places",
        "count(distinct payload) as payloads",
        "sum(cast(cast(payload as string) as bigint)) as total",
        "count(distinct topic) as topics",
    ).collect()[0]
    assert total.asDict() == {
        "rows": rows,
        "places": rows,
        "payloads": rows,
        "total": rows * (rows - 1) // 2,
        "topics": 40,
    }


def test_large_payloads_in_compressed_blocks(source: Source, http: Http, make_stream: MakeStream) -> None:
    stream = make_stream(compression="zlib")
    large = bytes(range(256)) * 4_096
    sent = [large, b"small", large[::-1]]
    for payload in sent:
        http.publish(f"{stream}/t", payload)
    assert payloads(source(stream).load()) == sent


def test_conditions_are_pushed_down_exactly(
    source: Source, spark: Any, node: BrokerProcess, make_stream: MakeStream
) -> None:
    """With and without push-down a condition means the same, and Spark leaves it to the source."""
    stream = make_stream()
    fill(node.port, [(f"{stream}/{n % 5}", b"%d" % n) for n in range(200)])
    middle = source(stream).load().where("offset = 100").collect()[0].timestamp
    conditions = [
        f"topic = '{stream}/3'",
        f"topic in ('{stream}/1', '{stream}/2') and offset >= 50",
        f"topic like '{stream}/4%' and offset < 77",
        "offset > 20 and offset <= 30",
        f"timestamp <= timestamp '{middle}'",
        f"timestamp > timestamp '{middle}' and qos = 1",
    ]
    plain = [payloads(source(stream).load().where(one)) for one in conditions]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushing = [source(stream, pushFilters="true").load().where(one) for one in conditions]
        assert [payloads(frame) for frame in pushing] == plain
        plan = pushing[0]._jdf.queryExecution().executedPlan().toString()
        assert "Filter (" not in plan, plan
        left = pushing[5]._jdf.queryExecution().executedPlan().toString()
        assert "Filter (" in left and "timestamp" not in left.split("Filter (")[1].split("\n")[0], left
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert all(plain[position] for position in range(5))


def test_a_schema_chooses_columns(source: Source, http: Http, make_stream: MakeStream) -> None:
    stream = make_stream()
    http.publish(f"{stream}/t", b"x")
    (row,) = source(stream).schema("payload binary, offset bigint").load().collect()
    assert row.asDict() == {"payload": bytearray(b"x"), "offset": 0}
    with pytest.raises(Exception, match="column 'payload' is binary, not string"):
        source(stream).schema("payload string").load().count()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'"),
        ({"topics": "a/#/b"}, "'a/#/b' is not a topic filter"),
        ({"token": "secret"}, "a secret in an option is written into the plan"),
        ({"stream": "nowhere"}, "there is no stream 'nowhere'"),
    ],
)
def test_a_wrong_option_is_named(source: Source, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(Exception, match=sentence):
        source(**{"stream": "default", **options}).load().count()
