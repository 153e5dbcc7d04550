"""Definitions of durable groups in the meta state: what is refused, and what a snapshot keeps."""

import pytest

from millrace.broker.entries.meta import DeleteGroup, PutGroup, PutStream
from millrace.broker.groups.definitions import (
    DurableGroupSpec,
)
from millrace.broker.meta.state import MetaState
from millrace.broker.streams.stream import StreamSpec
from millrace.errors import LocalError


def spec(name: str = "g", *filters: str, **settings: object) -> DurableGroupSpec:
    return DurableGroupSpec.read({"name": name, "filters": list(filters or ("a/#",)), **settings})


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "", "filters": ["a"]},
        {"name": "a/b", "filters": ["a"]},
        {"name": "g", "filters": []},
        {"name": "g", "filters": ["a", "a"]},
        {"name": "g", "filters": ["a/#/b"]},
        {"name": "g", "filters": ["$SYS/#"]},
        {"name": "g", "filters": "a"},
        {"name": "g", "filters": ["a"], "deliveries_max": 2},
        {"name": "g", "filters": ["a"], "dead_letter": "b"},
        {"name": "g", "filters": ["a/#"], "deliveries_max": 2, "dead_letter": "a/dead"},
        {"name": "g", "filters": ["a"], "deliveries_max": 2, "dead_letter": "b/+"},
        {"name": "g", "filters": ["a"], "deliveries_max": True},
        {"name": "g", "filters": ["a"], "in_flight_max": 0},
        {"name": "g", "filters": ["a"], "color": "red"},
        {"name": "queue:a", "filters": ["b"]},
        {"name": "queue:a/+", "filters": ["a/+"]},
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(LocalError):
        DurableGroupSpec.read(fields)


def test_a_queue_is_the_group_of_its_topic_and_no_other() -> None:
    assert spec("queue:a/b", "a/b").is_queue
    assert not spec("queue", "a/b").is_queue


def test_a_spec_survives_json_and_a_change_keeps_the_rest() -> None:
    full = spec("g", "a/#", "b", deliveries_max=3, dead_letter="dead", in_flight_max=7)
    assert DurableGroupSpec.read(full.plain()) == full
    changed = DurableGroupSpec.read({"in_flight_max": 9}, full)
    assert (changed.in_flight_max, changed.deliveries_max, changed.filters) == (9, 3, ("a/#", "b"))


def test_groups_are_made_changed_and_deleted_by_entries_of_the_log() -> None:
    meta = MetaState()
    assert meta.apply(PutGroup(spec(), create_only=True, starts={16: 5})).error is None
    group = meta.groups.by_name["g"]
    assert (group.start(16), group.start(17)) == (5, 0)
    assert meta.apply(PutGroup(spec(), create_only=True, starts={})).error == "group 'g' exists"
    meta.apply(PutGroup(spec("g", "b/#"), create_only=False, starts={16: 99, 18: 3}))
    changed = meta.groups.by_name["g"]
    assert changed.number == group.number
    assert (changed.spec.filters, changed.starts) == (("b/#",), {16: 5, 18: 3})
    assert meta.apply(DeleteGroup("g")).error is None
    assert meta.apply(DeleteGroup("g")).error == "there is no group 'g'"


def test_a_number_is_never_used_again_not_even_after_a_restart() -> None:
    """A cursor left over from a deleted group must not become another group's."""
    meta = MetaState()
    meta.apply(PutGroup(spec(), create_only=True, starts={}))
    first = meta.groups.by_name["g"].number
    meta.apply(DeleteGroup("g"))
    meta = MetaState.from_bytes(meta.to_bytes())
    meta.apply(PutGroup(spec(), create_only=True, starts={}))
    assert meta.groups.by_name["g"].number > first
    again = MetaState.from_bytes(meta.to_bytes())
    assert again.groups.by_name == meta.groups.by_name


def _put_stream(meta: MetaState, name: str, *filters: str, shards: int = 1) -> None:
    result = meta.apply(PutStream(StreamSpec(name=name, filters=filters, shards=shards), create_only=False))
    assert result.error is None


def test_a_group_keeps_the_shards_that_its_topics_left() -> None:
    """Whatever was stored there before anybody asked the group is in no other place that it is led to."""
    meta = MetaState()
    meta.apply(PutGroup(spec("jobs", "g/#"), create_only=True, starts={16: 4}))
    meta.apply(PutGroup(spec("queue:g/1", "g/1"), create_only=True, starts={16: 4}))
    meta.apply(PutGroup(spec("other", "h/#"), create_only=True, starts={16: 4}))
    groups = meta.groups.by_name
    _put_stream(meta, "s", "g/#")
    _put_stream(meta, "t", "g/1")
    # The topic leaves an open shard; the wildcard is still led there by the stream itself.
    assert dict(groups["queue:g/1"].starts) == {16: 4, 17: 0}
    assert dict(groups["jobs"].starts) == {16: 4}
    _put_stream(meta, "s", "elsewhere/#")
    assert dict(groups["jobs"].starts) == {16: 4, 17: 0}
    _put_stream(meta, "t", "g/2")
    assert dict(groups["queue:g/1"].starts) == {16: 4, 17: 0, 18: 0}
    assert dict(groups["other"].starts) == {16: 4}
    assert MetaState.from_bytes(meta.to_bytes()).groups.by_name == groups


def test_a_group_keeps_shards_of_default_that_its_topic_left() -> None:
    meta = MetaState()
    meta.apply(PutGroup(spec("queue:g/1", "g/1"), create_only=True, starts={16: 4}))
    _put_stream(meta, "default", shards=2)
    own = meta.table.shard(meta.table.default, b"g/1")
    _put_stream(meta, "s", "g/#")
    assert dict(meta.groups.by_name["queue:g/1"].starts) == {16: 4, own: 0}
