"""`millrace node`: the nodes of a cluster."""

from typing import Annotated, Any

import typer

from millrace.cli.common import AsJson, example, family, print_done, print_json, print_rows

app = family("Nodes of the cluster.")

Url = Annotated[str, typer.Option(help="HTTP address of any node.")]
_DEFAULT_URL = "http://127.0.0.1:18831"
_COLUMNS = ("node", "state", "leads_meta", "mqtt", "http", "peer")


def _call(url: str, method: str, path: str, body: Any = None) -> Any:
    from millrace.client.http import Http

    return Http(url).call(method, path, body)


@app.command(
    "list", epilog=example("millrace node list", "millrace node list --url http://127.0.0.1:18831 --json")
)
def list_(url: Url = _DEFAULT_URL, json: AsJson = False) -> None:
    """Show the nodes: up, suspect, unreachable or draining."""
    answer = _call(url, "GET", "/v1/cluster")
    if json:
        print_json(answer)
    else:
        print_rows(answer["members"], _COLUMNS, as_json=False)


@app.command(epilog=example("millrace node drain n3", "millrace node drain n3 --undo"))
def drain(
    name: Annotated[str, typer.Argument(help="Name of the node.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it take part again.")] = False,
    url: Url = _DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Move everything off a node before it is stopped for good."""
    _call(url, "POST", f"/v1/cluster/nodes/{name}/drain", {"draining": not undo})
    print_done(
        f"{name} {'takes part again' if undo else 'is draining'}", as_json=json, node=name, draining=not undo
    )


@app.command(epilog=example("millrace node remove n3"))
def remove(
    name: Annotated[str, typer.Argument(help="Name of the node.")],
    url: Url = _DEFAULT_URL,
    json: AsJson = False,
) -> None:
    """Take a node out of the cluster, whether it is up or gone. The quorum never shrinks by itself."""
    _call(url, "DELETE", f"/v1/cluster/nodes/{name}")
    print_done(f"{name} is removed", as_json=json, node=name)
