"""Campaigns in small: real faults on real processes, judged by what clients were told."""

import json
import subprocess
import sys

import pytest

from millrace.lab.campaign.load import Load
from millrace.lab.campaign.networks import why_not
from millrace.lab.campaign.report import Report, percentile


def campaign(*arguments: str, timeout_s: float = 280.0) -> dict[str, int]:
    """Run one to its end; its figures. Fails where a promise was broken."""
    done = subprocess.run(
        [sys.executable, "-m", "millrace.lab.campaign", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert done.returncode == 0, answer["violations"]
    figures: dict[str, int] = answer["figures"]
    return figures


@pytest.mark.long
def test_leaders_are_killed_under_load() -> None:
    """Nothing acknowledged is lost, nothing keyed or at QoS 2 is doubled, order holds, all logs are equal."""
    figures = campaign("kills", "--count", "2", "--rate", "150", "--down-s", "0.2")
    assert figures["faults done"] == 2
    assert figures["messages acknowledged"] > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("kills", "--count", "10"),
        ("kills", "--nodes", "5", "--count", "3"),
        ("stops", "--count", "4"),
        ("power", "--count", "2"),
        ("power", "--of", "one", "--count", "3"),
        ("stalls", "--count", "2"),
        ("random-kills", "--minutes", "0.5"),
        ("single-faults", "--no-cuts", "--hold-s", "3", "--bound-s", "0"),
        ("damage", "--count", "6", "--per-round", "3"),
        ("members", "--count", "4"),
        ("rolling",),
        ("rolling", "--upgrade"),
        ("nightly", "--no-cuts", "--minutes", "0.5"),
        ("nightly", "--no-cuts", "--minutes", "0.5", "--clients", "foreign"),
        ("rejoin", "--megabytes", "16"),
        ("quiet", "--minutes", "0.5"),
    ],
    ids=" ".join,
)
def test_a_campaign_holds(arguments: tuple[str, ...]) -> None:
    assert campaign(*arguments)["messages acknowledged"] > 100


@pytest.mark.slow
def test_a_loss_of_power_is_noticed_where_nothing_is_synced() -> None:
    """What the disk layer drops, and the judge sees: otherwise the campaigns of it would prove nothing."""
    command = [sys.executable, "-m", "millrace.lab.campaign", "power", "--count", "3", "--json"]
    command += ["--set", "storage.sync=never"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280.0, check=False)
    assert done.returncode == 1
    assert json.loads(done.stdout)["violations"]


@pytest.mark.slow
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "networks")
def test_partitions_of_every_shape() -> None:
    figures = campaign("partitions", "--rounds", "1")
    assert figures["partitions done"] == 5
    assert figures["changes of leader per fault and group, most"] <= 1


def test_the_judge_sees() -> None:
    """A loss, a double, a swap and a silent subscriber are each told; a clean history is not blamed."""
    from millrace.lab.campaign.judge import Log, _judge_log, _judge_subscriber
    from millrace.lab.campaign.load import Publisher

    def history(kind: str, stored: list[int], got: list[int]) -> list[str]:
        publisher = Publisher.__new__(Publisher)
        publisher.kind, publisher.topics, publisher.acknowledged = kind, ["load/p0/0"], [{0, 1, 2}]
        publisher.sent = [3]
        load = Load.__new__(Load)
        load.publishers = [publisher]
        log, report = Log(), Report("test")
        log.numbers = {"load/p0/0": stored}
        _judge_log(load, log, report)
        _judge_subscriber(load, "s0", 2, {"load/p0/0": got}, log, report)
        return [violation.split(":")[0].split(" ")[0] for violation in report.violations]

    clean = [0, 1, 2]
    assert history("keyed", clean, clean) == []
    assert history("qos1", [0, 1, 1, 2], [0, 1, 1, 2]) == []
    assert history("keyed", [0, 2], clean) == ["lost"]
    assert history("keyed", [0, 1, 2, 7], clean) == ["1"], "one that nobody sent"
    assert history("keyed", [0, 1, 1, 2], clean) == ["doubled"]
    assert history("qos1", [0, 2, 1], clean) == ["order"]
    assert history("qos1", clean, [0, 1]) == ["subscriber"]
    assert history("qos2", clean, [0, 1, 2, 2]) == ["subscriber"]


def test_percentiles() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile(values, 1.0)) == (50, 99, 100)
    assert percentile([7.0], 0.99) == 7.0 and percentile([], 0.5) == 0.0


@pytest.mark.slow
def test_a_siege_leaves_idle_clients_in_and_half_open_ones_out() -> None:
    """In small. How long round trips take beside it is asked of a machine of its own, not of this one."""
    words = ("--idle", "500", "--half-open", "200", "--logins", "100", "--seconds", "5", "--json")
    command = [sys.executable, "-m", "millrace.lab.campaign.siege", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280.0, check=False)
    figures = json.loads(done.stdout)
    assert figures["idle connections lost"] == 0
    assert figures["half-open closed"] == 200
    assert figures["wrong logins sent a second"] >= 90
    assert figures["under attack: round trips"] > 20
