"""One worker and two on one machine, each held to half a core: what a second one brings [G5].

The system spreads connections over the workers, so about half of all messages between pairs cross from one
worker to the other; with more workers it is a larger part. Fan-in has one receiver, and every message ends at
its worker.
"""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.lab.bench.generator import Generator
from millrace.lab.bench.patterns import BY_NAME
from millrace.lab.bench.quota import held_to

CASES = ("qos0-pairs", "qos0-fanout", "qos1-mixed-pairs", "qos1-one-per-read")
COUNTS = (1, 2)
SHARE = 0.5
_READY_S = 60.0
_PORT_STEP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One case with so many workers."""

    case: str
    workers: int
    is_held: bool
    delivered_s: float
    cpu_us: float


def measure(case: str, workers: int, generator: Generator, *, rounds: int, seconds: float) -> Point:
    pattern = BY_NAME[case]
    with _machine(workers) as (port, pids), held_to(pids, SHARE) as is_held:
        found = [generator.run(pattern.flags, port=port, pids=pids, seconds=seconds) for _ in range(rounds)]
    return Point(
        case=case,
        workers=workers,
        is_held=is_held,
        delivered_s=median(row["delivered_s"] for row in found),
        cpu_us=median(row["cpu_us_per_delivered"] for row in found),
    )


@contextmanager
def _machine(workers: int) -> Iterator[tuple[int, list[int]]]:
    """`millrace start --workers`, serving: its port for MQTT, and the processes of its workers."""
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as name:
        directory = Path(name)
        base = _free_ports(workers)
        mqtt, http, peer = base, base + 1, base + 2
        secret = directory / "secret"
        secret.write_text("of a benchmark")
        secret.chmod(0o600)
        command = [sys.executable, "-m", "millrace.cli.main", "start", "--workers", str(workers)]
        command += ["--data", str(directory / "data"), "--mqtt", f"127.0.0.1:{mqtt}"]
        command += ["--http", f"127.0.0.1:{http}", "--peer", f"127.0.0.1:{peer}"]
        command += ["--set", f"cluster.secret_file={secret}", "--set", "log.level=warning"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            for number in range(workers):
                _wait(f"http://127.0.0.1:{http + _PORT_STEP * number}", workers)
            # As in `bench mqtt`: the memory path.
            Http(f"http://127.0.0.1:{http}").call("PATCH", "/v1/streams/default", {"capture": "none"})
            yield mqtt, [process.pid] if workers == 1 else _children(process.pid)
        finally:
            process.terminate()
            process.wait()


def _free_ports(workers: int) -> int:
    """The first of a run of ports that nobody listens on at the moment."""
    for base in range(20_000, 32_000, 100):
        try:
            for port in range(base, base + _PORT_STEP * workers):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base
    raise LocalError("there are no free ports")


def _wait(url: str, workers: int) -> None:
    """Until the node serves and every group is where it belongs."""
    deadline_s = time.monotonic() + _READY_S
    while time.monotonic() < deadline_s:
        try:
            cluster = Http(url).call("GET", "/status")["cluster"]
            if len(cluster["members"]) == workers and cluster["is_settled"]:
                return
        except (LocalError, OSError):
            pass
        time.sleep(0.1)
    raise LocalError(f"{url} did not serve within {_READY_S:.0f} s")


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """With each figure as a ratio to one worker."""
    alone = {point.case: point for point in points if point.workers == 1}
    made = []
    for point in points:
        base = alone[point.case]
        made.append(
            {
                "case": point.case,
                "workers": point.workers,
                "delivered/s": round(point.delivered_s),
                "cpu us": round(point.cpu_us, 2),
                "rate to 1 worker": round(point.delivered_s / base.delivered_s, 2),
                "cpu to 1 worker": round(point.cpu_us / base.cpu_us, 2) if base.cpu_us else None,
                "half core": "yes" if point.is_held else "no",
            }
        )
    return made
