"""Pipelines that the cluster holds, with a driver that stands in for Spark: made, steered, taken over."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import StartBroker
from e2e.processes import BrokerProcess, complaint, millrace
from e2e.staged import Writer, contents
from e2e.stand_in_driver import interpreter
from e2e.test_access import Keeper
from e2e.test_cluster import whole
from millrace.client.http import Http, HttpError
from millrace.local_cluster import LocalCluster, NodeProcess
from waiting import until, until_async

_S_MAX = 60.0
SYNTAX = "def build(flow):\n    return (\n"


def is_exact(numbers: Counter[int]) -> bool:
    """Every number up to the last, once."""
    return numbers == Counter(range(len(numbers)))


@pytest.fixture
def node(start_broker: StartBroker, tmp_path: Path) -> BrokerProcess:
    return start_broker("--set", "pipelines.run=true", "--set", f"pipelines.python={interpreter(tmp_path)}")


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "count.sql", **text: str) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(text or {"stream": "out"}))
        return path

    return make


def make_stream(http: Http) -> None:
    http.call("POST", "/v1/streams", {"name": "out", "filters": ["out/#"], "shards": 1})


def shown(http: Http, name: str = "count") -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"/v1/pipelines/{name}")
    return found


def test_a_pipeline_is_made_steered_and_deleted(node: BrokerProcess, file: Any) -> None:
    """From the command line: it runs without the terminal; its log and its reports are there; it stops, goes
    on where it was after a restart and an upgrade, and is gone when it is deleted."""
    http = Http(node.url)
    make_stream(http)

    def ask(*words: str) -> str:
        done = millrace("pipeline", *words, "--url", node.url)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "it is running on n1" in ask("create", str(file()), "--node", "n1")
    until(lambda: len(contents(http, "out")) >= 5, "five batches", _S_MAX)
    assert "n1" in ask("list") and "running" in ask("list")
    until(lambda: "the driver writes" in ask("logs", "count"), "its log", _S_MAX)
    assert '{"stream": "out"}' in ask("show", "count")
    until(lambda: shown(http)["queries"], "its figures", _S_MAX)
    row = shown(http)
    assert (row["ui"], row["is_declared"]) == ("http://127.0.0.1:4040", True)
    assert b'millrace_pipeline_owned{pipeline="count"} 1' in bytes(http.request("GET", "/metrics").body)
    told = millrace("sub", "$SYS/pipelines/count", "--count", "1", "--url", f"mqtt://127.0.0.1:{node.port}")
    assert json.loads(told.stdout)["state"] == "running"
    ask("stop", "count")
    until(lambda: http.get("/v1/pipelines")["pipelines"][0]["state"] == "stopped", "the stop", _S_MAX)
    before = len(contents(http, "out"))
    ask("restart", "count")
    until(lambda: len(contents(http, "out")) >= before + 3, "more batches", _S_MAX)
    assert "it is running" in ask("upgrade", "count", str(file()), "--trigger", "5s")
    assert shown(http)["definition"]["trigger"] == "5s"
    before = len(contents(http, "out"))
    until(lambda: len(contents(http, "out")) >= before + 3, "batches after the upgrade", _S_MAX)
    assert is_exact(contents(http, "out"))
    ask("delete", "count", "--yes")
    assert http.get("/v1/pipelines")["pipelines"] == []
    ended = node.data.absolute() / "pipelines" / "count" / "driver.pid"
    until(lambda: not is_alive(int(ended.read_text())), "the end of the driver", _S_MAX)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_reset_begins_anew_and_nothing_else_does(node: BrokerProcess, file: Any) -> None:
    """Only a stopped pipeline is reset; then everything comes once more. One whose checkpoints were taken
    away fails with a sentence, and writes nothing twice."""
    http = Http(node.url)
    make_stream(http)
    done = millrace("pipeline", "create", str(file()), "--node", "n1", "--url", node.url)
    assert done.returncode == 0, done.stderr
    until(lambda: len(contents(http, "out")) >= 3, "three batches", _S_MAX)
    refused = millrace("pipeline", "reset", "count", "--yes", "--url", node.url)
    assert "stop it first" in complaint(refused)
    http.call("POST", "/v1/pipelines/count/stop", {})
    driver = node.data.absolute() / "pipelines" / "count" / "driver.pid"
    until(lambda: not is_alive(int(driver.read_text())), "the end of the driver", _S_MAX)
    numbers = contents(http, "out")
    assert is_exact(numbers)
    checkpoints = driver.parent / "checkpoints"
    checkpoints.rename(driver.parent / "aside")
    http.call("POST", "/v1/pipelines/count/restart", {})
    until(lambda: shown(http)["state"] == "failed", "the failure", _S_MAX)
    assert "its checkpoints are not at" in shown(http)["error"]
    assert contents(http, "out") == numbers
    http.call("POST", "/v1/pipelines/count/reset", {})
    http.call("POST", "/v1/pipelines/count/restart", {})
    until(lambda: contents(http, "out")[0] == 2, "everything again", _S_MAX)
    assert shown(http)["resets"] == 1


@pytest.mark.parametrize(
    ("name", "text", "words", "said"),
    [
        ("wrong.py", SYNTAX, ("--node", "n1"), "wrong.py, line 2: '(' was never closed"),
        ("wrong.sql", '{"fail": "no table nowhere"}', ("--node", "n1"), "no table nowhere"),
        ("count.sql", "{}", (), "more than one node may run it"),
        ("count.sql", "{}", ("--node", "n9"), "there is no node 'n9'"),
        ("count.txt", "{}", ("--node", "n1"), "a pipeline is a .py file"),
    ],
)
def test_what_cannot_run_is_not_made(
    node: BrokerProcess, tmp_path: Path, name: str, text: str, words: tuple[str, ...], said: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    done = millrace("pipeline", "create", str(path), *words, "--url", node.url)
    assert done.returncode != 0 and said in complaint(done)
    assert Http(node.url).get("/v1/pipelines")["pipelines"] == []


def test_the_node_finds_the_line_too(node: BrokerProcess) -> None:
    """Whoever asks by HTTP hears of it as well."""
    form = {"definition": {"name": "p", "file": "p.py", "node": "n1"}, "text": SYNTAX}
    with pytest.raises(HttpError, match=r"p\.py, line 2: '\(' was never closed"):
        Http(node.url).call("POST", "/v1/pipelines", form)


def test_a_node_runs_no_code_unless_its_configuration_says_so(start_broker: StartBroker, file: Any) -> None:
    broker = start_broker()
    done = millrace("pipeline", "create", str(file()), "--node", "n1", "--url", broker.url)
    assert "no node of this cluster runs pipelines: set pipelines.run = true" in complaint(done)


def test_only_administrators_give_code(start_broker: StartBroker, tmp_path: Path, file: Any) -> None:
    """An operator stops and restarts, and sees neither the text nor the settings."""
    keeper = Keeper(tmp_path)
    for name in ("root", "op"):
        keeper.user(name, "secret")
    keeper.allow("root", "all", "#")
    token = tmp_path / "token"
    token.write_text("root:secret\n")
    broker = start_broker(
        *keeper.settings,
        *("--set", "pipelines.run=true", "--set", f"pipelines.python={interpreter(tmp_path)}"),
        *("--set", f"pipelines.token_file={token}"),
    )
    root, operator = (
        Http(broker.url.replace("//", f"//{name}@"), password="secret") for name in ("root", "op")
    )
    root.call("PATCH", "/v1/users/op", {"roles": ["operator"]})
    make_stream(root)
    form = {
        "definition": {"name": "count", "file": "count.sql", "node": "n1", "settings": ["key=hidden"]},
        "text": json.dumps({"stream": "out"}),
    }
    for path in ("/v1/pipelines", "/v1/pipelines/count/upgrade"):
        with pytest.raises(HttpError) as refused:
            operator.call("POST", path, form)
        assert refused.value.status == 403
    root.call("POST", "/v1/pipelines", form)
    until(lambda: len(contents(root, "out")) >= 2, "two batches under the user of the file", _S_MAX)
    assert "hidden" in json.dumps(shown(root)) and "hidden" not in json.dumps(shown(operator))
    assert "hidden" not in json.dumps(operator.get("/v1/pipelines"))
    operator.call("POST", "/v1/pipelines/count/stop", {})
    operator.call("POST", "/v1/pipelines/count/restart", {})
    with pytest.raises(HttpError) as refused:
        operator.call("DELETE", "/v1/pipelines/count")
    assert refused.value.status == 403


def test_what_dies_is_started_again(node: BrokerProcess, file: Any) -> None:
    """kill -9 of the driver, then of its supervisor: both come again, and every number is there once."""
    http = Http(node.url)
    make_stream(http)
    done = millrace("pipeline", "create", str(file()), "--node", "n1", "--url", node.url)
    assert done.returncode == 0, done.stderr
    pid = node.data.absolute() / "pipelines" / "count" / "driver.pid"
    driver = int(pid.read_text())
    supervisor = int(Path(f"/proc/{driver}/stat").read_text().split()[3])
    epoch = shown(http)["epoch"]
    for victim in (driver, supervisor):
        before = len(contents(http, "out"))
        os.kill(victim, signal.SIGKILL)
        until(lambda before=before: len(contents(http, "out")) >= before + 3, "more batches", _S_MAX)
    until(lambda: shown(http)["epoch"] > epoch, "another start", _S_MAX)
    assert is_exact(contents(http, "out"))


def test_a_driver_of_an_older_run_is_refused(node: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it staged becomes visible by nobody's word: the node answers at once, with 412."""
    http = Http(node.url)
    make_stream(http)
    form = {"definition": {"name": "p", "file": "p.sql", "node": "n1"}, "text": '{"stream": "out"}'}
    http.call("POST", "/v1/pipelines", form)
    until(lambda: shown(http, "p")["epoch"] >= 2, "its start", _S_MAX)
    writer = Writer("other", [node.url], "out")
    staged = writer.stage(0, "a", [1_000_000])
    monkeypatch.setenv("MILLRACE_PIPELINE_RUN", "1:1")
    with pytest.raises(Exception, match="not the one that runs its pipeline any more"):
        writer.commit(0, a=staged)
    assert 1_000_000 not in contents(http, "out")
    monkeypatch.delenv("MILLRACE_PIPELINE_RUN")
    assert writer.commit(0, a=staged) is False


