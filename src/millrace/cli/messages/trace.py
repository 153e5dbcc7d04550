"""`millrace trace`: where does a message go."""

import sys
from typing import Annotated, Any

import typer

from millrace.cli.shared.common import (
    AsJson,
    example,
    print_json,
    print_line,
    print_missing,
    print_rows,
    single,
)
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, ask
from millrace.cli.shared.tables import print_facts, printable

app = single()


@app.command(epilog=example("millrace trace sensors/room1/temperature", "millrace trace --client sensor-17"))
def trace(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic of a message.")] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="ID", help="What this client receives instead.")
    ] = None,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Show which stream and shard keep a message of a topic, at which offset, and who receives it."""
    from millrace.errors import ConfigError

    if (topic is None) is (client is None):
        raise ConfigError("name a topic, or a client with --client")
    query = {"topic": topic} if topic is not None else {"client": client}
    found: Any = ask(url, "/v1/trace", what=f"the way of {topic or client!r}", **query)
    if json:
        print_json(found)
        return
    if client is not None:
        _show_receivers(found, f"client {client} has no filter: it receives nothing")
    else:
        _show_way(found)
    print_missing(found.get("missing", []))


def _show_way(way: dict[str, Any]) -> None:
    captured = [qos for qos, is_captured in way["is_captured"].items() if is_captured]
    names = ("topic", "stream", "replication", "shard", "leader", "next_offset")
    facts = {name: way[name] for name in names}
    facts["stored"] = f"with QoS {', '.join(captured)}" if captured else "not stored"
    facts["retained"] = way["retained"]
    print_facts(facts)
    print_line()
    _show_receivers(way, "nobody receives it: no session and no group has a filter that matches")


def _show_receivers(way: dict[str, Any], nobody: str) -> None:
    if way["receivers"]:
        columns = ("client_id", "node", "filter", "qos", "kind")
        print_rows(way["receivers"], columns, as_json=False, optional=("kind", "qos"))
    else:
        sys.stdout.write(f"{printable(nobody)}\n")
