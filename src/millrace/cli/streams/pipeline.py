"""`millrace pipeline`: run a Spark pipeline here or let the cluster run it, see how it goes, steer it."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from millrace.broker.meta.pipelines import PipelineSpec
from millrace.cli.shared.common import (
    AsJson,
    Yes,
    confirm,
    example,
    family,
    print_done,
    print_json,
    print_rows,
    print_warning,
)
from millrace.cli.shared.contexts import http_urls
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, ask, door
from millrace.cli.shared.option_groups import Given, asks_for
from millrace.cli.shared.tables import print_facts, printable, when
from millrace.errors import ConfigError, LocalError

app = family(
    "Spark pipelines over streams: run one in this terminal (run), or give it to the cluster (create), which "
    "runs it on one of its nodes whoever dies."
)

_HOME = Path("~/.millrace/pipelines")
_COLUMNS = ("name", "state", "node", "reported", "restarts", "rows", "lag", "error")
_OPTIONAL = ("error", "restarts", "reported", "node")
_QUERY_COLUMNS = ("name", "batch", "rows", "rows_per_s", "lag")
_OUTCOME_S = 180.0
_LOOK_S = 0.3

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the pipeline.")]


@app.command(
    epilog=example(
        "millrace pipeline run examples/pipelines/telemetry/pipeline.py --set tables=/tmp/telemetry",
        "millrace pipeline run wordcount.sql --once",
        "millrace pipeline run my-declarative-project/ --master spark://head:7077",
    )
)
def run(
    file: Annotated[Path, typer.Argument(help="A .py file with build(flow), a .sql file, or a project.")],
    name: Annotated[str, typer.Option("--name", help="Its name; by default that of the file.")] = "",
    url: HttpUrl = DEFAULT,
    master: Annotated[str, typer.Option("--master", help="Where Spark runs.")] = "local[*]",
    once: Annotated[bool, typer.Option("--once", help="Read what is there, then end.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the pipeline.")
    ] = None,
    conf: Annotated[
        list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help=f"Checkpoints and log ({_HOME}/NAME).")
    ] = None,
    checkpoints: Annotated[
        str | None, typer.Option("--checkpoints", metavar="URI", help="Checkpoints elsewhere, for a cluster.")
    ] = None,
    trigger: Annotated[
        str,
        typer.Option("--trigger", metavar="TIME", help="How often to look for new messages: 500ms, 2s, 1m."),
    ] = "2s",
    ui: Annotated[
        int | None, typer.Option("--ui", metavar="PORT", min=1, max=65535, help="Serve Spark's pages there.")
    ] = None,
    starts: Annotated[
        int, typer.Option("--starts", min=1, help="Give up after so many starts without a finished batch.")
    ] = 5,
) -> None:
    """Run a pipeline until it is stopped; start it again when it dies. Exit status 1 when it gives up."""
    from millrace.spark.supervisor import Plan
    from millrace.spark.terminal import run_in_terminal

    chosen = name or _name_of(file)
    plan = Plan(
        name=chosen,
        file=file,
        state=state or _HOME.expanduser() / chosen,
        urls=",".join(http_urls(url)),
        master=master,
        checkpoints=checkpoints,
        settings=tuple(settings or ()),
        configuration=tuple(conf or ()),
        is_once=once,
        trigger=trigger,
        ui_port=ui,
        starts_max=starts,
    )
    run_in_terminal(plan)


@app.command("list", epilog=example("millrace pipeline list", "millrace pipeline list --json"))
def list_(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show all pipelines: those of the cluster, and those that told the node of themselves."""
    found = ask(url, "/v1/pipelines", what="pipelines")["pipelines"]
    if json:
        print_json(found)
        return
    rows = [
        {
            **row,
            "reported": when(row["time_us"]),
            "rows": sum(query["rows"] for query in row["queries"]),
            "lag": sum(query["lag"] or 0 for query in row["queries"]),
        }
        for row in found
    ]
    print_rows(rows, _COLUMNS, as_json=False, optional=_OPTIONAL)


