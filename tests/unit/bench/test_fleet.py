"""The fleet's rows say what was measured, and the picture shows the 100 clients of both brokers."""

from xml.etree import ElementTree

import pytest

from millrace.lab.bench import fleet
from millrace.lab.bench.runner import Result, Subject

OURS, THEIRS = Subject(broker="millrace", mqtt=3, kernels="c"), Subject(broker="mosquitto", mqtt=3)


def result(pattern: str, subject: Subject, **values: float) -> Result:
    return Result(pattern=pattern, subject=subject, rounds=1, values=values, errors=())


def test_each_device_has_its_own_topic_and_the_rate_is_of_all() -> None:
    made = {pattern.name: pattern for pattern in fleet.patterns(5_000, 2_000)}
    flags = dict(zip(made["fleet-qos1"].flags[::2], made["fleet-qos1"].flags[1::2], strict=True))
    assert (flags["-P"], flags["-S"], flags["-r"], flags["-q"]) == ("5000", "1", "2000", "1")
    assert not made["fleet-qos1"].durable and made["fleet-qos1-durable"].durable
    assert made["fleet-qos1"].evidence[0].low < 2_000 < made["fleet-qos1"].evidence[0].high


def test_a_run_of_ten_thousand_messages_each_is_told_in_seconds_and_megabytes() -> None:
    (row,) = fleet.rows([result(fleet.CLOSED, OURS, delivered_s=50_000.0, cpu_us_per_delivered=5.04)])
    assert (row["10,000 each, s"], row["MB/s"], row["CPU us/message"]) == ("20.0", "100.0", "5.0")


def test_what_was_not_measured_is_left_open() -> None:
    (row,) = fleet.rows([result("fleet-qos0", THEIRS, delivered_s=2_000.0)])
    assert (row["p50 us"], row["MB/s"], row["10,000 each, s"]) == ("-", "-", "-")


@pytest.mark.parametrize("brokers", [(), (OURS,), (OURS, THEIRS)])
def test_the_picture_has_a_bar_for_each_broker_and_figure(brokers: tuple[Subject, ...]) -> None:
    results = [result(fleet.CLOSED, one, delivered_s=10_000.0) for one in brokers]
    results += [result(fleet.OPEN, one, lat_p50_us=100.0, lat_p99_us=900.0) for one in brokers]
    root = ElementTree.fromstring(fleet.plot(results))
    bars = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("fill") != "white"]
    assert len(bars) == 4 * len(brokers)
    assert all(0 < float(bar.get("height", "0")) <= 200 for bar in bars)