def run_three(test: Any, tmp_path: Path) -> None:
    options = ("--set", "pipelines.run=true", "--set", f"pipelines.python={interpreter(tmp_path)}")

    async def body() -> None:
        async with (
            asyncio.timeout(240),
            LocalCluster(3, tmp_path / "cluster", options=options) as cluster,
        ):
            await whole(cluster)
            await asyncio.to_thread(make_stream, Http(cluster.nodes[0].http_url))
            shared = tmp_path / "shared"
            definition = {"name": "count", "file": "count.sql", "checkpoints": f"file://{shared}"}
            form = {"definition": definition, "text": '{"stream": "out"}'}
            await asyncio.to_thread(Http(cluster.nodes[0].http_url).call, "POST", "/v1/pipelines", form)
            await test(cluster)

    asyncio.run(body())


async def owner(cluster: LocalCluster, apart_from: str = "", name: str = "count") -> NodeProcess:
    """The node that runs the pipeline, and says so."""
    found: list[NodeProcess] = []

    def look() -> bool:
        for node in cluster.nodes:
            if node.is_running and node.name != apart_from:
                # A node that is behind may not know of it yet.
                for row in Http(node.http_url).get("/v1/pipelines")["pipelines"]:
                    is_there = row["state"] == "running" and row["node"] not in ("", apart_from)
                    if row["name"] == name and is_there:
                        found.append(next(one for one in cluster.nodes if one.name == row["node"]))
                        return True
        return False

    await until_async(look, "an owner that runs it", 2 * _S_MAX)
    return found[0]


