"""`millrace group`: consumers that share one cursor, and collect while nobody is there."""

from typing import Annotated, Any
from urllib.parse import quote

import typer

from millrace.broker.groups.definitions import DurableGroupSpec, NewDurableGroup
from millrace.cli.shared.common import (
    AsJson,
    Yes,
    confirm,
    example,
    family,
    print_done,
    print_json,
    print_rows,
)
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, door
from millrace.cli.shared.option_groups import Given, asks_for
from millrace.cli.shared.tables import print_facts
from millrace.cli.streams.group_messages import ack, nack, take

app = family(
    "Durable groups: each message of the filters goes to one member, and waits while nobody is there, until "
    "the group is deleted. The HTTP queue of a topic is the group queue:TOPIC."
)

Name = Annotated[str, typer.Argument(metavar="NAME")]

# `lag` is named for what it is: messages of other topics are counted in until somebody has looked at them.
_AT_MOST = "lag at most"
_COLUMNS = ("name", "filters", _AT_MOST, "in_flight", "deliveries_max", "dead_letter")
_SHARD_COLUMNS = (
    "shard",
    "stream",
    "position",
    "next_offset",
    "lag",
    "in_flight",
    "delayed",
    "dead",
    "missed",
)


def _waiting(group: dict[str, Any]) -> str:
    return f"{group['lag']:,} messages wait in it and {group['in_flight']:,} are with its members"


def _at_most(count: int) -> str:
    return f"at most {count}"


def _path(name: str) -> str:
    return f"/v1/groups/{quote(name, safe='/:')}"


@app.command(epilog=example("millrace group create workers 'jobs/#' --deliveries 5 --dead-letter dead/jobs"))
@asks_for(NewDurableGroup, without=("name", "filters"))
def create(
    name: Name,
    filters: Annotated[list[str], typer.Argument(metavar="FILTER", help="Topic filters.")],
    given: Given,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Make a group."""
    made = door(url).call("POST", "/v1/groups", {"name": name, "filters": filters, **given})
    print_done(f"created group {name}", as_json=json, **made)


@app.command(epilog=example("millrace group alter workers --filter 'jobs/#' --filter 'tasks/#'"))
@asks_for(DurableGroupSpec, without=("name",), at_least_one=True)
def alter(name: Name, given: Given, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Change a group; where it is in the logs stays."""
    changed = door(url).call("PATCH", _path(name), given)
    print_done(f"changed group {name}", as_json=json, **changed)


@app.command("list", epilog=example("millrace group list --json"))
def list_(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show all groups. Each has at most so many messages that are not done; `group show` counts exactly."""
    rows = door(url).get("/v1/groups")["groups"]
    if json:
        print_json(rows)
        return
    shown = [{**row, _AT_MOST: row["lag"]} for row in rows]
    print_rows(shown, _COLUMNS, as_json=False, optional=("deliveries_max", "dead_letter"))


@app.command(epilog=example("millrace group show workers", "millrace group show queue:orders"))
def show(name: Name, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show a group, with its lag in every shard."""
    found = door(url).get(_path(name))
    if json:
        print_json(found)
        return
    rows = [
        shard if shard["lag_is_exact"] else {**shard, "lag": _at_most(shard["lag"])}
        for shard in found["shards"]
    ]
    is_exact = all(shard["lag_is_exact"] for shard in found["shards"])
    facts = {**found, "lag": found["lag"] if is_exact else _at_most(found["lag"])}
    print_facts({key: value for key, value in facts.items() if key != "shards"})
    print_rows(rows, _SHARD_COLUMNS, as_json=False, optional=("missed", "dead", "delayed"))


@app.command(
    epilog=example("millrace group reset workers --to earliest", "millrace group reset workers --to 500")
)
def reset(
    name: Name,
    to: Annotated[str, typer.Option(metavar="earliest|latest|OFFSET", help="Where to begin again.")],
    yes: Yes = False,
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Begin again somewhere; what members have and did not acknowledge is forgotten."""
    where: int | str = int(to) if to.isascii() and to.isdigit() else to
    if not isinstance(where, int) and where not in ("earliest", "latest"):
        raise typer.BadParameter(f"{to!r} is not earliest, latest or an offset", param_hint="--to")
    if not yes:
        found = door(url).get(_path(name))
        confirm(f"Let group {name} begin again at {to}? {_waiting(found)}.", yes=False)
    found = door(url).call("POST", f"{_path(name)}/reset", {"to": where})
    print_done(f"group {name} begins again at {to}", as_json=json, **found)


@app.command(epilog=example("millrace group delete workers"))
def delete(name: Name, yes: Yes = False, url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Remove a group; the messages stay in their logs."""
    if not yes:
        found = door(url).get(_path(name))
        confirm(f"Delete group {name}? {_waiting(found)}, and nobody will know what was read.", yes=False)
    door(url).call("DELETE", _path(name))
    print_done(f"deleted group {name}", as_json=json, name=name)


app.command(
    epilog=example("millrace group take workers --count 10 --wait 5s", "millrace group take workers --ack")
)(take)
app.command(epilog=example("millrace group ack workers RECEIPT"))(ack)
app.command(epilog=example("millrace group nack workers RECEIPT --delay 30s"))(nack)
