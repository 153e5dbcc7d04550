"""Settings are read from plain values, and what is wrong with them is named."""

from typing import Any

import pytest

from millrace.broker.streams.stream import DEFAULT_SPEC, Replication, StreamSpec
from millrace.errors import LocalError

GIVEN = {"name": "s", "filters": ["s/#"]}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"color": "red"}, "a stream has no setting 'color'; there are: ack, capture,"),
        ({"shards": 0}, "stream 's': shards is 1 to 256, not 0"),
        ({"shards": 257}, "stream 's': shards is 1 to 256, not 257"),
        ({"shards": True}, "stream 's': shards = True: expected a whole number"),
        ({"shards": "2"}, "stream 's': shards = '2': expected a whole number"),
        ({"replicas": 0}, "stream 's': replicas is at least 1, not 0"),
        ({"retention_age_s": -1}, "stream 's': retention_age_s is at least 0, not -1"),
        ({"capture": "most"}, "stream 's': capture is one of acknowledged, all, none, not 'most'"),
        ({"compression": 5}, "stream 's': compression is one of none, zlib, not 5"),
        ({"filters": "s/#"}, "stream 's': filters = 's/#': expected a list"),
        ({"filters": [1]}, "stream 's': filters = [1]: expected a list"),
        ({"filters": []}, "stream 's': it needs at least one topic filter"),
        ({"filters": ["a", "a"]}, "stream 's': at most 1000 filters, each once"),
        ({"edge": "nonsense"}, "stream 's': 'nonsense' is not module:function"),
        ({"primary_backup": {"backup_ms": -1.0}}, "stream 's': backup_ms is 0 to 86400000, not -1.0"),
        ({"name": 5}, "stream 5: name = 5: expected text"),
        ({"name": "a/b"}, "'a/b' is not a stream name: letters, digits, dot, dash, underscore"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalError) as caught:
        StreamSpec.read({**GIVEN, **wrong})
    assert str(caught.value).startswith(sentence)


def test_a_stream_has_to_have_a_name() -> None:
    with pytest.raises(LocalError, match="a stream has to say name"):
        StreamSpec.read({"filters": ["a"]})


def test_what_is_absent_is_as_before_or_the_default() -> None:
    pair = {"check_interval_ms": 200, "topics": [{"filter": "s/#", "period_ms": 1, "deadline_ms": 2}]}
    first = StreamSpec.read({**GIVEN, "replication": "primary-backup", "primary_backup": pair})
    changed = StreamSpec.read({"shards": 2, "primary_backup": {"check_interval_ms": 300}}, first)
    assert (changed.name, changed.shards, changed.filters) == ("s", 2, ("s/#",))
    assert changed.primary_backup.check_interval_ms == 300
    assert changed.primary_backup.topics == first.primary_backup.topics
    assert StreamSpec.read({"name": "default", "shards": 2}).retention_age_s == DEFAULT_SPEC.retention_age_s


@pytest.mark.parametrize("replication", list(Replication))
def test_the_plain_form_is_read_back_and_leaves_out_what_does_not_concern_it(
    replication: Replication,
) -> None:
    spec = StreamSpec.read({**GIVEN, "replication": replication.value})
    shown = spec.plain()
    assert StreamSpec.read(shown) == spec
    assert ("ack" in shown, "storage" in shown) == (replication is Replication.LEADERLESS,) * 2
    assert ("primary_backup" in shown) is (replication is Replication.PRIMARY_BACKUP)
