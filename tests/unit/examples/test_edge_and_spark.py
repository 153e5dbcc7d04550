"""The function that broker and Spark share in `examples/edge_and_spark`, and the comparison of outputs."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "edge_and_spark"


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture
def vibration(beside: None) -> ModuleType:
    import vibration

    return vibration  # type: ignore[no-any-return]


def payload(*samples: float, machine: str = "m1", sequence: int = 7) -> bytes:
    return json.dumps({"machine": machine, "sequence": sequence, "samples_mm_s": samples}).encode()


@pytest.mark.parametrize(("size", "level"), [(4.5, "ok"), (4.6, "warn"), (7.1, "warn"), (7.2, "stop")])
def test_the_level_follows_from_how_hard_it_shakes(vibration: ModuleType, size: float, level: str) -> None:
    machine, text = vibration.verdict(payload(size, -size))
    assert machine == "m1"
    assert json.loads(text) == {"sequence": 7, "rms_mm_s": size, "level": level}


def test_at_the_edge_the_result_has_a_topic_of_its_own(vibration: ModuleType) -> None:
    topic, text = vibration.edge("vibration/m1", payload(1.0))
    assert (topic, text) == ("verdicts/edge/m1", vibration.verdict(payload(1.0))[1])


@pytest.mark.parametrize(
    "bad",
    [
        *(b"", b"no reading", b"[]", b"\xff", b'{"machine": "m"}', b"[" * 100_000),
        *(payload(), payload(1.0, machine="a/b"), payload(1.0, machine="m" * 201), payload(float("nan"))),
        payload(1e200),
        # Half of a character, and a number that JSON can say and no integer can hold.
        payload(1.0, machine="\ud800"),
        b'{"machine": "m", "sequence": 1e999, "samples_mm_s": [1.0]}',
    ],
)
def test_what_is_no_reading_gives_no_verdict(vibration: ModuleType, bad: bytes) -> None:
    assert vibration.verdict(bad) is None
    assert vibration.edge("vibration/m1", bad) is None


def test_the_comparison_sees_what_is_missing_doubled_and_different(beside: None) -> None:
    import compare

    same = {"m1": ["a", "b"]}
    assert compare.differences(same, {"m1": ["b", "a"]}) == [], "order is not compared"
    for other in ({"m1": ["a"]}, {"m1": ["a", "b", "b"]}, {"m1": ["a", "c"]}, {}, {**same, "m2": ["x"]}):
        assert len(compare.differences(same, other)) == 1
    sys.modules.pop("compare")
