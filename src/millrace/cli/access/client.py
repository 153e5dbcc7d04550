"""`millrace client`: who is connected, and to which node."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from millrace.cli.shared.common import (
    AsJson,
    Yes,
    confirm,
    example,
    family,
    print_done,
    print_json,
    print_line,
    print_missing,
    print_rows,
)
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, ask, pages
from millrace.cli.shared.tables import print_facts, when

app = family("Clients that are connected, at any node.")

ClientId = Annotated[str, typer.Argument(metavar="CLIENT", help="Client id.")]
Search = Annotated[str | None, typer.Option("--search", metavar="TEXT", help="Only where this occurs.")]
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="At most so many.")]

_COLUMNS = (
    "client_id", "user", "node", "address", "door", "protocol", "connected", "subscriptions", "in_flight",
    "queued",
)  # fmt: skip
_OPTIONAL = ("protocol", "in_flight", "door", "connected", "subscriptions", "user")
FILTER_COLUMNS = (
    "filter",
    "qos",
    "group",
    "no_local",
    "retain_as_published",
    "retain_handling",
    "identifier",
)
FILTER_OPTIONAL = ("identifier", "retain_handling", "retain_as_published", "no_local")


@app.command("list", epilog=example("millrace client list", "millrace client list --search sensor --node n2"))
def list_(
    search: Search = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Only at this node.")] = None,
    limit: Limit = 100,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Show the clients."""
    rows, missing = pages(url, "/v1/clients", what="clients", limit=limit, search=search, node=node)
    if json:
        print_json(rows)
    else:
        shown = [{**row, "connected": when(row["connected_us"])} for row in rows]
        print_rows(shown, _COLUMNS, as_json=False, optional=_OPTIONAL)
    print_missing(missing)


@app.command(epilog=example("millrace client show sensor-17"))
def show(client: ClientId, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show a client and what it subscribed to."""
    found: dict[str, Any] = ask(url, _path(client), what=f"client {client!r}")
    if json:
        print_json(found)
        return
    filters = found.pop("filters", [])
    print_facts({**found, "connected_us": when(found["connected_us"])})
    if filters:
        print_line()
        print_rows(filters, FILTER_COLUMNS, as_json=False, optional=FILTER_OPTIONAL)


@app.command(epilog=example("millrace client kick sensor-17 --yes"))
def kick(client: ClientId, yes: Yes = False, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Disconnect a client; it may come back, and finds its session as it was."""
    confirm(f"Disconnect client {client}?", yes=yes)
    ask(url, f"{_path(client)}/disconnect", method="POST", what=f"client {client!r}")
    print_done(f"disconnected client {client}", as_json=json, client_id=client)


def _path(client: str) -> str:
    return f"/v1/clients/{quote(client, safe='')}"
