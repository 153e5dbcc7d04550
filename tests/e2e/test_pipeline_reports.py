"""What a supervisor tells the nodes about its pipeline, at a node that knows users. No Spark is started."""

from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.test_access import Keeper
from millrace.client.http import Http
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
