"""What /metrics is made of: the table, the text, histograms, and what costs the hot path nothing."""

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from millrace.broker.stats import Histogram, Stats
from millrace.limits import METRIC_SERIES_MAX
from millrace.node.metrics import table
from millrace.node.metrics.table import METRICS, Metric
from millrace.node.metrics.text import Sample, text


def everything() -> list[Sample]:
    """Every metric once, with labels that need care."""
    found = []
    for metric in METRICS.values():
        value: float | Histogram = 1.5
        if metric.kind == "histogram":
            value = Histogram((0.1, 1.0))
            value.observe(0.05)
            value.observe(5.0, 3)
        found.append(Sample(metric, tuple(f'a"b\\{label}\n' for label in metric.labels), value))
    return found


def test_every_metric_is_described_by_the_conventions() -> None:
    """Base units, `_total` for what only grows, and a help that is a sentence and not the name again."""
    for metric in METRICS.values():
        assert metric.name.startswith(("millrace_", "process_")), metric
        assert metric.kind != "counter" or metric.name.endswith("_total")
        assert metric.kind == "counter" or not metric.name.endswith("_total")
        assert not metric.name.endswith(("_ms", "_us", "_milliseconds", "_kilobytes", "_percent")), metric
        assert len(metric.help.split()) >= 4 and metric.help.endswith("."), metric
        words = metric.name.removesuffix("_total").split("_")
        assert metric.help.lower().split() != words


def test_the_text_reads_back_as_it_was_meant() -> None:
    families = {family.name: family for family in text_string_to_metric_families(text(everything()).decode())}
    assert len(families) == len(METRICS)
    for metric in METRICS.values():
        family = families[metric.name.removesuffix("_total")]
        assert family.documentation == metric.help.replace("\n", " ")
        assert family.type == metric.kind
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families[table.SYNC.name].samples
        if sample.name.endswith("_bucket")
    }
    assert buckets == {"0.1": 1, "1.0": 1, "+Inf": 4}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not here")
def test_promtool_finds_nothing_wrong_with_the_names_and_the_text() -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text(everything()), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout + done.stderr == b""


def test_what_is_beyond_the_bound_is_left_out_and_counted() -> None:
    metric = Metric(table.GROUP_DEPTH.name, "gauge", table.GROUP_DEPTH.help, ("group",))
    samples = [Sample(metric, (f"g{n:05}",), n) for n in range(METRIC_SERIES_MAX + 7)]
    samples.append(Sample(table.LEFT_OUT, (), 3))
    families = {family.name: family for family in text_string_to_metric_families(text(samples).decode())}
    assert len(families[metric.name].samples) == METRIC_SERIES_MAX
    assert families[table.LEFT_OUT.name].samples[0].value == 7 + 3


def test_a_histogram_counts_what_is_above_and_below_its_bounds() -> None:
    histogram = Histogram((0.001, 0.01))
    for time_s, count in ((-1.0, 1), (0.001, 2), (0.0011, 3), (7.0, 4)):
        histogram.observe(time_s, count)
    assert histogram.counts == [3, 3, 4]
    assert histogram.count == 10
    assert histogram.sum_s == pytest.approx(0.002 + 0.0033 + 28)


def test_totals_are_sums_over_the_doors() -> None:
    stats = Stats()
    stats.door("mqtt").received[1] += 5
    stats.door("ws").received[0] += 2
    stats.door("ws").bytes_sent += 9
    stats.connects_refused["BANNED"] += 1
    assert stats.door("ws") is stats.door("ws")
    shown = stats.as_dict()
    assert (shown["received"], shown["bytes_sent"], shown["clients_refused"]) == (7, 9, 1)
