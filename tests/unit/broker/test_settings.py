"""Settings are read from plain values, and what is wrong with them is named."""

import re
from typing import Any

import msgspec
import pytest

from millrace.broker.groups.definitions import NewDurableGroup
from millrace.broker.streams.pair_spec import PairSpec, TopicClass
from millrace.broker.streams.stream import DEFAULT_SPEC, Replication, StreamSpec
from millrace.errors import LocalError
from millrace.settings import Settings, quantity

GIVEN = {"name": "s", "filters": ["s/#"]}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"color": "red"},
            "a stream has no setting 'color'; there are: ack, capture,",
        ),
        ({"shards": 0}, "stream 's': shards = 0: expected a whole number from 1 to 256"),
        ({"shards": 257}, "stream 's': shards = 257: expected a whole number from 1 to 256"),
        ({"shards": True}, "stream 's': shards = True: expected a whole number from 1 to 256"),
        ({"shards": "2"}, "stream 's': shards = '2': expected a whole number from 1 to 256"),
        ({"replicas": 0}, "stream 's': replicas = 0: expected a whole number from 1 on"),
        (
            {"retention_age_s": -1},
            "stream 's': retention_age_s = -1: expected seconds from 0 on, or a duration such as",
        ),
        ({"capture": "most"}, "stream 's': capture = 'most': expected one of acknowledged, all, none"),
        ({"compression": 5}, "stream 's': compression = 5: expected one of none, zlib"),
        ({"filters": "s/#"}, "stream 's': filters = 's/#': expected a list"),
        ({"filters": [1]}, "stream 's': filters = [1]: expected a list"),
        ({"filters": []}, "stream 's': it needs at least one topic filter"),
        ({"filters": ["a", "a"]}, "stream 's': at most 1000 filters, each once"),
        ({"edge": "nonsense"}, "stream 's': edge = 'nonsense': expected module:function"),
        (
            {"primary_backup": {"backup_ms": -1.0}},
            "stream 's': backup_ms = -1.0: expected milliseconds from 0 to",
        ),
        (
            {"retention_age_s": "7 days"},
            "stream 's': retention_age_s = '7 days': expected seconds from 0 on, or",
        ),
        ({"retention_age_s": "1ms"}, "stream 's': retention_age_s = '1ms': expected seconds"),
        (
            {"retention_bytes": "3s"},
            "stream 's': retention_bytes = '3s': expected bytes from 0 on, or a size",
        ),
        ({"ack": "all"}, "stream 's': ack is a setting of leaderless streams, and this one is quorum"),
        (
            {"primary_backup": {"check_interval_ms": 50}, "replication": "routed"},
            "stream 's': primary_backup is a setting of primary-backup streams, and this one is routed",
        ),
        ({"name": 5}, "stream 5: name = 5: expected a name of"),
        (
            {"name": "a/b"},
            "stream 'a/b': name = 'a/b': expected a name of letters, digits, dot, dash, underscore",
        ),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LocalError) as caught:
        StreamSpec.read({**GIVEN, **wrong})
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("90", "s", 90),
        ("90s", "s", 90),
        ("1h30m", "s", 5_400),
        ("7d", "s", 604_800),
        ("1.5s", "ms", 1_500),
        ("2m500ms", "ms", 120_500),
        ("512MiB", "bytes", 512 * 1024**2),
        ("10GB", "bytes", 10**10),
        ("100kB", "bytes", 100_000),
        ("12B", "bytes", 12),
        ("0.5", "ms", 0.5),
    ],
)
def test_a_quantity_is_in_the_unit_that_is_asked_for(text: str, unit: str, value: float) -> None:
    assert quantity(text, unit) == value


@pytest.mark.parametrize(
    "text", ["", "s", "7x", "-7d", "7d 3h", "1e3", "1h30", "5MB", "inf", "٣s", "7D", ".5s"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        quantity(text, "s")


def test_units_are_taken_wherever_a_number_has_one() -> None:
    spec = StreamSpec.read({**GIVEN, "retention_age_s": "7d", "retention_bytes": "10GiB", "hold_age_s": "60"})
    assert (spec.retention_age_s, spec.retention_bytes, spec.hold_age_s) == (604_800, 10 * 1024**3, 60)


@pytest.mark.parametrize("kind", [StreamSpec, PairSpec, TopicClass, NewDurableGroup])
def test_every_setting_is_described_and_its_default_is_allowed(kind: type[Settings]) -> None:
    for field in kind.fields().values():
        assert field.description.endswith("."), field.name
        assert field.expected
        if not field.is_required:
            assert field.read(msgspec.to_builtins(field.default)) == field.default


def test_a_class_of_topics_is_written_in_one_word() -> None:
    given = TopicClass.from_text("a/=b/#=50ms, 1s,inf,2")
    assert TopicClass.read(given) == TopicClass(filter="a/=b/#", period_ms=50, deadline_ms=1_000, retention=2)
    assert TopicClass.read(TopicClass.from_text("a=1,2,3,4")).loss_tolerance == 3
    for wrong in ("a", "a=1,2,3", "=1,2,3,4", "a=1,2,3,4,5"):
        with pytest.raises(LocalError, match="expected FILTER=T,D,L,N"):
            TopicClass.from_text(wrong)


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
