"""`millrace stream`: which logs there are, what they take, and what they keep."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from millrace.broker.streams.stream import StreamSpec
from millrace.cli.shared.common import (
    AsJson,
    Yes,
    confirm,
    example,
    family,
    print_done,
    print_json,
    print_line,
    print_rows,
    print_warning,
)
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, door
from millrace.cli.shared.option_groups import Given, asks_for
from millrace.cli.shared.tables import print_facts

app = family(
    "Streams: named sets of topic filters with one policy, each a log of its own. A topic belongs to the "
    "stream with the most specific filter; the stream 'default' takes the rest."
)


Name = Annotated[str, typer.Argument(metavar="NAME")]
_COLUMNS = ("name", "filters", "shards", "capture", "replication", "messages", "bytes")
_SHARD_COLUMNS = ("shard", "first_offset", "next_offset", "bytes", "staged_bytes", "sealed", "role", "term")
_PAIR_COLUMNS = ("primary", "backup", "in_sync")
_MEASURED_COLUMNS = ("what", "p99_ms", "bound_ms", "late", "of", "alert")
_COUNTED_COLUMNS = ("shard", "queued", "overloaded", "copies", "uncopied", "stored", "dropped", "recovered")
_CLASS_COLUMNS = ("filter", "T", "D", "L", "N", "dispatch_ms", "replicate_ms", "replicated", "why")


def _path(name: str) -> str:
    return f"/v1/streams/{quote(name, safe='')}"


@app.command(epilog=example("millrace stream create sensors 'sensors/#' --shards 4 --retention-age 7d"))
@asks_for(StreamSpec, without=("name", "filters"))
def create(
    name: Name,
    filters: Annotated[list[str], typer.Argument(metavar="FILTER", help="Topic filters.")],
    given: Given,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Make a stream."""
    made = door(url).call("POST", "/v1/streams", {"name": name, "filters": filters, **given})
    _warn(made)
    numbers = ", ".join(str(row["shard"]) for row in made["shard_list"]) or "none"
    print_done(f"created stream {name}; shards: {numbers}", as_json=json, **made)


@app.command("list", epilog=example("millrace stream list --json"))
def list_(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show all streams."""
    rows = door(url).streams()
    if json:
        print_json(rows)
        return
    print_rows([_row(row) for row in rows], _COLUMNS, as_json=False, optional=("capture", "shards", "bytes"))


@app.command(epilog=example("millrace stream show default"))
def show(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show a stream and its shards."""
    found = door(url).get(_path(name))
    if json:
        print_json(found)
        return
    _warn(found)
    classes = found.pop("topic_classes", None)
    is_pair = found.pop("primary_backup", None)
    if is_pair is not None:
        found |= {key: value for key, value in is_pair.items() if key != "topics"}
    print_facts({key: value for key, value in found.items() if key not in ("shard_list", "warnings")})
    print_line()
    columns = _SHARD_COLUMNS + (_PAIR_COLUMNS if is_pair else ())
    if any("origin" in row for row in found["shard_list"]):
        # Each log of a leaderless stream belongs to the node that writes it.
        columns = ("shard", "node", *_SHARD_COLUMNS[1:])
        found["shard_list"] = [{**row, "node": row.get("origin", "")} for row in found["shard_list"]]
    print_rows(found["shard_list"], columns, as_json=False, optional=("staged_bytes", "term", "sealed"))
    if classes:
        print_rows([_class_row(row) for row in classes], _CLASS_COLUMNS, as_json=False, optional=("why",))
    for row in found["shard_list"]:
        if "measured" in row:
            print_rows([row], _COUNTED_COLUMNS, as_json=False)
            print_rows(row["measured"], _MEASURED_COLUMNS, as_json=False)


@app.command(
    epilog=example(
        "millrace stream alter sensors --retention-age 1h30m --retention-bytes 10GB",
        "millrace stream alter sensors --replication routed --yes",
    )
)
@asks_for(StreamSpec, without=("name",), at_least_one=True)
def alter(
    name: Name,
    given: Given,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Change a stream. Other shards, filters or replication seal its shards and open new ones. What another
    replication means for offsets is said first, and asked about."""
    if "replication" in given and not yes:
        means = door(url).call("PATCH", f"{_path(name)}?preview=true", given)["means"]
        for line in means:
            typer.echo(f"- {line}", err=True)
        if means:
            confirm(f"Change stream {name}?", yes=False)
    changed = door(url).call("PATCH", _path(name), given)
    _warn(changed)
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
    yes: Yes = False,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Remove stored messages. Offsets go on counting."""
    if not yes:
        rows = [row for row in door(url).get(_path(name))["shard_list"] if shard in (None, row["shard"])]
        confirm(f"Purge {_messages(rows, before)} of stream {name}? They cannot be had back.", yes=False)
    purged = door(url).call("POST", f"{_path(name)}/purge", {"before": before, "shard": shard})
    print_done(f"purged stream {name}", as_json=json, **purged)


@app.command(epilog=example("millrace stream delete sensors", "millrace stream delete sensors --yes"))
def delete(name: Name, yes: Yes = False, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Remove a stream with all messages in it."""
    if not yes:
        count = _messages(door(url).get(_path(name))["shard_list"])
        confirm(f"Delete stream {name} with {count} in it? They cannot be had back.", yes=False)
    door(url).call("DELETE", _path(name))
    print_done(f"deleted stream {name}", as_json=json, name=name)


def _warn(stream: dict[str, Any]) -> None:
    for text in stream.get("warnings", ()):
        print_warning(text)


def _messages(shards: list[dict[str, Any]], before: int | None = None) -> str:
    """How many messages there are, below an offset if one is named."""
    ends = [(row["first_offset"], row["next_offset"]) for row in shards]
    count = sum(max(0, (end if before is None else min(end, before)) - first) for first, end in ends)
    return f"{count:,} message{'' if count == 1 else 's'}"


def _row(stream: dict[str, Any]) -> dict[str, Any]:
    shards = stream["shard_list"]
    return {
        **stream,
        "filters": " ".join(stream["filters"]),
        "messages": sum(row["next_offset"] - row["first_offset"] for row in shards),
        "bytes": sum(row["bytes"] for row in shards),
    }


def _class_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **row,
        "T": row["period_ms"],
        "D": row["deadline_ms"],
        "L": "inf" if row["loss_tolerance"] is None else row["loss_tolerance"],
        "N": row["retention"],
        "replicate_ms": "-" if row["replicate_ms"] is None else row["replicate_ms"],
        "replicated": "yes" if row["is_replicated"] else "no",
    }


@app.command(epilog=example("millrace stream switch alarms"))
def switch(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Planned switch-over of a primary-backup stream: the backup becomes primary."""
    done = door(url).call("POST", f"{_path(name)}/switch", {})
    print_done(f"switched stream {name} over", as_json=json, **done)
