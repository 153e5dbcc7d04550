"""`millrace node`: the nodes of a cluster."""

from typing import Annotated

import typer

from millrace.cli.common import AsJson, example, family, print_done, print_json, print_rows
from millrace.cli.http_options import DEFAULT, HttpUrl, door

app = family("Nodes of the cluster.")

_COLUMNS = ("node", "state", "leads_meta", "mqtt", "http", "peer")


@app.command(
    "list", epilog=example("millrace node list", "millrace node list --url http://127.0.0.1:18831 --json")
)
def list_(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show the nodes: up, suspect, unreachable or draining."""
    answer = door(url).get("/v1/cluster")
    if json:
        print_json(answer)
    else:
        print_rows(answer["members"], _COLUMNS, as_json=False)


@app.command(epilog=example("millrace node drain n3", "millrace node drain n3 --undo"))
def drain(
    name: Annotated[str, typer.Argument(help="Name of the node.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take part again.")] = False,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Move everything off a node before it is stopped for good."""
    door(url).call("POST", f"/v1/cluster/nodes/{name}/drain", {"draining": not undo})
    print_done(
        f"{name} {'takes part again' if undo else 'is draining'}", as_json=json, node=name, draining=not undo
    )


@app.command(epilog=example("millrace node remove n3"))
def remove(
    name: Annotated[str, typer.Argument(help="Name of the node.")],
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Take a node out of the cluster, whether it is up or gone. The quorum never shrinks by itself."""
    door(url).call("DELETE", f"/v1/cluster/nodes/{name}")
    print_done(f"{name} is removed", as_json=json, node=name)
