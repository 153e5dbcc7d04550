"""The record of who is primary and who is backup: of two decisions from one state, one is void."""

import pytest

from millrace.broker.entries.meta import DeleteStream, InitCluster, PutMember, PutStream, ReportPair
from millrace.broker.meta.members import Member
from millrace.broker.meta.pairs import Pair, Pairs
from millrace.broker.meta.state import MetaState
from millrace.broker.streams.stream import StreamSpec
from millrace.errors import LocalError


def wanted(epoch: int, primary: str, backup: str, *, is_in_sync: bool) -> Pair:
    return Pair(version=0, epoch=epoch, primary=primary, backup=backup, is_in_sync=is_in_sync)


def pairs() -> Pairs:
    made = Pairs()
    made.found(16, ("a", "b"))
    made.report(16, 1, wanted(1, "a", "b", is_in_sync=True), is_seized=False)
    return made


def test_out_of_sync_and_takeover_cannot_both_happen() -> None:
    first = pairs()
    first.report(16, 2, wanted(1, "a", "b", is_in_sync=False), is_seized=False)
    with pytest.raises(LocalError, match="changed meanwhile"):
        first.report(16, 2, wanted(2, "b", "a", is_in_sync=False), is_seized=False)
    second = pairs()
    second.report(16, 2, wanted(2, "b", "a", is_in_sync=False), is_seized=False)
    with pytest.raises(LocalError, match="changed meanwhile"):
        second.report(16, 2, wanted(1, "a", "b", is_in_sync=False), is_seized=False)


def test_a_backup_that_is_out_of_sync_never_takes_over() -> None:
    made = pairs()
    made.report(16, 2, wanted(1, "a", "b", is_in_sync=False), is_seized=False)
    with pytest.raises(LocalError, match="out of sync"):
        made.report(16, 3, wanted(2, "b", "a", is_in_sync=False), is_seized=False)


def test_after_a_takeover_the_old_primary_is_out_of_sync_whatever_was_asked() -> None:
    made = pairs()
    made.report(16, 2, wanted(2, "b", "a", is_in_sync=True), is_seized=False)
    assert made.by_shard[16] == Pair(version=3, epoch=2, primary="b", backup="a", is_in_sync=False)


def test_a_record_that_was_seized_lets_nobody_take_over_but_by_seizing_it() -> None:
    made = pairs()
    made.report(16, 2, wanted(1, "a", "b", is_in_sync=True), is_seized=True)
    with pytest.raises(LocalError, match="cannot take over"):
        made.report(16, 3, wanted(2, "b", "a", is_in_sync=False), is_seized=False)
    made.report(16, 3, wanted(1, "a", "b", is_in_sync=True), is_seized=False)
    made.report(16, 4, wanted(2, "b", "a", is_in_sync=False), is_seized=False)
    assert (made.by_shard[16].primary, made.by_shard[16].is_seized) == ("b", False)


def test_strangers_and_lower_epochs_are_refused() -> None:
    made = pairs()
    with pytest.raises(LocalError, match="cannot be primary"):
        made.report(16, 2, wanted(5, "c", "a", is_in_sync=True), is_seized=False)
    with pytest.raises(LocalError, match="cannot be primary"):
        made.report(16, 2, wanted(0, "a", "b", is_in_sync=True), is_seized=False)
    with pytest.raises(LocalError, match="another epoch"):
        made.report(16, 2, wanted(1, "b", "a", is_in_sync=True), is_seized=False)


def test_another_backup_begins_out_of_sync() -> None:
    made = pairs()
    made.replace_backup(16, 2, "c")
    assert made.by_shard[16].backup == "c"
    assert not made.by_shard[16].is_in_sync


def test_a_stream_of_pairs_in_the_state_of_the_cluster() -> None:
    state = MetaState()
    members = [Member(replica=name, name=name, peer="") for name in "abc"]
    state.apply(InitCluster("x", members[0]))
    for member in members[1:]:
        state.apply(PutMember(member))
    spec = StreamSpec.read(
        {
            "name": "alarms",
            "filters": ["alarms/#"],
            "replication": "primary-backup",
            "shards": 2,
            "primary_backup": {"check_interval_ms": 200},
        }
    )
    result = state.apply(PutStream(spec, create_only=True))
    assert result.error is None
    found = [state.pairs.by_shard[shard] for shard in result.opened]
    assert all(pair.backup not in (None, pair.primary) for pair in found)
    assert found[0].primary != found[1].primary, "the work is spread"
    again = MetaState.from_bytes(state.to_bytes())
    assert again.pairs.by_shard == state.pairs.by_shard
    assert StreamSpec.read(spec.plain()) == spec == again.table.streams["alarms"].spec
    pair = found[0]
    shard = result.opened[0]
    report = ReportPair(shard, after=1, epoch=1, primary=pair.primary, is_in_sync=False, is_seized=False)
    state.apply(report)
    assert state.pairs.by_shard[shard].version == 2
    state.apply(DeleteStream("alarms"))
    assert not state.pairs.by_shard


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"schedule": "fast"}, "schedule = .*: expected one of fcfs, frame"),
        ({"schedule": "frame"}, "needs the classes"),
        ({"check_interval_ms": 1}, "check_interval_ms = 1: expected milliseconds from 8 to 60000"),
        ({"failover_ms": 100}, "less than three checks"),
        ({"failover": 100}, "no setting 'failover'"),
        ({"topics": [{"filter": "a/#"}]}, "a topic class has"),
        ({"topics": [{"filter": "a/#", "period_ms": "soon", "deadline_ms": 1}]}, "period_ms = 'soon'"),
        ({"topics": [{"filter": "a/#/b", "period_ms": 1, "deadline_ms": 1}]}, "not a topic filter"),
        ({"topics": [{"filter": "a/#", "period_ms": None, "deadline_ms": 1}]}, "period_ms = None"),
        (
            {"topics": [{"filter": "a/#", "period_ms": 1, "deadline_ms": 1, "retention": None}]},
            "retention = None",
        ),
        ({"topics": 5}, "topics = 5"),
        ({"backup_ms": "fast"}, "backup_ms = 'fast'"),
        ({"publisher_ms": float("nan")}, "publisher_ms = nan"),
        ({"publisher_ms": float("inf")}, "publisher_ms = inf"),
        ("frame", "expected a table"),
    ],
)
def test_settings_that_make_no_sense_are_named(given: object, match: str) -> None:
    with pytest.raises(LocalError, match=match):
        StreamSpec.read(
            {
                "name": "alarms",
                "filters": ["alarms/#"],
                "replication": "primary-backup",
                "primary_backup": given,
            }
        )
