"""The alert rules and the dashboard for Grafana in deploy/ speak of metrics that exist, and work."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.node.metrics.table import METRICS, Metric

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
TESTS = DEPLOY / "prometheus" / "alerts_test.yml"
DASHBOARD = DEPLOY / "grafana" / "millrace.json"

_NAME = re.compile(r"\b((?:millrace|process)_[a-z0-9_]+)(?:\{([^}]*)\})?")
_SUFFIXES = ("_bucket", "_count", "_sum")
# Labels that Prometheus adds.
_ADDED = {"instance", "job", "le"}

with_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not here"
)


def rules() -> list[dict[str, str]]:
    """The fields of every rule. Each stands on a line of its own, so that no reader of YAML is needed."""
    found = []
    for text in RULES.read_text().split("- alert: ")[1:]:
        fields = dict(re.findall(r"^ +(expr|labels|summary|description): (.+)$", text, re.MULTILINE))
        found.append({"alert": text.splitlines()[0], **fields})
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def queries() -> Iterator[str]:
    """Every expression of the dashboard, as Prometheus would get it."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "1m")


def described(name: str) -> Metric | None:
    """The metric that a series of this name belongs to."""
    for suffix in _SUFFIXES:
        whole = METRICS.get(name.removesuffix(suffix))
        if name.endswith(suffix) and whole is not None and whole.kind == "histogram":
            return whole
    return METRICS.get(name)


def complaints(expression: str) -> Iterator[str]:
    """What an expression names that no node says."""
    for name, selector in _NAME.findall(expression):
        metric = described(name)
        if metric is None:
            yield f"{name} is no metric: {expression}"
            continue
        labels = set(re.findall(r"([a-z_]+)\s*[=!]", selector))
        unknown = labels - set(metric.labels) - _ADDED
        if unknown:
            yield f"{name} has no label {unknown}: {expression}"
    names = [name for name, _ in _NAME.findall(expression)]
    known = _ADDED.union(*(metric.labels for name in names if (metric := described(name)) is not None))
    for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        unknown = {label.strip() for label in labels.split(",")} - known
        if unknown:
            yield f"nothing has the label {unknown}: {expression}"


def test_a_wrong_name_or_label_is_found() -> None:
    assert list(complaints("sum by (peer) (millrace_peer_up)")) == []
    assert list(complaints("rate(millrace_storage_sync_seconds_bucket[1m])")) == []
    assert list(complaints("millrace_peer_upp"))
    assert list(complaints('millrace_peer_up{node="n1"}'))
    assert list(complaints("sum by (shard) (millrace_peer_up)"))
    assert list(complaints("millrace_peer_up_bucket"))


def test_every_rule_speaks_of_metrics_that_exist() -> None:
    assert [fault for rule in rules() for fault in complaints(rule["expr"])] == []


def test_every_rule_says_what_is_wrong_and_how_bad_it_is() -> None:
    for rule in rules():
        assert rule["labels"] in ("{severity: critical}", "{severity: warning}"), rule
        assert len(rule["summary"]) > 10 and rule["description"].endswith('."'), rule
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) > 20


def test_every_rule_has_a_test_in_which_it_fires() -> None:
    tested = set(re.findall(r"^  - name: (\w+)$", TESTS.read_text(), re.MULTILINE))
    assert {rule["alert"] for rule in rules()} <= tested


@with_promtool
def test_promtool_takes_the_rules_and_they_fire_when_they_should() -> None:
    for command in (
        ["check", "rules", "alerts.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts_test.yml"],
    ):
        done = subprocess.run(
            ["promtool", *command], cwd=RULES.parent, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_shows_metrics_that_exist() -> None:
    found = list(queries())
    assert len(found) > 30
    assert [fault for expression in found for fault in complaints(expression)] == []
    (variable,) = [one for one in dashboard()["templating"]["list"] if one["name"] == "instance"]
    assert list(complaints(variable["query"]["query"].replace("label_values", "count"))) == []


def test_the_panels_of_the_dashboard_have_a_place_each() -> None:
    """Unlike ids, nothing upon something else, and a sentence for whoever asks what it shows."""
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies upon {taken[x, y]}"
                taken[x, y] = panel["title"]


@with_promtool
def test_promtool_parses_every_query_of_the_dashboard(tmp_path: Path) -> None:
    file = tmp_path / "queries.yml"
    lines = [
        {"record": f"query:{number}", "expr": expression.replace("$instance", ".*")}
        for number, expression in enumerate(queries())
    ]
    # JSON is YAML too.
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": lines}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
