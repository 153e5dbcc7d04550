"""The drivers of the campaign of kills: one that this program starts, and one that the cluster runs.

Both copy the stream `in` to the stream `out`, in batches of a given size, and both can be killed in parts:
the driver with all below it, its JVM alone, or one Python process that runs a task.
"""

import os
import random
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.lab.bench.spark_sides import descendants
from millrace.local_cluster import LocalCluster, NodeProcess

SINK, EACH, DECLARED = "sink", "each", "declared"
KINDS = (SINK, EACH, DECLARED)
"""A query with a sink, one whose batches are written by `foreachBatch` under a writer and a batch, and a
pipeline of the cluster."""

_NAME = "copy"
_ASK_S_MAX = 3.0
_STARTS_MAX = 1_000
_COPY = """
CREATE STREAM numbers USING millrace OPTIONS (stream 'in', maxRowsPerTrigger '%d', minPartitions '4');
INSERT INTO copied USING millrace OPTIONS (stream 'out')
  SELECT replace(topic, 'in/', 'out/') AS topic, payload FROM numbers;
"""


class Driver(ABC):
    """What is killed. Every kill says whether there was something to be killed."""

    starts = 0

    @abstractmethod
    def keep_running(self) -> None:
        """Start what should run and does not."""

    @abstractmethod
    def pids(self) -> list[int]:
        """Its processes, the first one first; none where it does not run just now."""

    @abstractmethod
    def end(self) -> None:
        """Kill it for good."""

    @abstractmethod
    def story(self) -> str:
        """The last that it said."""

    def kill_all(self, chance: random.Random) -> bool:
        return _kill(self.pids())

    def kill_jvm(self, chance: random.Random) -> bool:
        return _kill([pid for pid in self.pids() if "SparkSubmit" in _command(pid)])

    def kill_worker(self, chance: random.Random) -> bool:
        """One Python process that runs a task."""
        workers = [pid for pid in self.pids() if "pyspark.daemon" in _command(pid)]
        # The first of them makes the others.
        forked = [pid for pid in workers if _parent(pid) in workers]
        return _kill([chance.choice(forked)]) if forked else False


class OwnDriver(Driver):
    """A program of the campaign, as a process group that is killed and started again."""

    def __init__(self, arguments: list[str], directory: Path) -> None:
        self._arguments = arguments
        self._log = directory / "driver.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def keep_running(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # The driver imports what this process found, also where a test run set the path.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Every process of its session: those of a driver that is gone are in it too."""
        assert self._process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if os.getsid(int(entry.name)) == self._process.pid:
                        found.append(int(entry.name))
        return sorted(found)

    def kill_all(self, chance: random.Random) -> bool:
        self.end()
        return True

    def end(self) -> None:
        if self._process is not None:
            _kill(self.pids())
            self._process.wait()

    def story(self) -> str:
        return self._log.read_text(errors="replace")[-5_000:]


class DeclaredDriver(Driver):
    """The driver of a pipeline that the cluster holds; its owner starts it again."""

    def __init__(self, cluster: LocalCluster, directory: Path, rows_per_batch: int) -> None:
        self._cluster = cluster
        self._seen: set[int] = set()
        definition = {
            "name": _NAME,
            "file": "copy.sql",
            "master": "local[2,4]",
            "checkpoints": f"file://{directory / 'shared'}",
            "trigger": "100ms",
            "conf": ["spark.sql.shuffle.partitions=2", "spark.python.authenticate.socketTimeout=120s"],
            "starts": _STARTS_MAX,
        }
        form = {"definition": definition, "text": _COPY % rows_per_batch}
        Http(cluster.nodes[0].http_url).call("POST", "/v1/pipelines", form)

    def _shown(self) -> dict[str, Any]:
        """What any node says of it; nothing while none answers."""
        for node in self._cluster.nodes:
            with suppress(LocalError, OSError):
                found: dict[str, Any] = Http(node.http_url).call(
                    "GET", f"/v1/pipelines/{_NAME}", timeout_s=_ASK_S_MAX
                )
                return found
        return {}

    def owner(self) -> NodeProcess | None:
        name = self._shown().get("node", "")
        return next((node for node in self._cluster.nodes if node.name == name), None)

    def _driver(self) -> int | None:
        owner = self.owner()
        if owner is None:
            return None
        with suppress(OSError, ValueError):
            pid = int((owner.data / "pipelines" / _NAME / "driver.pid").read_text())
            # The file of a driver that is gone may stand there, and its number may be somebody else's.
            return pid if "millrace.spark" in _command(pid) else None
        return None

    def keep_running(self) -> None:
        pid = self._driver()
        if pid is not None and pid not in self._seen:
            self._seen.add(pid)
            self.starts += 1

    def pids(self) -> list[int]:
        pid = self._driver()
        return [] if pid is None else descendants(pid)

    def end(self) -> None:
        with suppress(LocalError, OSError):
            Http(self._cluster.nodes[0].http_url).call("DELETE", f"/v1/pipelines/{_NAME}")

    def story(self) -> str:
        logs = [
            file.read_text(errors="replace")[-3_000:]
            for node in self._cluster.nodes
            for file in (node.data / "pipelines").glob("*/driver.log")
        ]
        return "\n".join((str(self._shown()), *logs))


def _kill(pids: list[int]) -> bool:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
