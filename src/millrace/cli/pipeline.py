"""`millrace pipeline`: run a Spark pipeline and keep it running."""

from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.common import example, family
from millrace.cli.contexts import http_urls
from millrace.cli.http_options import DEFAULT, HttpUrl

app = family("Run Spark pipelines over streams, supervised.")

_HOME = Path("~/.millrace/pipelines")


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
