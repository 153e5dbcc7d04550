"""`millrace pipeline`: run a Spark pipeline and keep it running, see how it goes, ask for a restart."""

import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from millrace.cli.shared.common import AsJson, example, family, print_done, print_json, print_rows
from millrace.cli.shared.contexts import http_urls
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, ask
from millrace.cli.shared.tables import printable, when

app = family("Run Spark pipelines over streams, supervised, and see how they go.")

_HOME = Path("~/.millrace/pipelines")
_COLUMNS = ("name", "state", "reported", "restarts", "rows", "lag", "error")
_OPTIONAL = ("error", "restarts", "reported")

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

    path = file.resolve()
    chosen = name or (path.parent.name if path.stem == "pipeline" else path.stem)
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
    """Show the pipelines that told the node of themselves."""
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


@app.command(epilog=example("millrace pipeline log averages"))
def log(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show the end of a driver's log, as its supervisor told it."""
    found = ask(url, f"/v1/pipelines/{quote(name, safe='')}/log", what=f"pipeline {name!r}")
    if json:
        print_json(found)
        return
    for line in found["lines"]:
        sys.stdout.write(printable(line) + "\n")


@app.command(epilog=example("millrace pipeline restart averages"))
def restart(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Ask the supervisor of a pipeline for another driver, which goes on at the checkpoint."""
    ask(url, f"/v1/pipelines/{quote(name, safe='')}/restart", what=f"pipeline {name!r}", method="POST")
    sentence = f"{name} is asked to restart; its supervisor hears of it within some seconds"
    print_done(sentence, as_json=json, name=name)
