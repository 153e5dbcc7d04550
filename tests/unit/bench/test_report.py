"""The mathematics of the report, on answers written by hand: medians, ratios, verdicts, notes."""

import json
from typing import Any

import pytest
from rich.console import Console

from millrace.lab.bench.report import Ratio, document, figures_table, notes, ratios, ratios_table
from millrace.lab.bench.runner import Result, Sample, Subject, summarize

OURS_3 = Subject(broker="millrace", mqtt=3, kernels="c")
OURS_5 = Subject(broker="millrace", mqtt=5, kernels="c")
PYTHON_3 = Subject(broker="millrace", mqtt=3, kernels="python")
MOSQUITTO_3 = Subject(broker="mosquitto", mqtt=3)
MOSQUITTO_5 = Subject(broker="mosquitto", mqtt=5)
NATS = Subject(broker="nats", mqtt=None)


def result(pattern: str, subject: Subject, **values: float) -> Result:
    return Result(pattern=pattern, subject=subject, rounds=3, values=values, errors=())


def load(pattern: str, subject: Subject, rate: float, cpu_us: float, **more: float) -> Result:
    return result(pattern, subject, delivered_s=rate, cpu_us_per_delivered=cpu_us, **more)


def only(found: list[Ratio], **wanted: Any) -> Ratio:
    (one,) = [r for r in found if all(getattr(r, name) == value for name, value in wanted.items())]
    return one


def test_medians_are_taken_field_by_field_over_the_runs_that_succeeded() -> None:
    samples = [
        Sample(pattern="qos0-1to1", subject=OURS_3, values={"delivered_s": rate, "lost": 0, "proto": "mqtt3"})
        for rate in (10, 30, 20)
    ]
    samples.append(Sample(pattern="qos0-1to1", subject=OURS_3, error="peer closed connection 3"))
    (summary,) = summarize(samples)
    assert summary.values == {"delivered_s": 20, "lost": 0}
    assert (summary.rounds, summary.errors) == (3, ("peer closed connection 3",))


def test_a_rate_reaches_its_target_from_above_and_a_cost_from_below() -> None:
    found = ratios(
        [
            load("qos0-1to1", OURS_3, 2500, 0.4),
            load("qos0-1to1", MOSQUITTO_3, 100, 8.0),
            load("qos0-1to1", NATS, 1251, 0.8),
            load("qos1-one-per-read", OURS_3, 100, 9.9, msgs_per_recv=0.5),
            load("qos1-one-per-read", MOSQUITTO_3, 100, 10.0, msgs_per_recv=0.5),
        ]
    )
    rate = only(found, pattern="qos0-1to1", against="mosquitto", field="delivered_s")
    assert (rate.value, rate.target, rate.reached) == (25.0, 25, True)
    to_nats = only(found, pattern="qos0-1to1", against="nats", field="delivered_s")
    assert (round(to_nats.value, 2), to_nats.target, to_nats.reached) == (2.0, 2, False)
    for_information = only(found, pattern="qos0-1to1", against="mosquitto", field="cpu_us_per_delivered")
    assert (for_information.value, for_information.target, for_information.reached) == (0.05, None, None)
    cost = only(found, pattern="qos1-one-per-read", field="cpu_us_per_delivered")
    assert (cost.value, cost.target, cost.reached) == (0.99, 1.0, True)


def test_interpreted_kernels_have_targets_of_their_own() -> None:
    found = ratios([load("qos0-mixed", PYTHON_3, 700, 1), load("qos0-mixed", MOSQUITTO_3, 100, 8)])
    # The generator's `vary` is missing, so the regime is not shown to have held.
    assert only(found, field="delivered_s").reached is None
    mixed = [load("qos0-mixed", s, rate, 1, vary=1) for s, rate in ((PYTHON_3, 700), (MOSQUITTO_3, 100))]
    one = only(ratios(mixed), field="delivered_s")
    assert (one.target, one.reached) == (6, True)