async def more(http: Http, count: int) -> None:
    before = len(await asyncio.to_thread(contents, http, "out"))
    await until_async(lambda: len(contents(http, "out")) >= before + count, "more batches", _S_MAX)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "freeze", "stop"])
def test_another_node_takes_over(tmp_path: Path, how: str) -> None:
    """The owner is killed, or stands still and comes to itself later, or stops as planned: another node goes
    on at the checkpoint. Every number is there once, at every node."""

    async def play(cluster: LocalCluster) -> None:
        first = await owner(cluster)
        other = next(node for node in cluster.nodes if node is not first)
        http = Http(other.http_url)
        await more(http, 5)
        if how == "kill":
            await first.kill()
        elif how == "stop":
            await first.stop()
        else:
            first.signal(signal.SIGSTOP)
        second = await owner(cluster, apart_from=first.name)
        assert second is not first
        await more(http, 5)
        if how == "freeze":
            first.signal(signal.SIGCONT)
        else:
            await first.start()
        await whole(cluster)
        await more(http, 5)
        assert (await owner(cluster)) is second
        await asyncio.to_thread(http.call, "POST", "/v1/pipelines/count/stop", {})
        for node in cluster.nodes:
            until_same = Http(node.http_url)
            await until_async(
                lambda http=until_same: shown(http)["state"] == "stopped", "the stop everywhere", _S_MAX
            )
        assert is_exact(await asyncio.to_thread(contents, http, "out"))

    run_three(play, tmp_path)
