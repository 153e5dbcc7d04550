"""What is remembered of a local cluster, in `cluster.json` of its data directory.

The supervisor writes the file whenever something changes; everybody else only reads it. Processes are named
by their id and the time at which they started: an id alone may belong to another program by now.
"""

import contextlib
import os
import subprocess
from pathlib import Path

import msgspec

from millrace.errors import ConfigError, LocalError

STATE_FILE = "cluster.json"
DEFAULT_DIRECTORY = Path("millrace-cluster")


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process of this machine, and no other that got its id later."""

    pid: int
    started: str

    @property
    def is_running(self) -> bool:
        return started(self.pid) == self.started


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One node as the supervisor knows it."""

    name: str
    number: int
    state: str
    """starting, running, dead, waiting (to be started again) or stopped."""
    mqtt: str
    http: str
    peer: str
    process: Process | None = None
    since_s: float = 0.0
    """When it came to this state, in seconds since 1970."""
    restarts: int = 0
    why: str = ""
    """How it ended, for one that is dead."""


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A local cluster: what the next `up` needs, and what runs now."""

    base_port: int
    settings: tuple[str, ...] = ()
    restarts: bool = False
    supervisor: Process | None = None
    is_ready: bool = False
    nodes: tuple[NodeRecord, ...] = ()

    @property
    def is_running(self) -> bool:
        return self.supervisor is not None and self.supervisor.is_running


def started(pid: int) -> str:
    """When a process started, in words that are only compared; empty if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return "" if Path("/proc/self/stat").exists() else _started_by_ps(pid)
    except OSError:
        return ""
    # The fields behind the name begin with the third of proc(5): the state, and 19 further the start.
    return "" if fields[0] == "Z" else fields[19]


def _started_by_ps(pid: int) -> str:
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()
    return ""


def process(pid: int) -> Process:
    return Process(pid=pid, started=started(pid))


def read(directory: Path) -> ClusterRecord | None:
    """What the directory says; None where no cluster was started in it."""
    path = directory / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterRecord)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise LocalError(f"{path} cannot be read: {error}") from None


def write(directory: Path, record: ClusterRecord) -> None:
    """Put the record in place of the one before, whole or not at all."""
    aside = directory / f"{STATE_FILE}.new"
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    aside.rename(directory / STATE_FILE)


def _pointer() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "millrace" / "last-cluster"


def remember(directory: Path) -> None:
    """Make this the directory that commands use where none is named. A home that cannot be written to is
    no reason to fail."""
    with contextlib.suppress(OSError):
        _pointer().parent.mkdir(parents=True, exist_ok=True)
        _pointer().write_text(f"{directory.absolute()}\n")


def last() -> Path | None:
    """The directory of the cluster that was started last, if it is still there."""
    try:
        directory = Path(_pointer().read_text().strip())
    except (OSError, RuntimeError):
        return None
    return directory if (directory / STATE_FILE).exists() else None


def up_command(directory: Path) -> str:
    """The command that starts the cluster of this directory."""
    if directory.absolute() == DEFAULT_DIRECTORY.absolute():
        return "millrace cluster up"
    return f"millrace cluster up --data {directory}"


def find(named: Path | None) -> tuple[Path, ClusterRecord]:
    """The cluster that is meant: the named directory, the default one here, or the one that was started last.
    ConfigError where there is none."""
    candidates = (named,) if named is not None else (DEFAULT_DIRECTORY, last())
    for directory in candidates:
        record = read(directory) if directory is not None else None
        if directory is not None and record is not None:
            return directory, record
    where = "here" if named is None else f"in {named}"
    raise ConfigError(f"there is no local cluster {where}; start one with `millrace cluster up`")