def test_mqtt_5_is_compared_with_the_peers_mqtt_5_and_with_our_own_3_1_1() -> None:
    found = ratios(
        [
            load("qos1-1to1", OURS_3, 1000, 1.0),
            load("qos1-1to1", OURS_5, 900, 1.3),
            load("qos1-1to1", MOSQUITTO_3, 100, 10),
            load("qos1-1to1", MOSQUITTO_5, 50, 20),
        ]
    )
    assert only(found, subject=OURS_5, against="mosquitto", field="delivered_s").value == 18.0
    versions = only(found, against="mqtt3")
    assert (versions.subject, versions.value, versions.target, versions.reached) == (OURS_5, 1.3, 1.2, False)


def test_a_number_that_stands_by_itself_needs_no_peer() -> None:
    (one,) = ratios([result("idle", OURS_3, kb_per_conn=3.5, ready=5000)])
    assert (one.against, one.value, one.target, one.reached) == ("absolute", 3.5, 4.0, True)
    assert one.theirs is None


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"published_s": 20_000}, []),
        ({"published_s": 12_000}, ["regime not held: published_s 12000"]),
        ({"published_s": 20_000, "gen_cpu_pct": 99}, ["generator is the limit"]),
        ({"published_s": 20_000, "other_cpu_pct": 45}, ["machine busy"]),
    ],
)
def test_notes_say_what_spoils_a_figure(values: dict[str, float], expected: list[str]) -> None:
    assert notes(result("latency-20k", OURS_3, **values)) == expected


def test_a_regime_not_held_decides_nothing() -> None:
    slow = {"lat_p50_us": 90.0, "lat_p99_us": 200.0, "cpu_us_per_delivered": 10.0}
    found = ratios(
        [
            result("latency-20k", OURS_3, published_s=12_000, **slow),
            result("latency-20k", MOSQUITTO_3, published_s=20_000, **slow),
        ]
    )
    p50 = only(found, field="lat_p50_us")
    assert (p50.value, p50.target, p50.reached) == (1.0, 1.0, None)


@pytest.mark.parametrize("busy", [OURS_3, MOSQUITTO_3])
def test_a_verdict_from_a_busy_machine_is_marked(busy: Subject) -> None:
    both = [
        load("qos0-1to1", subject, rate, 1.0, other_cpu_pct=150 if subject == busy else 3)
        for subject, rate in ((OURS_3, 2500), (MOSQUITTO_3, 100))
    ]
    assert only(ratios(both), field="delivered_s").doubtful
    (line,) = [line for line in rendered(both).splitlines() if ">= 25" in line]
    assert "yes (busy)" in line


def test_a_subject_without_a_good_run_is_listed_with_its_failure_and_not_compared() -> None:
    failed = Result(pattern="qos0-1to1", subject=OURS_3, rounds=0, values={}, errors=("lost: 7 messages",))
    both = [failed, load("qos0-1to1", MOSQUITTO_3, 100, 8.0)]
    assert ratios(both) == []
    assert notes(failed) == ["1 runs failed: lost: 7 messages"]
    assert "lost: 7 messages" in rendered(both)


def rendered(results: list[Result]) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(figures_table(results))
        console.print(ratios_table(ratios(results)))
    return captured.get()


def test_the_tables_state_the_regime_beside_figure_and_ratio() -> None:
    both = [load("qos0-1to1", OURS_3, 2_500_000, 0.4), load("qos0-1to1", MOSQUITTO_3, 100_000, 8.0)]
    lines = rendered(both).splitlines()
    (figure,) = [line for line in lines if "2,500,000" in line]
    (verdict,) = [line for line in lines if ">= 25" in line]
    assert "bulk" in figure and "0.40" in figure
    assert "bulk" in verdict and "25.00" in verdict and "yes" in verdict


def test_the_document_is_json_with_every_run_in_it() -> None:
    samples = [
        Sample(pattern="qos0-1to1", subject=s, values={"delivered_s": 100.0, "cpu_us_per_delivered": 2.0})
        for s in (OURS_3, MOSQUITTO_3)
    ]
    made = document(
        samples=samples, results=summarize(samples), versions={"mosquitto": "2.0"}, seconds=1.6, rounds=1
    )
    again = json.loads(json.dumps(made))
    assert [s["broker"] for s in again["samples"]] == ["millrace", "mosquitto"]
    assert [f["delivered_s"] for f in again["figures"]] == [100.0, 100.0]
    assert {r["regime"] for r in again["ratios"]} == {"bulk"}
