"""`millrace stream`: which logs there are, what they take, and what they keep."""

from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer

from millrace.cli.common import AsJson, example, family, print_done, print_json, print_rows
from millrace.cli.http_options import DEFAULT, HttpUrl, door

app = family(
    "Streams: named sets of topic filters with one policy, each a log of its own. A topic belongs to the "
    "stream with the most specific filter; the stream 'default' takes the rest."
)


class Capture(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    ALL = "all"
    NONE = "none"


class Compression(StrEnum):
    NONE = "none"
    ZLIB = "zlib"


class Replication(StrEnum):
    QUORUM = "quorum"


Name = Annotated[str, typer.Argument(metavar="NAME")]
Shards = Annotated[int | None, typer.Option(min=1, help="Logs that share the topics, by hash.")]
Replicas = Annotated[int | None, typer.Option(min=1, help="Nodes that keep each log.")]
Kept = Annotated[Capture | None, typer.Option(help="What is logged: QoS 1, 2 and HTTP; all; nothing.")]
Age = Annotated[
    int | None, typer.Option("--retention-age", metavar="S", min=0, help="Seconds; 0 is for ever.")
]
Size = Annotated[
    int | None, typer.Option("--retention-bytes", metavar="B", min=0, help="Bytes of each log; 0 is any.")
]
Compressed = Annotated[Compression | None, typer.Option(help="How blocks are stored.")]
Function = Annotated[
    str | None,
    typer.Option(metavar="MODULE:FUNCTION", help="Deliver what this function makes of the messages."),
]
Replicated = Annotated[Replication | None, typer.Option(help="How the log is replicated.")]

_COLUMNS = ("name", "filters", "shards", "capture", "replication", "messages", "bytes")
_SHARD_COLUMNS = ("shard", "first_offset", "next_offset", "bytes", "sealed", "role", "term")


def _path(name: str) -> str:
    return f"/v1/streams/{quote(name, safe='')}"


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


@app.command(epilog=example("millrace stream create sensors 'sensors/#' --shards 4"))
def create(
    name: Name,
    filters: Annotated[list[str], typer.Argument(metavar="FILTER", help="Topic filters.")],
    shards: Shards = None,
    replicas: Replicas = None,
    capture: Kept = None,
    retention_age: Age = None,
    retention_bytes: Size = None,
    compression: Compressed = None,
    edge: Function = None,
    replication: Replicated = None,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Make a stream."""
    settings = _given(
        shards=shards,
        replicas=replicas,
        capture=capture,
        retention_age_s=retention_age,
        retention_bytes=retention_bytes,
        compression=compression,
        edge=edge,
        replication=replication,
    )
    made = door(url).call("POST", "/v1/streams", {"name": name, "filters": filters, **settings})
    numbers = ", ".join(str(row["shard"]) for row in made["shard_list"]) or "none"
    print_done(f"created stream {name}; shards: {numbers}", as_json=json, **made)


@app.command("list", epilog=example("millrace stream list --json"))
def list_(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show all streams."""
    rows = door(url).streams()
    if json:
        print_json(rows)
        return
    print_rows([_row(row) for row in rows], _COLUMNS, as_json=False)


@app.command(epilog=example("millrace stream show default"))
def show(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show a stream and its shards."""
    found = door(url).get(_path(name))
    if json:
        print_json(found)
        return
    rows = [{"what": key, "value": value} for key, value in found.items() if key != "shard_list"]
    print_rows(rows, ("what", "value"), as_json=False)
    print_rows(found["shard_list"], _SHARD_COLUMNS, as_json=False)


@app.command(epilog=example("millrace stream alter sensors --retention-age 3600"))
def alter(
    name: Name,
    filters: Annotated[
        list[str] | None, typer.Option("--filter", metavar="FILTER", help="In place of all filters.")
    ] = None,
    shards: Shards = None,
    replicas: Replicas = None,
    capture: Kept = None,
    retention_age: Age = None,
    retention_bytes: Size = None,
    compression: Compressed = None,
    edge: Function = None,
    replication: Replicated = None,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Change a stream. Other shards, filters or replication seal its shards and open new ones."""
    settings = _given(
        filters=filters or None,
        shards=shards,
        replicas=replicas,
        capture=capture,
        retention_age_s=retention_age,
        retention_bytes=retention_bytes,
        compression=compression,
        edge=edge,
        replication=replication,
    )
    changed = door(url).call("PATCH", _path(name), settings)
    print_done(f"changed stream {name}", as_json=json, **changed)


@app.command("reload-edge", epilog=example("millrace stream reload-edge"))
def reload_edge(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Load the edge functions of a node anew, after their files changed."""
    done = door(url).call("POST", "/v1/edge/reload", {})
    print_done(f"{done['reloaded']} edge functions are loaded anew", as_json=json, **done)


@app.command(epilog=example("millrace stream purge sensors", "millrace stream purge sensors --before 5000"))
def purge(
    name: Name,
    before: Annotated[int | None, typer.Option(metavar="OFFSET", min=0, help="Only what is below.")] = None,
    shard: Annotated[int | None, typer.Option(metavar="N", help="Only in this shard.")] = None,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Forget messages. Offsets go on counting."""
    purged = door(url).call("POST", f"{_path(name)}/purge", _given(before=before, shard=shard))
    print_done(f"purged stream {name}", as_json=json, **purged)


@app.command(epilog=example("millrace stream delete sensors"))
def delete(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Remove a stream with all messages in it."""
    door(url).call("DELETE", _path(name))
    print_done(f"deleted stream {name}", as_json=json, name=name)


def _row(stream: dict[str, Any]) -> dict[str, Any]:
    shards = stream["shard_list"]
    return {
        **stream,
        "filters": " ".join(stream["filters"]),
        "messages": sum(row["next_offset"] - row["first_offset"] for row in shards),
        "bytes": sum(row["bytes"] for row in shards),
    }
