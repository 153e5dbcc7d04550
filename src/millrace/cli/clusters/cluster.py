"""`millrace cluster`: a local cluster, in the foreground or in the background."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.clusters.node import Now, Timeout, take_out
from millrace.cli.shared.common import (
    AsJson,
    Yes,
    duration_s,
    example,
    family,
    print_done,
    print_json,
    print_rows,
)

if TYPE_CHECKING:
    from millrace.local_cluster import LocalCluster
    from millrace.local_cluster.state import ClusterRecord

app = family(
    "Several nodes on this machine, for trying out and for development. Without --data the commands mean "
    "./millrace-cluster, or else the cluster that was started last."
)

Data = Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Directory of the cluster.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node, such as n2.")]

_COLUMNS = ("node", "state", "role", "pid", "since", "restarts", "mqtt", "http")


@app.command(
    epilog=example(
        "millrace cluster up",
        "millrace cluster up --detach --restart",
        "millrace cluster up --nodes 5 --data /tmp/cluster --base-port 20000 --set log.level=debug",
    )
)
def up(
    nodes: Annotated[
        int | None, typer.Option(min=1, max=9, help="How many nodes. [default: those it has, or 3]")
    ] = None,
    data: Data = None,
    base_port: Annotated[
        int | None,
        typer.Option(
            min=1024,
            max=65_000,
            help="First port. Node i has MQTT at this port + 10 i; HTTP, peer, text and WebSocket are 1, 2, "
            "3 and 4 above that. "
            "[default: the one it has, or 18830, or the next that is free]",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running in the background.")
    ] = False,
    restart: Annotated[bool, typer.Option("--restart", help="If a node dies, start it again.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of all nodes, kept for the next time."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show everything that the nodes log, not only warnings.")
    ] = False,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
) -> None:
    """Run a cluster until Ctrl-C, or until `cluster down` with --detach.

    What it keeps is in its directory and comes back the next time: messages, secret, ports and settings.
    """
    from millrace.cli.clusters import cluster_up
    from millrace.local_cluster.state import DEFAULT_DIRECTORY

    plan = cluster_up.plan(data or DEFAULT_DIRECTORY, nodes, base_port, set_, restart, _show)
    if detach:
        cluster_up.detach(plan, _show)
        _announce(plan.directory)
        return
    cluster_up.run(plan, _show, lambda cluster: _serves(cluster, plan.directory, supervised), verbose=verbose)


def _show(node: str, sentence: str) -> None:
    sys.stdout.write(f"{node:8}{sentence}\n")
    sys.stdout.flush()


def _serves(cluster: "LocalCluster", directory: Path, supervised: bool) -> None:
    if not supervised:
        _announce(directory)
        _show("cluster", "Ctrl-C stops it; its log: millrace cluster logs -f")


def _announce(directory: Path) -> None:
    """Where everything is, once the nodes serve."""
    import os

    from millrace.local_cluster import SECRET_FILE
    from millrace.local_cluster.nodes import names_secret
    from millrace.local_cluster.state import find

    _, record = find(directory)
    for node in record.nodes:
        _show(node.name, f"serves MQTT on mqtt://{node.mqtt}, HTTP on http://{node.http}")
    where = (
        "the secret of your environment"
        if names_secret(os.environ)
        else f"--set cluster.secret_file={directory.absolute() / SECRET_FILE}"
    )
    _show(
        "cluster",
        f"is up in {directory}; nodes elsewhere join with --join {record.nodes[0].peer} and {where}",
    )


@app.command(epilog=example("millrace cluster down", "millrace cluster down --data /tmp/cluster"))
def down(data: Data = None, json: AsJson = False) -> None:
    """Stop the cluster; its data stays."""
    from millrace.cli.clusters import cluster_up

    directory, record = _running(data, json)
    cluster_up.stop(directory, record)
    print_done(f"the cluster in {directory} is stopped", as_json=json, directory=str(directory))


@app.command(epilog=example("millrace cluster status", "millrace cluster status --json"))
def status(data: Data = None, json: AsJson = False) -> None:
    """Show the nodes, whether they run, and where. Exit status 1 if the cluster or a node does not run."""
    from millrace.cli.clusters import cluster_up
    from millrace.local_cluster.state import up_command

    directory, record = _found(data, json=json)
    rows = cluster_up.rows(record)
    if json:
        print_json({"directory": str(directory), "running": record.is_running, "nodes": rows})
    else:
        if not record.is_running:
            sys.stdout.write(f"it does not run; start it with `{up_command(directory)}`\n")
        columns = [name for name in _COLUMNS if name != "restarts" or any(row["restarts"] for row in rows)]
        print_rows(rows, columns, as_json=False, optional=("since", "pid"))
        for row in rows:
            if row["why"]:
                sys.stdout.write(f"{row['node']}: {row['why']}\n")
    if not record.is_running or any(row["state"] != "running" for row in rows):
        raise typer.Exit(1)


@app.command(epilog=example("millrace cluster restart n2"))
def restart(node: NodeName, data: Data = None, json: AsJson = False) -> None:
    """Stop a node in good order, if it runs, and start it again."""
    _ask(data, "restart", node, json)


@app.command(epilog=example("millrace cluster kill n2"))
def kill(node: NodeName, data: Data = None, json: AsJson = False) -> None:
    """End a node as kill -9 does, to see what happens then."""
    _ask(data, "kill", node, json)


@app.command(epilog=example("millrace cluster add"))
def add(data: Data = None, json: AsJson = False) -> None:
    """Start one more node, which joins the others."""
    _ask(data, "add", "", json)


@app.command(epilog=example("millrace cluster remove n4", "millrace cluster remove n4 --yes"))
def remove(
    node: NodeName,
    yes: Yes = False,
    now: Now = False,
    timeout: Timeout = "10m",
    data: Data = None,
    json: AsJson = False,
) -> None:
    """Take a node out of the cluster for good and stop it, drained first if it is up. Its directory is
    kept."""
    from millrace.cli.shared.http_options import door
    from millrace.errors import ConfigError, LocalError
    from millrace.local_cluster import control

    directory, record = _running(data, json)
    if node not in {one.name for one in record.nodes}:
        raise LocalError(
            f"there is no node {node!r}; there are: {', '.join(one.name for one in record.nodes)}"
        )
    others = ",".join(
        f"http://{one.http}" for one in record.nodes if one.name != node and one.state == "running"
    )
    if not others:
        raise ConfigError(f"{node} is the only node that runs; stop the cluster with `millrace cluster down`")
    take_out(door(others), node, yes=yes, now=now, timeout_s=duration_s(timeout))
    said = control.ask(directory, "forget", node)
    print_done(said, as_json=json, node=node, said=said)


@app.command(epilog=example("millrace cluster logs", "millrace cluster logs -f n2"))
def logs(
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="One node. [default: all]")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on and show new lines as they come.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Begin with so many of the newest lines.")
    ] = 50,
    data: Data = None,
) -> None:
    """Show what the nodes and their supervisor logged."""
    from millrace.errors import ConfigError
    from millrace.local_cluster import logs as files

    directory, record = _found(data)
    known = [*(one.name for one in record.nodes), files.SUPERVISOR]
    if node is not None and node not in known:
        raise ConfigError(f"there is no log of {node!r}; there are: {', '.join(known)}")
    names: Sequence[str] = known if node is None else [node]
    try:
        for name, line in files.tail(directory, names, lines):
            sys.stdout.write(f"{name:12}{line}\n" if node is None else f"{line}\n")
        sys.stdout.flush()
        for name, line in files.follow(directory, names) if follow else ():
            sys.stdout.write(f"{name:12}{line}\n" if node is None else f"{line}\n")
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _found(data: Path | None, *, json: bool = True) -> "tuple[Path, ClusterRecord]":
    """The cluster that is meant; which one is said to a person who did not name it."""
    from millrace.local_cluster.state import find

    directory, record = find(data)
    if data is None and not json:
        sys.stdout.write(f"cluster in {directory}\n")
    return directory, record


def _running(data: Path | None, json: bool) -> "tuple[Path, ClusterRecord]":
    from millrace.errors import LocalError
    from millrace.local_cluster.state import up_command

    directory, record = _found(data, json=json)
    if not record.is_running:
        raise LocalError(f"the cluster in {directory} does not run; start it with `{up_command(directory)}`")
    return directory, record


def _ask(data: Path | None, do: str, node: str, json: bool) -> None:
    from millrace.local_cluster import control

    directory, _ = _running(data, json)
    said = control.ask(directory, do, node)
    facts: dict[str, Any] = {"node": node} if node else {}
    print_done(said, as_json=json, **facts, said=said)
