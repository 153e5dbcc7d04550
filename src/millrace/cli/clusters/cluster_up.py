"""What `millrace cluster up`, `down` and `status` do: make a plan, run the supervisor or leave it behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from millrace.client.http import Http, Timeouts
from millrace.errors import ConfigError, LocalError
from millrace.local_cluster import LocalCluster, control, logs, state
from millrace.local_cluster.ports import (
    DEFAULT_BASE_PORT,
    PORTS_PER_NODE,
    check_free,
    next_free_base,
    ports_of,
    taken,
)
from millrace.local_cluster.supervisor import Plan, Say, Supervisor, known_numbers
from millrace.node.doors.port_holder import holder

_NODES_DEFAULT = 3
_START_S_MAX = 120.0
_STOP_S_MAX = 30.0
_POLL_S = 0.1
# The first request that a node gets loads its web framework.
_ASK_S = 5.0


def plan(
    directory: Path,
    nodes: int | None,
    base_port: int | None,
    settings: Sequence[str] | None,
    restarts: bool,
    say: Say,
) -> Plan:
    """What is wanted, with what the directory remembers where nothing was said."""
    before = state.read(directory)
    if before is not None and before.is_running:
        raise ConfigError(
            f"the cluster in {directory} is running already: see `millrace cluster status`, "
            "stop it with `millrace cluster down`"
        )
    numbers = [node.number for node in before.nodes] if before is not None else known_numbers(directory)
    if nodes is not None and nodes < len(numbers):
        raise ConfigError(
            f"the cluster in {directory} has {len(numbers)} nodes; start it with all of them, "
            "then `millrace cluster remove NODE`"
        )
    wanted = nodes or len(numbers) or _NODES_DEFAULT
    while len(numbers) < wanted:
        numbers.append(max((*numbers, *known_numbers(directory)), default=-1) + 1)
    kept = before.base_port if before is not None else None
    if settings is None and before is not None and before.settings:
        say("cluster", f"with the settings of last time: {' '.join(before.settings)}")
    return Plan(
        directory=directory,
        numbers=tuple(numbers),
        base_port=_base_port(base_port, kept, max(numbers) + 1, say),
        settings=tuple(settings if settings is not None else before.settings if before is not None else ()),
        restarts=restarts,
    )


def _base_port(named: int | None, kept: int | None, count: int, say: Say) -> int:
    """The ports that were named, those of last time, or the first that are free; whoever is in the way is
    named."""
    chosen = named or kept
    if chosen is not None:
        if chosen + PORTS_PER_NODE * count > 65_536:
            raise ConfigError(f"{count} nodes do not fit above port {chosen}")
        check_free(ports_of(chosen, count))
        return chosen
    port = taken(DEFAULT_BASE_PORT, count)
    if port is None:
        return DEFAULT_BASE_PORT
    base_port = next_free_base(count)
    who = holder(port) or "another process"
    say("cluster", f"port {port} is taken by {who}; the ports begin at {base_port} instead")
    return base_port


def _nodes(plan: Plan) -> str:
    count = len(plan.numbers)
    return "1 node" if count == 1 else f"{count} nodes"


def run(plan: Plan, say: Say, on_ready: Callable[[LocalCluster], None], *, verbose: bool) -> None:
    """Supervise the cluster in this process until SIGINT, SIGTERM or `cluster down`."""

    def show_line(node: str, line: str) -> None:
        if verbose or not logs.is_quiet(line):
            say(node, line)

    async def supervise() -> None:
        supervisor = Supervisor(plan, say, show_line)
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, supervisor.stop)
        say("cluster", f"starts {_nodes(plan)} in {plan.directory}")
        await supervisor.run(on_ready)
        say("cluster", "stopped")

    asyncio.run(supervise())


def detach(plan: Plan, say: Say) -> None:
    """Leave a supervisor running that outlives the terminal; return once all nodes serve."""
    (plan.directory / logs.DIRECTORY).mkdir(parents=True, exist_ok=True)
    output = plan.directory / logs.DIRECTORY / "supervisor.out"
    command = [sys.executable, "-m", "millrace.cli.main", "cluster", "up", "--supervised"]
    command += ["--data", str(plan.directory.absolute()), "--nodes", str(len(plan.numbers))]
    command += ["--base-port", str(plan.base_port), *(["--restart"] if plan.restarts else [])]
    command += [part for one in plan.settings for part in ("--set", one)]
    say("cluster", f"starts {_nodes(plan)} in {plan.directory}, in the background")
    with output.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    end_s = time.monotonic() + _START_S_MAX
    try:
        while time.monotonic() < end_s:
            if process.poll() is not None:
                lines = output.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise LocalError(lines[-1].removeprefix("millrace: "))
            record = state.read(plan.directory)
            if record is not None and record.is_ready and record.supervisor is not None:
                if record.supervisor.pid == process.pid:
                    return
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        process.terminate()
        raise
    process.terminate()
    raise LocalError(
        f"the nodes did not serve within {_START_S_MAX:.0f} s; see {plan.directory / logs.DIRECTORY}"
    )


def stop(directory: Path, record: state.ClusterRecord) -> None:
    """Stop a cluster that runs, and wait until it is gone."""
    supervisor = record.supervisor
    assert supervisor is not None
    try:
        control.ask(directory, "stop")
    except LocalError:
        # It may be starting, or hang: a signal reaches it as well.
        if supervisor.is_running:
            os.kill(supervisor.pid, signal.SIGTERM)
    end_s = time.monotonic() + _STOP_S_MAX
    while supervisor.is_running:
        if time.monotonic() > end_s:
            raise LocalError(
                f"the supervisor (process {supervisor.pid}) does not end; see `millrace cluster logs`"
            )
        time.sleep(_POLL_S)


def rows(record: state.ClusterRecord) -> list[dict[str, Any]]:
    """The nodes as `cluster status` shows them."""
    is_running = record.is_running
    roles = _roles(record) if is_running else {}
    found = []
    for node in record.nodes:
        alive = is_running and node.process is not None and node.process.is_running
        shown = node.state if is_running else "stopped"
        if shown == "running" and not alive:
            shown = "dead"
        found.append(
            {
                "node": node.name,
                "state": shown,
                "role": roles.get(node.name, ""),
                "pid": node.process.pid if alive and node.process is not None else None,
                "since": time.strftime("%H:%M:%S", time.localtime(node.since_s)),
                "restarts": node.restarts,
                "mqtt": node.mqtt,
                "http": node.http,
                "peer": node.peer,
                "why": node.why,
            }
        )
    return found


def _roles(record: state.ClusterRecord) -> dict[str, str]:
    """What each node is to the others, as one that answers says it; nothing where none does."""
    urls = [f"http://{node.http}" for node in record.nodes if node.state == "running"]
    if not urls:
        return {}
    timeouts = Timeouts(connect_s=_ASK_S, switch_s=_ASK_S, answer_s=_ASK_S)
    with Http(urls, password=os.environ.get("MILLRACE_PASSWORD"), timeouts=timeouts) as http:
        try:
            members = http.get("/v1/cluster")["members"]
        except LocalError:
            return {}
    return {
        row["node"]: "leader" if row["leads_meta"] else "follower" if row["state"] == "up" else row["state"]
        for row in members
    }
