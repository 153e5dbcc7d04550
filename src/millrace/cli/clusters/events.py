"""`millrace events`: what happened in the cluster."""

import json as encoding
import sys
import textwrap
import time
from typing import Annotated, Any

import typer

from millrace.cli.shared.common import AsJson, example, print_missing, single
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, ask
from millrace.cli.shared.tables import printable, when, width

app = single()

_POLL_S = 1.0
_SEEN_MAX = 20_000
# A long text goes on below where it began.
_INDENT = " " * 36


@app.command(
    epilog=example(
        "millrace events", "millrace events -f --kind election", "millrace events --node n2 --json"
    )
)
def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on and show new lines as they come.")
    ] = False,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help="Such as election, join, client, storage.")
    ] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Only of this node.")] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", metavar="N", min=1, max=1000, help="Begin with so many of the newest lines."
        ),
    ] = 50,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Show elections, joins, faults and refusals, the newest at the end. --json: an object in each line."""
    query: dict[str, Any] = {"kind": kind, "node": node}
    seen: dict[str, None] = {}
    try:
        while True:
            page = ask(url, "/v1/events", what="events", limit=1000 if seen else limit, **query)
            for event in reversed(page["items"]):
                if event["id"] not in seen:
                    seen[event["id"]] = None
                    _write(event, json)
            sys.stdout.flush()
            if not follow:
                print_missing(page.get("missing", []))
                return
            while len(seen) > _SEEN_MAX:
                del seen[next(iter(seen))]
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _write(event: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(encoding.dumps(event, ensure_ascii=False) + "\n")
        return
    mark = "" if event["severity"] == "info" else f"{event['severity']}: "
    text = printable(f"{event['node']:5} {event['kind']:9} {mark}{event['text']}")
    line = f"{when(event['time_us'])} {text}"
    fits = width()
    if fits is not None:
        line = textwrap.fill(line, fits, subsequent_indent=_INDENT, break_long_words=False)
    sys.stdout.write(f"{line}\n")
