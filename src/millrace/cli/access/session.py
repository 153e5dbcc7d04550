"""`millrace session`: what durable clients have waiting, whether they are here or away."""

from typing import Any
from urllib.parse import quote

from millrace.cli.access.client import FILTER_COLUMNS, FILTER_OPTIONAL, ClientId, Limit, Search
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

app = family("Durable sessions: subscriptions and waiting messages of clients, present or away.")

_COLUMNS = (
    "client_id", "user", "owner", "is_connected", "away_since", "expiry_s", "subscriptions", "queued",
    "has_will",
)  # fmt: skip
_OPTIONAL = ("has_will", "expiry_s", "user", "subscriptions", "away_since")


@app.command("list", epilog=example("millrace session list", "millrace session list --search sensor --json"))
def list_(search: Search = None, limit: Limit = 100, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show the durable sessions."""
    rows, missing = pages(url, "/v1/sessions", what="sessions", limit=limit, search=search)
    if json:
        print_json(rows)
    else:
        shown = [{**row, "away_since": when(row["away_since_us"])} for row in rows]
        print_rows(shown, _COLUMNS, as_json=False, optional=_OPTIONAL)
    print_missing(missing)


@app.command(epilog=example("millrace session show sensor-17"))
def show(client: ClientId, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show a session: its filters, and how far it has read each log."""
    found: dict[str, Any] = _get(url, client)
    if json:
        print_json(found)
        return
    filters, cursors = found.pop("filters", []), found.pop("cursors", [])
    print_facts({**found, "away_since_us": when(found["away_since_us"])})
    for rows, columns in ((filters, FILTER_COLUMNS), (cursors, ("shard", "offset", "lag"))):
        if rows:
            print_line()
            print_rows(rows, columns, as_json=False, optional=FILTER_OPTIONAL)


@app.command(epilog=example("millrace session delete sensor-17", "millrace session delete sensor-17 --yes"))
def delete(client: ClientId, yes: Yes = False, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """End a session at every node, with all that waits in it. A connected client is disconnected."""
    if not yes:
        queued = _get(url, client)["queued"]
        waits = "what waits in it" if queued is None else f"{queued:,} messages that wait in it"
        confirm(f"Delete the session of {client} with {waits}? They cannot be had back.", yes=False)
    ask(url, _path(client), method="DELETE", what=f"session {client!r}")
    print_done(f"deleted the session of {client}", as_json=json, client_id=client)


def _path(client: str) -> str:
    return f"/v1/sessions/{quote(client, safe='')}"


def _get(url: str, client: str) -> Any:
    return ask(url, _path(client), what=f"session {client!r}")
