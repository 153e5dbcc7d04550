"""The options of source and sink: what they mean, their names in Kafka's connector, and what is refused."""

from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.spark import options
from millrace.spark.offsets import At, ByShard

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference" / "spark.md"
URL = "http://127.0.0.1:18831"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(options.URL_VARIABLE, raising=False)


def read(**given: str) -> options.Options:
    return options.parse(given)


def test_what_is_read_is_named_in_one_of_four_ways() -> None:
    assert read(url=URL).streams == ("default",)
    assert read(stream="a").streams == ("a",)
    assert read(subscribe="a, b,a").streams == ("a", "b")
    pattern = read(subscribePattern="plant-.*")
    assert (pattern.streams, pattern.pattern) == ((), "plant-.*")
    assigned = read(assign='{"a": [17, 18], "b": [20]}')
    assert (assigned.streams, assigned.shards) == (("a", "b"), {17, 18, 20})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"stream": "a", "subscribe": "b"}, "stream and subscribe say the same thing"),
        ({"subscribe": " , "}, "subscribe names no stream"),
        ({"subscribePattern": "("}, "no regular expression"),
        ({"assign": '["a"]'}, "does not map streams to shards"),
        ({"assign": '{"a": ["x"]}'}, "does not map streams to shards"),
        ({"stream": "a", "maxTriggerDelay": "15"}, "maxTriggerDelay = '15' is not a time such as"),
        ({"stream": "a", "connectTimeout": "0s"}, "connectTimeout = '0s' is not a time"),
        ({"stream": "a", "maxRecordsPerPartition": "0"}, "is not a number above 0"),
        ({"stream": "a", "includeHeaders": "true"}, "content_type and properties are always there"),
        ({"stream": "a", "maxOffsetsPerTrigger": "1", "maxRowsPerTrigger": "2"}, "is given twice"),
        ({}, "name what to read"),
        ({"provider": "millrace", "owner": "me", "option.stream": "a", "stream": "a"}, "TEMPORARY VIEW"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        options.parse(given)


def test_names_of_kafkas_connector_are_taken() -> None:
    """A query moves by changing the format and the address."""
    given = options.parse(
        {
            "kafka.bootstrap.servers": "one:18831,two:18831",
            "kafka.group.id": "g",
            "subscribe": "s",
            "startingOffsets": '{"s": {"17": -1, "18": -2, "19": 5}}',
            "maxOffsetsPerTrigger": "7",
            "minOffsetsPerTrigger": "3",
            "maxTriggerDelay": "2m",
            "minPartitions": "4",
            "maxRecordsPerPartition": "9",
            "failOnDataLoss": "false",
        }
    )
    assert given.urls == ("http://one:18831", "http://two:18831")
    assert (given.group, given.rows_max, given.rows_min, given.delay_s_max) == ("g", 7, 3, 120.0)
    assert (given.partitions_min, given.partition_rows_max, given.is_loss_fatal) == (4, 9, False)
    assert isinstance(given.start, ByShard)
    assert given.start.values == {17: "latest", 18: "earliest", 19: 5}


def test_a_time_goes_before_offsets() -> None:
    given = read(stream="s", startingTimestamp="1000", startingOffsets="earliest", endingTimestamp="2000")
    assert (given.start, given.end) == (At(1_000_000), At(2_000_000))
    by_shard = read(subscribe="s", startingOffsetsByTimestamp='{"s": {"17": 5}}').start
    assert by_shard == ByShard(values={17: At(5_000)}, streams={17: "s"})
    assert read(subscribe="s", endingOffsetsByTimestamp='{"s": {"17": 5}}').end == by_shard


def test_time_outs_are_options_of_both_sides() -> None:
    for given in (
        read(stream="s", connectTimeout="500ms", requestTimeout="2s"),
        options.parse_sink({"url": URL, "connectTimeout": "500ms", "requestTimeout": "2s"}),
    ):
        assert (given.connect_s, given.request_s) == (0.5, 2.0)


def test_nothing_is_written_to_a_node_that_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By option or by the environment; reading has a default."""
    with pytest.raises(ConfigError, match="name the nodes to write to"):
        options.parse_sink({"topic": "a"})
    assert options.parse_sink({"url": URL}).urls == (URL,)
    monkeypatch.setenv(options.URL_VARIABLE, "http://other:1")
    assert options.parse_sink({}).urls == ("http://other:1",)
    assert read(stream="s").urls == ("http://other:1",)
    assert read(stream="s", url=URL).urls == (URL,)


def test_what_spark_adds_by_itself_is_ignored() -> None:
    given = {"provider": "millrace", "owner": "me", "location": "file:/x", "option.serialization.format": "1"}
    assert options.parse(given).streams == ("default",)
    assert options.parse({"spark.x": "1", "__y": "2", "stream": "s"}).streams == ("s",)


def test_a_batch_write_has_a_name_or_none() -> None:
    named = options.parse_sink({"url": URL, "writer": "job-1", "batch": "7"})
    assert (named.writer, named.batch) == ("job-1", 7)
    delta = options.parse_sink({"url": URL, "txnAppId": "job-1", "txnVersion": "7"})
    assert delta == named
    for wrong in (
        {"writer": "a"},
        {"batch": "1"},
        {"writer": "a b", "batch": "1"},
        {"writer": "a", "batch": "-1"},
    ):
        with pytest.raises(ConfigError, match=r"writer|batch"):
            options.parse_sink({"url": URL, **wrong})


def test_the_options_of_a_view_serve_reading_and_writing() -> None:
    given = {"url": URL, "stream": "s", "topics": "s/#", "startingOffsets": "earliest"}
    assert options.parse(given).topics == ("s/#",)
    assert options.parse_sink(given, is_view=True).stream == "s"
    with pytest.raises(ConfigError, match="there is no option 'topics'"):
        options.parse_sink(given)


def test_the_page_says_what_the_errors_say() -> None:
    page = " ".join(DOCS.read_text().split())
    assert options.UPDATE_MODE in page
    for name in (*options._KNOWN, *options.ALIASES, *options.SINK_ALIASES, "writer", "batch"):
        assert f"`{name}`" in page, name
