"""Which logs the messages of a filter may go to: never one too few."""

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.streams.stream import DEFAULT_SPEC, Capture, Replication, Stream, StreamSpec, StreamTable
from millrace.broker.topics.filters import matches

LEVELS = ("a", "b", "c")
TOPICS = ["/".join(levels) for count in (1, 2, 3) for levels in product(LEVELS, repeat=count)]
FILTERS = [
    *("/".join(levels) for count in (1, 2, 3) for levels in product(("a", "b", "+"), repeat=count)),
    *("/".join((*levels, "#")) for count in (0, 1, 2) for levels in product(("a", "b", "+"), repeat=count)),
]


def table(filters: list[str], shards: int = 1) -> StreamTable:
    streams = {"default": Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,))}
    for at, filter in enumerate(filters):
        spec = StreamSpec(name=f"s{at}", filters=(filter,), shards=shards)
        numbers = tuple(range(100 * (at + 1), 100 * (at + 1) + shards))
        streams[spec.name] = Stream(spec=spec, generation=1, shards=numbers)
    return StreamTable(streams)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(FILTERS), max_size=4, unique=True), st.sampled_from(FILTERS), st.integers(1, 3)
)
def test_every_message_of_a_filter_goes_to_one_of_its_logs(
    filters: list[str], filter: str, shards: int
) -> None:
    streams = table(filters, shards)
    numbers = streams.open_shards_for(filter)
    for topic in TOPICS:
        stream = streams.find(topic)
        assert stream is not None
        if matches(filter, topic):
            assert streams.shard(stream, topic.encode()) in numbers, (topic, numbers)


def test_a_stream_that_takes_all_of_a_filter_leaves_nothing_to_less_specific_ones() -> None:
    streams = table(["a/#", "+/b", "a/b/c"])
    assert streams.open_shards_for("a/#") == {100, 300}
    assert streams.open_shards_for("a/b") == {100}
    assert streams.open_shards_for("+/b") == {100, 200}
    assert streams.open_shards_for("#") == {16, 100, 200, 300}
    assert streams.open_shards_for("$SYS/#") == set()


def test_a_stream_without_logs_has_none_for_anybody() -> None:
    routed = StreamSpec(name="r", filters=("r/#",), replication=Replication.ROUTED)
    live = StreamSpec(name="l", filters=("l/#",), capture=Capture.NONE)
    default = Stream(spec=DEFAULT_SPEC, generation=1, shards=(16,))
    streams = StreamTable(
        {
            "default": default,
            "r": Stream(spec=routed, generation=1, shards=()),
            "l": Stream(spec=live, generation=1, shards=(17,)),
        }
    )
    for filter in ("r/#", "r/1", "l/#", "l/1"):
        assert streams.open_shards_for(filter) == set()
