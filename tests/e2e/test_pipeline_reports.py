"""What a supervisor tells the nodes about its pipeline, at a node that knows users. No Spark is started."""

import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import StartBroker
from e2e.processes import millrace
from e2e.test_access import Keeper
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.spark.supervisor import Plan, Supervisor
from waiting import until


@pytest.mark.parametrize("variable", ["MILLRACE_TOKEN", "MILLRACE_PASSWORD"])
def test_reports_are_made_with_the_secret_that_the_query_uses(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    keeper = Keeper(tmp_path)
    keeper.user("root", "secret")
    keeper.allow("root", "all", "#")
    broker = start_broker(*keeper.settings)
    url = broker.url.replace("//", "//root@")
    for one in ("MILLRACE_TOKEN", "MILLRACE_PASSWORD"):
        monkeypatch.delenv(one, raising=False)
    is_token = variable == "MILLRACE_TOKEN"
    monkeypatch.setenv(variable, "root:secret" if is_token else "secret")
    urls = f" {broker.url if is_token else url} ,"
    plan = Plan(name="told", file=tmp_path / "none.py", state=tmp_path, urls=urls)
    supervisor = Supervisor(plan, lambda state: None)
    http = Http(url, password="secret")

    def is_told() -> bool:
        supervisor._say(state="running")
        return bool(http.get("/v1/pipelines")["pipelines"])

    until(is_told, "the report", 20.0)
    supervisor._teller.close()
    (report,) = http.get("/v1/pipelines")["pipelines"]
    assert (report["name"], report["state"]) == ("told", "running")


def test_the_log_is_told_and_a_restart_reaches_the_supervisor_once(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """People see the end of the driver's log and ask for another driver; the supervisor hears of it with its
    next report and says so with the one after. A pipeline whose supervisor has ended cannot be restarted."""
    broker = start_broker()
    plan = Plan(name="told", file=tmp_path / "none.py", state=tmp_path, urls=broker.url)
    plan.log.write_text("".join(f"line {number} {'x' * 600}\n" for number in range(100)))
    supervisor = Supervisor(plan, lambda state: None)
    http = Http(broker.url)

    def shown() -> dict[str, Any]:
        rows: list[dict[str, Any]] = http.get("/v1/pipelines")["pipelines"]
        return rows[0] if rows else {}

    supervisor._say(state="running")
    until(shown, "the report", 20.0)
    log = http.get("/v1/pipelines/told/log")
    assert log["lines"][-1].startswith("line 99 xxx") and len(log["lines"]) <= 50
    assert max(map(len, log["lines"])) == 500
    assert log["place"].endswith(f":{plan.log.resolve()}")
    assert "log" not in shown()
    assert "running" in millrace("pipeline", "list", "--url", broker.url).stdout
    assert "line 99 xxx" in millrace("pipeline", "logs", "told", "--url", broker.url).stdout
    done = millrace("pipeline", "restart", "told", "--url", broker.url)
    assert "asked to restart" in done.stdout, done.stderr
    until(supervisor._restarting.is_set, "the supervisor to hear of it", 20.0)
    until(lambda: shown()["restart"] == "", "the supervisor to say that it did it", 20.0)
    supervisor._restarting.clear()
    supervisor._say(state="stopped")
    until(lambda: shown()["state"] == "stopped", "the end", 20.0)
    supervisor._teller.close()
    assert not supervisor._restarting.is_set()
    with pytest.raises(LocalError, match="start it again with: millrace pipeline run"):
        http.call("POST", "/v1/pipelines/told/restart", {})
    with pytest.raises(LocalError, match="no pipeline 'other'"):
        http.get("/v1/pipelines/other/log")


def test_a_driver_for_a_spark_cluster_uses_this_python_and_the_workers_theirs(tmp_path: Path) -> None:
    """Spark finds sources with the driver's interpreter, and reads its own setting for the workers' only
    where spark-submit starts the driver."""
    plan = Plan(
        name="p",
        file=tmp_path / "p.py",
        state=tmp_path,
        urls="http://127.0.0.1:1",
        master="spark://head:7077",
        configuration=("spark.pyspark.python=/opt/python",),
        is_told=False,
    )
    environment = Supervisor(plan, lambda state: None)._environment()
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert environment["PYSPARK_PYTHON"] == "/opt/python"
