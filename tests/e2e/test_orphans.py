"""Nodes that a program started for itself end with it, however it ends; those that a user started do not."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.local_cluster import PortBlock
from waiting import until

TIMEOUT_S = 30.0

PARENT = """
import asyncio, sys
from pathlib import Path
from millrace.local_cluster import LocalCluster

async def run():
    async with LocalCluster(2, Path(sys.argv[1])) as cluster:
        print(*(node.pid for node in cluster.nodes), flush=True)
        await asyncio.Event().wait()

asyncio.run(run())
"""


def is_running(pid: int) -> bool:
    """A process that ended and that nobody has collected does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Process ids; whatever of them is left at the end is killed."""
    pids: list[int] = []
    yield pids
    for pid in filter(is_running, pids):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes of others")
def test_nodes_end_when_the_program_that_started_them_is_killed(tmp_path: Path, started: list[int]) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        nodes = [int(pid) for pid in parent.stdout.readline().split()]
        started += [parent.pid, *nodes]
        assert len(nodes) == 2
        assert all(map(is_running, nodes))
        parent.send_signal(signal.SIGKILL)
    until(lambda: not any(map(is_running, nodes)), "the end of the nodes", TIMEOUT_S)


def test_a_node_of_a_user_does_not_care_for_its_input(tmp_path: Path, started: list[int]) -> None:
    """As under a service manager, or in the background of a shell: there is nothing to read."""
    ports = PortBlock()
    command = [sys.executable, "-m", "millrace.cli.main", "start", "--data", str(tmp_path / "data")]
    command += ["--mqtt", f"127.0.0.1:{ports.take()}", "--http", f"127.0.0.1:{ports.take()}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        started.append(node.pid)
        assert node.stdin is not None and node.stdout is not None
        node.stdin.close()
        assert b"ready" in node.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            node.wait(1.0)
        node.terminate()
        assert node.wait(TIMEOUT_S) == 0
    ports.close()
