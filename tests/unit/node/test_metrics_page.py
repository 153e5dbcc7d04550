"""The page of all metrics in the documentation is made from their table.

After a change of one: pytest tests/unit/node/test_metrics_page.py --rewrite
"""

from pathlib import Path

import pytest

from millrace.limits import METRIC_SERIES_MAX
from millrace.node.metrics.table import SECTIONS, Metric, Section

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"

_HEAD = f"""# Metrics

This page is made from the code: `pytest tests/unit/node/test_metrics_page.py --rewrite`.

Every node answers `GET /metrics` in the text format of Prometheus, for whoever has the role `observer`. What
is counted is counted by run, block or write, never by message; everything else is read when it is asked for.
Until a node serves it answers 503.

No label has values that clients choose. Of one metric at most {METRIC_SERIES_MAX:,} series are shown, in the
order of their labels; what is beyond is left out, and `millrace_metrics_series_left_out` says how many.
Counters begin at 0 with the process.

[deploy/prometheus](../../deploy/prometheus/README.md) has a scrape configuration and alert rules,
[deploy/grafana](../../deploy/grafana/README.md) a dashboard.
"""


def row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |"


def section(one: Section) -> str:
    lines = ["| metric | kind | labels | what it is |", "| --- | --- | --- | --- |", *map(row, one.metrics)]
    return f"## {one.title}\n\n{one.text}\n\n" + "\n".join(lines) + "\n"


def page() -> str:
    return "\n".join([_HEAD, *map(section, SECTIONS)])


def test_the_page_shows_every_metric_as_it_is(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page())
        return
    assert PAGE.read_text() == page(), "a metric changed: run again with --rewrite"
