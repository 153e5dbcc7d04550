"""Samples in the text format of Prometheus, by the table of metrics."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from millrace.broker.stats import Histogram
from millrace.limits import METRIC_SERIES_MAX
from millrace.node.metrics import table
from millrace.node.metrics.table import METRICS, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram


class _Families(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_metric: dict[str, list[Sample]] = {}
        for sample in samples:
            assert len(sample.labels) == len(sample.metric.labels), sample
            self._by_metric.setdefault(sample.metric.name, []).append(sample)

    def collect(self) -> Iterator[Family]:
        left_out = 0
        for name, metric in METRICS.items():
            found = self._by_metric.get(name, [])
            left_out += max(0, len(found) - METRIC_SERIES_MAX)
            if metric is not table.LEFT_OUT and found:
                yield _family(metric, found[:METRIC_SERIES_MAX])
        for sample in self._by_metric.get(table.LEFT_OUT.name, []):
            assert not isinstance(sample.value, Histogram)
            left_out += int(sample.value)
        yield _family(table.LEFT_OUT, [Sample(table.LEFT_OUT, (), left_out)])


def _family(metric: Metric, samples: list[Sample]) -> Family:
    if metric.kind == "histogram":
        made = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for _, labels, value in samples:
            assert isinstance(value, Histogram), metric.name
            made.add_metric(labels, _buckets(value), value.sum_s)
        return made
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for _, labels, value in samples:
        assert not isinstance(value, Histogram), metric.name
        family.add_metric(labels, value)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """As Prometheus wants them: each holds those before it."""
    total = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip((*histogram.bounds_s, None), histogram.counts, strict=True):
        total += count
        found.append(("+Inf" if bound is None else str(bound), total))
    return found


def text(samples: Iterable[Sample]) -> bytes:
    """The answer to a scrape."""
    registry = CollectorRegistry()
    registry.register(_Families(samples))
    return generate_latest(registry)
