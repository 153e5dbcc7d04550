"""`millrace trace`: where does a message go."""

import sys
from typing import Annotated, Any

import typer

from millrace.cli.common import AsJson, example, print_json, print_line, print_rows, single
from millrace.cli.http_options import DEFAULT, HttpUrl, ask
from millrace.cli.tables import print_facts

app = single()


@app.command(epilog=example("millrace trace sensors/room1/temperature", "millrace trace --client sensor-17"))
def trace(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="The topic of a message.")] = None,
    client: Annotated[
        str | None, typer.Option("--client", metavar="ID", help="The messages of this client instead.")
    ] = None,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Show for a topic which stream and shard keep a message, at which offset, and who receives it."""
    from millrace.errors import ConfigError

    if (topic is None) is (client is None):
        raise ConfigError("name a topic, or a client with --client")
    query = {"topic": topic} if topic is not None else {"client": client}
    found: Any = ask(url, "/v1/trace", what=f"the way of {topic or client!r}", **query)
    if json:
        print_json(found)
        return
    for number, way in enumerate(found if isinstance(found, list) else found.get("topics") or [found]):
        if number:
            print_line()
        _show(way)


def _show(way: dict[str, Any]) -> None:
    captured = [qos for qos, is_captured in way.get("is_captured", {}).items() if is_captured]
    facts = {
        name: way.get(name) for name in ("topic", "stream", "replication", "shard", "leader", "next_offset")
    }
    facts["stored"] = f"with QoS {', '.join(captured)}" if captured else "not stored"
    facts["retained"] = way.get("retained")
    print_facts(facts)
    receivers = way.get("receivers", [])
    print_line()
    if receivers:
        print_rows(
            receivers, ("client_id", "node", "filter", "qos", "kind"), as_json=False, optional=("kind", "qos")
        )
    else:
        sys.stdout.write("nobody receives it: no session and no group has a filter that matches\n")
