"""`millrace start --workers`: one set of ports, several nodes behind it."""

import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.device import V5, Device, unique
from e2e.processes import BrokerProcess
from millrace.local_cluster import PortBlock
from waiting import until

Devices = Callable[..., Device]

WORKERS = 2


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[BrokerProcess]:
    ports = PortBlock()
    secret = tmp_path / "secret"
    secret.write_text("of the test")
    secret.chmod(0o600)
    mqtt, http = ports.take(), ports.take()
    peer = ports.take()
    started = BrokerProcess(
        tmp_path,
        *("--workers", str(WORKERS), "--mqtt", f"127.0.0.1:{mqtt}", "--http", f"127.0.0.1:{http}"),
        *("--peer", f"127.0.0.1:{peer}", "--set", f"cluster.secret_file={secret}"),
    )
    started.ports = {"mqtt": mqtt, "http": http}
    try:
        until(lambda: all(serves(started, n) for n in range(WORKERS)), "both workers to serve", 30.0)
        yield started
    finally:
        started.stop()
        ports.close()


def members(machine: BrokerProcess) -> list[dict[str, str]]:
    url = f"{machine.url}/v1/cluster"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        rows: list[dict[str, str]] = json.load(answer)["members"]
        return rows
    return []  # It does not serve yet.


def serves(machine: BrokerProcess, number: int) -> bool:
    url = f"http://127.0.0.1:{machine.ports['http'] + 10 * number}/readyz"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=10) as answer:
        return bool(answer.status == 200)
    return False


def clients(machine: BrokerProcess, number: int) -> int:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{machine.ports['http'] + 10 * number}/status", timeout=10
    ) as answer:
        return int(json.load(answer)["clients_connected"])


def pid_of(machine: BrokerProcess, name: str) -> int | None:
    """The process of a worker, by its parent and what it was told."""
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((directory / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if parent == machine.process.pid and f"node.id={name}" in (directory / "cmdline").read_text():
                return int(directory.name)
    return None


def test_connections_spread_over_the_workers_and_messages_reach_all(
    machine: BrokerProcess, devices: Devices
) -> None:
    topic = unique("workers")
    everybody = [devices(machine.port, version=V5).connect() for _ in range(16)]
    until(lambda: sum(clients(machine, n) for n in range(WORKERS)) == 16, "all of them to be counted")
    assert all(clients(machine, n) > 0 for n in range(WORKERS)), "the system gave all to one worker"
    assert {row["host"] for row in members(machine)} == {"n1"}
    for device in everybody:
        device.subscribe(topic, 1)
    everybody[0].publish(topic, b"to all", qos=1)
    for device in everybody:
        device.expect_payloads(b"to all")


def test_a_worker_that_dies_is_started_again_and_nothing_acknowledged_is_lost(
    machine: BrokerProcess, devices: Devices
) -> None:
    topic = unique("killed")
    reader = devices(
        machine.port, version=V5, client_id=unique("reader"), clean=False, expiry_s=300
    ).connect()
    reader.subscribe(topic, 1)
    sender = devices(machine.port, version=V5).connect()
    sender.publish(topic, b"before", qos=1)
    reader.expect_payloads(b"before")
    reader.disconnect()
    old = pid_of(machine, "n1-2")
    assert old is not None
    os.kill(old, signal.SIGKILL)
    until(lambda: f"worker 2 ended with status {-signal.SIGKILL}" in machine.log, "the end to be told")
    until(lambda: pid_of(machine, "n1-2") not in (None, old), "it to be started again")
    until(lambda: serves(machine, 1), "it to serve again", 30.0)
    again = devices(machine.port, version=V5).connect()
    again.publish(topic, b"after", qos=1)
    reader.connect()
    reader.expect_payloads(b"after")


def test_a_signal_stops_all_of_them(machine: BrokerProcess) -> None:
    worker = pid_of(machine, "n1-2")
    machine.signal(signal.SIGTERM)
    assert machine.wait_exit() == 0
    assert not Path(f"/proc/{worker}").exists()
