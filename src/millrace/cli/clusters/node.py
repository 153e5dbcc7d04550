"""`millrace node`: the nodes of a cluster."""

import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.shared.common import (
    AsJson,
    Yes,
    confirm,
    duration_s,
    example,
    family,
    print_done,
    print_json,
    print_rows,
)
from millrace.cli.shared.http_options import DEFAULT, HttpUrl, door

if TYPE_CHECKING:
    from millrace.node.recovery.force_quorum import ForcedReport

app = family("Nodes of the cluster.")

_COLUMNS = ("node", "state", "leads_meta", "leads", "host", "mqtt", "http", "peer")
_POLL_S = 0.5
_REMOVE_S = 60.0


@app.command(
    "list", epilog=example("millrace node list", "millrace node list --url http://127.0.0.1:18831 --json")
)
def list_(url: HttpUrl = DEFAULT, json: AsJson = False) -> None:
    """Show the nodes: up, suspect, unreachable or draining."""
    answer = door(url).get("/v1/cluster")
    if json:
        print_json(answer)
    else:
        print_rows(answer["members"], _COLUMNS, as_json=False, optional=("host", "peer", "leads", "mqtt"))


@app.command(
    epilog=example(
        "millrace node drain n3 --wait",
        "millrace node drain n3 --wait --timeout 10m",
        "millrace node drain n3 --undo",
    )
)
def drain(
    name: Annotated[str, typer.Argument(help="Name of the node.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let the node take part again.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the node leads no group and has no vote in any.")
    ] = False,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="TIME", help="With --wait: how long to wait at most.")
    ] = "10m",
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Move everything off a node before it is stopped for good."""
    timeout_s = duration_s(timeout)
    nodes = door(url)
    nodes.call("POST", f"/v1/cluster/nodes/{name}/drain", {"draining": not undo})
    if wait and not undo:
        _wait_until_empty(nodes, name, timeout_s)
        print_done(
            f"{name} is empty and can be stopped", as_json=json, node=name, draining=True, is_empty=True
        )
        return
    print_done(
        f"{name} {'takes part again' if undo else 'is draining'}", as_json=json, node=name, draining=not undo
    )


def _wait_until_empty(nodes: Any, name: str, timeout_s: float) -> None:
    """Say how much is left on the node until nothing is. LocalError when the time is over."""
    from millrace.errors import LocalError

    end_s, said = time.monotonic() + timeout_s, ""
    while True:
        answer = nodes.get("/v1/cluster")
        leads = sum(row["leads"] for row in answer["members"] if row["node"] == name)
        votes = sum(name in row["voters"] for row in answer["groups"])
        if not leads and not votes:
            return
        words = f"{name} leads {leads} and votes in {votes} replication groups"
        if time.monotonic() > end_s:
            raise LocalError(f"not within {timeout_s:g} s: {words}; it goes on draining")
        if words != said:
            said = words
            sys.stderr.write(f"{words}\n")
        time.sleep(_POLL_S)


Now = Annotated[
    bool,
    typer.Option("--now", help="Remove a node that is up without draining it first."),
]
Timeout = Annotated[
    str, typer.Option("--timeout", metavar="TIME", help="How long to drain the node at most.")
]


@app.command(
    epilog=example(
        "millrace node remove n3", "millrace node remove n3 --yes", "millrace node remove n3 --now"
    )
)
def remove(
    name: Annotated[str, typer.Argument(help="Name of the node.")],
    yes: Yes = False,
    now: Now = False,
    timeout: Timeout = "10m",
    url: HttpUrl = DEFAULT,
    json: AsJson = False,
) -> None:
    """Take a node out of the cluster for good, whether it is up or gone. A node that is up is drained first,
    and its clients are sent to the other nodes. The quorum never shrinks by itself."""
    take_out(door(url), name, yes=yes, now=now, timeout_s=duration_s(timeout))
    print_done(f"{name} is removed", as_json=json, node=name)


def take_out(nodes: Any, name: str, *, yes: bool, now: bool, timeout_s: float) -> None:
    """Ask, drain the node if it is up and has anything that others can take, and remove it."""
    from millrace.errors import LocalError

    members = {row["node"]: row for row in nodes.get("/v1/cluster")["members"]}
    row = members.get(name, {})
    is_up = row.get("state") in ("up", "draining")
    # The last node stays, and says so.
    drains = is_up and not now and len(members) > 1
    says = [f"Remove node {name} from the cluster for good?"]
    says += ["It is up."] if is_up else []
    says += [f"It leads {row['leads']} replication groups."] if row.get("leads") else []
    says += ["It is drained first."] if drains else []
    confirm(" ".join(says), yes=yes)
    if drains:
        nodes.call("POST", f"/v1/cluster/nodes/{name}/drain", {"draining": True})
        try:
            _wait_until_empty(nodes, name, timeout_s)
        except LocalError as error:
            raise LocalError(f"{error}. It was not removed; remove it as it is with --now") from None
    nodes.call("DELETE", f"/v1/cluster/nodes/{name}", timeout_s=_REMOVE_S)


@app.command(
    "force-quorum",
    epilog=example(
        "millrace node force-quorum /var/lib/millrace --dry-run",
        "millrace node force-quorum /var/lib/millrace",
    ),
)
def force_quorum(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Data directory of a node that is left.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what this node has and what may be lost.")
    ] = False,
    yes: Yes = False,
    json: AsJson = False,
) -> None:
    """Let a node that is left go on alone, when the majority of its cluster is lost for good. The node must
    not run. What only the lost nodes had is lost, and a lost node that starts again on its data is a second
    cluster with the same name: destroy their data first. What was found is written into
    DIR.force-quorum.json.

    Of several nodes that are left, choose the one that has most (--dry-run on each); the others join it again
    with empty directories. Then remove the lost nodes: millrace node remove NAME."""
    from millrace.node.recovery.force_quorum import force_quorum as force

    report = force(str(directory), is_rehearsal=True)
    if not json:
        typer.echo("\n".join(_forced_lines(report)))
    if not dry_run:
        lost = ", ".join(sorted(report.others.values()))
        confirm(
            f"Are the nodes at {lost} lost for good, and is their data destroyed? This node decides alone "
            "from now on, and what only they had is lost.",
            yes=yes,
        )
        report = force(str(directory), is_rehearsal=False)
        noted = directory.with_name(f"{directory.name}.force-quorum.json")
        noted.write_text(dumps(asdict(report), indent=2) + "\n")
        if not json:
            typer.echo(f"This node decides alone from its next start on. What was found is in {noted}")
    if json:
        print_json(asdict(report))


def _forced_lines(report: "ForcedReport") -> Iterator[str]:
    yield f"{report.directory}: replica {report.replica}; other nodes: {', '.join(report.others.values())}"
    for row in report.groups:
        since = "nothing here says of when"
        if row.last_time_us:
            when = datetime.fromtimestamp(row.last_time_us / 1e6, UTC)
            since = f"the last of them of {when:%Y-%m-%d %H:%M:%S} UTC"
        lost = f"; entries up to {row.lost_up_to} were on this disk and are gone" if row.lost_up_to else ""
        yield (
            f"group {row.group} ({row.holds}): {len(row.voters)} voters, entries up to {row.last_index}, "
            f"{since}: what came later and was acknowledged by the others alone is lost{lost}"
        )
