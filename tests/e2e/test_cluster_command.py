"""`millrace cluster` with real processes: in the background, in the foreground, killed and started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.client.http import Http
from millrace.local_cluster import PortBlock
from millrace.local_cluster.state import read
from waiting import until

TIMEOUT_S = 60.0


class Shell:
    """Runs `millrace` as a user does, in a directory and a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {**os.environ, "XDG_STATE_HOME": str(home / "state"), "XDG_CONFIG_HOME": str(home)}
        for name in ("MILLRACE_CLUSTER__SECRET", "MILLRACE_CLUSTER__SECRET_FILE", "MILLRACE_URL"):
            self.environment.pop(name, None)
        self.data = home / "millrace-cluster"

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "millrace.cli.main", *arguments]

    def run(self, *arguments: str, status: int = 0) -> str:
        done = subprocess.run(
            self.command(*arguments),
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=2 * TIMEOUT_S,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def nodes(self) -> dict[str, dict[str, Any]]:
        done = subprocess.run(
            self.command("cluster", "status", "--json"),
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return {row["node"]: row for row in json.loads(done.stdout)["nodes"]}

    def end(self) -> None:
        """Whatever the test left running ends; the nodes end with their supervisor."""
        record = read(self.data)
        if record is not None and record.supervisor is not None and record.supervisor.is_running:
            os.kill(record.supervisor.pid, signal.SIGKILL)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.end()


@pytest.fixture
def base_port() -> Iterator[int]:
    ports = PortBlock()
    yield ports.base
    ports.close()


def test_a_cluster_that_is_up_loses_any_node_at_once(shell: Shell, base_port: int) -> None:
    """Each log has its copies by then: a log of two voters would stop with one of them."""
    shell.run("cluster", "up", "--detach", "--base-port", str(base_port))
    answers = [Http(f"http://127.0.0.1:{base_port + 10 * at + 1}").get("/readyz") for at in range(3)]
    assert [answer["is_settled"] for answer in answers] == [True, True, True]
    shell.run("cluster", "kill", "n1")
    shell.run("pub", "a", "b", "-q", "1", "--url", f"127.0.0.1:{base_port + 10}")


def test_a_cluster_in_the_background_is_seen_killed_restarted_and_stopped(
    shell: Shell, base_port: int
) -> None:
    said = shell.run("cluster", "up", "--detach", "--nodes", "2", "--base-port", str(base_port))
    assert f"http://127.0.0.1:{base_port + 1}" in said
    assert "cluster is up" in said
    nodes = shell.nodes()
    assert {name: row["state"] for name, row in nodes.items()} == {"n1": "running", "n2": "running"}
    # Which of them leads is theirs to settle, and on a busy machine it changes.
    until(lambda: "leader" in {row["role"] for row in shell.nodes().values()}, "a leader", TIMEOUT_S)

    again = shell.run("cluster", "up", "--detach", status=2)
    assert "is running already" in again

    shell.run("cluster", "kill", "n2")
    until(lambda: shell.nodes()["n2"]["state"] == "dead", "the end of n2", TIMEOUT_S)
    assert "killed by SIGKILL" in shell.run("cluster", "status", status=1)
    assert "n2: died (killed by SIGKILL)" in shell.run("cluster", "logs", "supervisor")
    shell.run("cluster", "restart", "n2")
    after = shell.nodes()["n2"]
    assert after["state"] == "running"
    assert after["pid"] != nodes["n2"]["pid"]

    assert "is stopped" in shell.run("cluster", "down")
    assert {row["state"] for row in shell.nodes().values()} == {"stopped"}
    assert not Path(f"/proc/{after['pid']}").exists()
    # It comes back as it was: the same nodes at the same ports.
    shell.run("cluster", "up", "--detach")
    assert shell.nodes()["n2"]["mqtt"] == f"127.0.0.1:{base_port + 10}"
    shell.run("cluster", "down")


def test_a_cluster_comes_back_at_other_ports(shell: Shell, base_port: int) -> None:
    """All nodes move at once: no address that they have written down is good any more."""
    shell.run("cluster", "up", "--detach", "--nodes", "3", "--base-port", str(base_port))
    shell.run("stream", "create", "kept", "kept/#")
    shell.run("cluster", "down")
    elsewhere = PortBlock()
    try:
        shell.run("cluster", "up", "--detach", "--base-port", str(elsewhere.base))
        assert shell.nodes()["n3"]["mqtt"] == f"127.0.0.1:{elsewhere.base + 20}"
        assert "kept" in shell.run("stream", "list")
        # The record of the cluster has the new addresses, too.
        peer = f"127.0.0.1:{elsewhere.base + 22}"
        until(lambda: peer in shell.run("node", "list"), "the new address of n3", TIMEOUT_S)
        shell.run("cluster", "down")
    finally:
        elsewhere.close()


def test_a_node_is_added_and_another_removed_for_good(shell: Shell, base_port: int) -> None:
    shell.run("cluster", "up", "--detach", "--nodes", "2", "--base-port", str(base_port))
    assert "n3 joined" in shell.run("cluster", "add")
    assert "no terminal to ask at" in shell.run("cluster", "remove", "n2", status=2)
    assert "n2 is stopped" in shell.run("cluster", "remove", "n2", "--yes")
    assert sorted(shell.nodes()) == ["n1", "n3"]
    # Its directory is still there: the next one has another name.
    assert "n4 joined" in shell.run("cluster", "add")
    shell.run("cluster", "down")


def test_in_the_foreground_a_death_is_said_at_once_and_the_node_started_again(
    shell: Shell, base_port: int
) -> None:
    command = shell.command("cluster", "up", "--nodes", "1", "--restart", "--base-port", str(base_port))
    with subprocess.Popen(
        command, cwd=shell.home, env=shell.environment, stdout=subprocess.PIPE, text=True
    ) as up:
        assert up.stdout is not None
        lines = iter(up.stdout)
        assert any("Ctrl-C stops it" in line for line in lines)
        shell.run("cluster", "kill", "n1")
        assert "died (killed by SIGKILL); it is started again in 1 s" in next(lines)
        assert "runs again" in next(lines)
        up.send_signal(signal.SIGINT)
        assert "stopped" in next(lines)
        assert up.wait(TIMEOUT_S) == 0


def test_nodes_that_died_together_are_started_together(shell: Shell, base_port: int) -> None:
    """None of them serves before the others are there."""
    shell.run("cluster", "up", "--detach", "--restart", "--base-port", str(base_port))
    for row in shell.nodes().values():
        os.kill(row["pid"], signal.SIGKILL)
    until(lambda: {row["restarts"] for row in shell.nodes().values()} == {1}, "three starts", TIMEOUT_S)
    until(lambda: {row["state"] for row in shell.nodes().values()} == {"running"}, "the cluster", TIMEOUT_S)
    shell.run("pub", "a", "b", "-q", "1", "--url", f"127.0.0.1:{base_port}")


@pytest.mark.long
def test_a_node_that_is_started_without_the_others_waits_for_them(shell: Shell, base_port: int) -> None:
    shell.run("cluster", "up", "--detach", "--nodes", "2", "--base-port", str(base_port))
    shell.run("cluster", "kill", "n1")
    shell.run("cluster", "kill", "n2")
    said = shell.run("cluster", "restart", "n1")
    assert "n1 runs, and does not serve yet: waiting for a majority" in said
    status = shell.run("cluster", "status", status=1)
    assert "starting" in status and "n1: waiting for a majority" in status
    assert "n2 runs again" in shell.run("cluster", "restart", "n2")
    until(lambda: {row["state"] for row in shell.nodes().values()} == {"running"}, "the cluster", TIMEOUT_S)


def test_ports_that_are_taken_are_named_with_their_holder(shell: Shell, base_port: int) -> None:
    shell.run("cluster", "up", "--detach", "--nodes", "1", "--base-port", str(base_port))
    other = shell.run("cluster", "up", "--data", "other", "--base-port", str(base_port), status=2)
    assert other.splitlines()[-1].startswith(f"millrace: port {base_port} is taken by process ")
    assert "--base-port" in other
    alone = shell.run("start", "--data", "alone", "--mqtt", f"127.0.0.1:{base_port}", status=2)
    last = alone.splitlines()[-1]
    assert last.startswith(f"millrace: cannot listen on 127.0.0.1:{base_port}: process ")
    assert "(millrace start" in last
    shell.run("cluster", "down")


def test_the_secret_of_the_environment_is_the_clusters(shell: Shell, base_port: int, tmp_path: Path) -> None:
    """A node elsewhere that has the same environment can join; nothing was put in its place."""
    secret = tmp_path / "our.secret"
    secret.write_text("a secret that the user made\n")
    shell.environment["MILLRACE_CLUSTER__SECRET_FILE"] = str(secret)
    shell.run("cluster", "up", "--detach", "--nodes", "1", "--base-port", str(base_port))
    command = shell.command(
        "start", "--node-id", "guest", "--data", "guest", "--peer", f"127.0.0.1:{base_port + 52}"
    )
    command += ["--mqtt", f"127.0.0.1:{base_port + 50}", "--http", f"127.0.0.1:{base_port + 51}"]
    command += ["--join", f"127.0.0.1:{base_port + 2}"]
    with subprocess.Popen(
        command, cwd=shell.home, env=shell.environment, stdout=subprocess.PIPE, text=True
    ) as guest:
        try:
            assert guest.stdout is not None
            assert "millrace guest ready" in guest.stdout.readline()
        finally:
            guest.kill()
    shell.run("cluster", "down")