@app.command(epilog=example("millrace pipeline show averages"))
def show(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show one pipeline: where it runs, how its queries go, and to administrators how it is run."""
    found = ask(url, _path(name), what=f"pipeline {name!r}")
    if json:
        print_json(found)
        return
    queries, definition = found.pop("queries"), found.pop("definition", None) or {}
    text = found.pop("text", None)
    facts = {**definition, **found, "reported": when(found["time_us"])}
    for hidden in ("time_us", "restart"):
        facts.pop(hidden, None)
    print_facts({key: value for key, value in facts.items() if value not in ("", [], None)})
    print_rows(queries, _QUERY_COLUMNS, as_json=False)
    if text:
        sys.stdout.write("\n" + "\n".join(printable(line) for line in text.splitlines()) + "\n")


@app.command(epilog=example("millrace pipeline logs averages"))
def logs(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show the end of a driver's log, as its supervisor told it."""
    found = ask(url, f"{_path(name)}/log", what=f"pipeline {name!r}")
    if json:
        print_json(found)
        return
    for line in found["lines"]:
        sys.stdout.write(printable(line) + "\n")


@app.command(
    epilog=example(
        "millrace pipeline create averages.sql --node n1",
        "millrace pipeline create copy.py --checkpoints s3a://bucket/checkpoints --master spark://head:7077",
    )
)
@asks_for(PipelineSpec, without=("name", "file"))
def create(
    file: Annotated[Path, typer.Argument(help="A .py file with build(flow), or a .sql file.")],
    given: Given,
    name: Annotated[str, typer.Option("--name", help="Its name; by default that of the file.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until its queries run, or cannot.")
    ] = True,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Let the cluster run a pipeline, on a node whose configuration allows it (pipelines.run). It goes on
    without this terminal, and elsewhere when that node dies. A pipeline that cannot begin is not kept."""
    chosen = name or _name_of(file)
    definition = {"name": chosen, "file": file.name, **given}
    made = door(url).call("POST", "/v1/pipelines", {"definition": definition, "text": _text(file)})
    if wait:
        made = _outcome(url, chosen, made["version"])
        if made["state"] == "failed":
            ask(url, _path(chosen), what=f"pipeline {chosen!r}", method="DELETE")
            raise ConfigError(f"pipeline {chosen} was not created: {made['error']}")
    _print_outcome("created", made, as_json=json)


@app.command(epilog=example("millrace pipeline upgrade averages averages.sql"))
@asks_for(PipelineSpec, without=("name", "file"))
def upgrade(
    name: Name,
    file: Annotated[Path, typer.Argument(help="Its file from now on.")],
    given: Given,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until its queries run, or cannot.")
    ] = True,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Give a pipeline of the cluster another file; another driver goes on with it at the checkpoints."""
    form = {"definition": {"file": file.name, **given}, "text": _text(file)}
    made = door(url).call("POST", f"{_path(name)}/upgrade", form)
    if wait and made["state"] != "stopped":
        made = _outcome(url, name, made["version"])
        if made["state"] == "failed":
            raise ConfigError(f"pipeline {name} was upgraded and does not run: {made['error']}")
    _print_outcome("upgraded", made, as_json=json)


@app.command(epilog=example("millrace pipeline restart averages"))
def restart(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Start another driver, which goes on at the checkpoint; also after a stop, or a failure."""
    found = ask(url, f"{_path(name)}/restart", what=f"pipeline {name!r}", method="POST")
    sentence = f"{name} is started again"
    if not found.get("is_declared"):
        sentence = f"{name} is asked to restart; its supervisor hears of it within some seconds"
    print_done(sentence, as_json=json, name=name)


@app.command(epilog=example("millrace pipeline stop averages"))
def stop(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Stop a pipeline of the cluster until it is restarted."""
    ask(url, f"{_path(name)}/stop", what=f"pipeline {name!r}", method="POST")
    print_done(f"{name} is stopped", as_json=json, name=name)


@app.command(epilog=example("millrace pipeline reset averages"))
def reset(name: Name, url: HttpUrl = DEFAULT, yes: Yes = False, json: AsJson = False) -> None:
    """Let a stopped pipeline of the cluster begin anew, without its checkpoints, when it is restarted."""
    confirm(f"Reset {name}? It will read everything again, and write it again.", yes=yes)
    ask(url, f"{_path(name)}/reset", what=f"pipeline {name!r}", method="POST")
    sentence = f"{name} begins anew when it is started: millrace pipeline restart {name}"
    print_done(sentence, as_json=json, name=name)


@app.command(epilog=example("millrace pipeline delete averages"))
def delete(name: Name, url: HttpUrl = DEFAULT, yes: Yes = False, json: AsJson = False) -> None:
    """Stop a pipeline of the cluster and delete it; its checkpoints stay. Of others, forget the report."""
    confirm(f"Delete pipeline {name}?", yes=yes)
    ask(url, _path(name), what=f"pipeline {name!r}", method="DELETE")
    print_done(f"{name} is deleted", as_json=json, name=name)


def _path(name: str) -> str:
    return f"/v1/pipelines/{quote(name, safe='')}"


def _name_of(file: Path) -> str:
    path = file.resolve()
    return path.parent.name if path.stem == "pipeline" else path.stem


def _text(file: Path) -> str:
    """What stands in the file; ConfigError for one that cannot run."""
    from millrace.spark.supervisor import check_file

    check_file(file)
    if file.is_dir():
        raise ConfigError(f"{file} is a directory: the cluster takes a .py or .sql file")
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def _outcome(url: str, name: str, version: int) -> dict[str, Any]:
    """How the pipeline is once this version of it runs, or cannot."""
    deadline_s = time.monotonic() + _OUTCOME_S
    while True:
        found: dict[str, Any] = ask(url, _path(name), what=f"pipeline {name!r}")
        if found["version"] != version:
            raise LocalError(f"pipeline {name} was changed meanwhile by somebody else")
        if found["state"] in ("running", "failed", "stopped") or time.monotonic() > deadline_s:
            return found
        time.sleep(_LOOK_S)


def _print_outcome(what: str, made: dict[str, Any], *, as_json: bool) -> None:
    where = f" on {made['node']}" if made["node"] else ""
    print_done(f"{what} pipeline {made['name']}; it is {made['state']}{where}", as_json=as_json, **made)
    if made["error"] and not as_json:
        print_warning(made["error"])
