"""Keeps a pipeline running: starts its driver, shows how it goes, starts it again when it dies.

The driver is a process of its own (`job`, or `spark-pipelines` for a declarative project), because a driver
dies in ways that no handler inside it sees: killed, out of memory, a crashed JVM. What it had not finished is
repeated from its checkpoint by the next one. Between two starts there is a pause that doubles; a driver that
finished a batch sets it back. After so many starts in a row without a finished batch the supervisor gives up.

One thread reads the driver's reports, one tells the nodes, and the caller's waits for either. The answer of a
node to a report may ask for a restart: then the driver is stopped and another one goes on at its checkpoint.
"""

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import msgspec

from millrace.broker.meta.pipelines import wrong_text
from millrace.client.connection.tls import CA_VARIABLE
from millrace.client.http import Http, Timeouts
from millrace.client.http_node import JSON_HEADERS, HttpNode, TimeLimit, json_body
from millrace.errors import ConfigError, LocalError
from millrace.limits import PIPELINE_LOG_LINE_CHARACTERS_MAX, PIPELINE_LOG_LINES_MAX
from millrace.spark.options import RUN_VARIABLE, URL_VARIABLE, SinkOptions, access, trigger_ms

PAUSE_S_LEAST, PAUSE_S_MOST = 1.0, 30.0
STOP_S = 30.0
_TURN_S = 0.25
_REPORT_EVERY_S = 1.0
_REPORT_TIMEOUT_S = 2.0
_REPORTS_MAX = 10_000
# Without news it is told again, so that a silent pipeline is one whose supervisor is gone.
_REPEAT_S = 5.0
_RESTARTED_MAX = 20
_LOG_TAIL_BYTES = 20_000
_LAST_LINES = 3
_LOG_BYTES_MAX = 64 * 1024 * 1024
URL_SETTING = "spark.millrace.url"
"""Setting of Spark in which a declarative project finds the nodes."""
PROJECT_FILES = ("spark-pipeline.yml", "spark-pipeline.yaml")

NO_JAVA = "Spark needs Java 17 or newer: install it (Debian: apt install openjdk-17-jre-headless)"
NO_SPARK = "Spark is not installed here: pip install 'millrace[spark]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. `urls` are HTTP addresses of nodes, comma separated as the source takes them."""

    name: str
    file: Path
    state: Path
    """Where checkpoints and the driver's log are kept, unless `checkpoints` says otherwise."""
    urls: str
    master: str = "local[*]"
    checkpoints: str | None = None
    settings: tuple[str, ...] = ()
    configuration: tuple[str, ...] = ()
    is_once: bool = False
    trigger: str = "2s"
    """How often a query looks for something new: a number with ms, s, m or h."""
    ui_port: int | None = None
    """Where Spark serves its pages; None for nowhere."""
    starts_max: int = 5
    """So many starts in a row without a finished batch, and it gives up."""
    stop_s: float = STOP_S
    """How long a driver that is told to stop may take before it is killed."""
    is_told: bool = True
    """Whether the nodes are told how it goes."""
    run: str = ""
    """Which run of a pipeline of the cluster this is; empty for a pipeline of a terminal."""

    @property
    def log(self) -> Path:
        return self.state / "driver.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryState:
    name: str
    batch: int = -1
    rows: int = 0
    """Since the supervisor was started."""
    rows_per_s: float = 0.0
    lag: int | None = None
    batch_ms: int | None = None
    """How long the last batch took, with planning and commit."""
    offset: int | None = None
    """The next offsets to be read, added up over all shards."""
    retries: int = 0
    """How often this driver started it again in place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the terminal and the dashboard show."""

    state: str = "starting"
    restarts: int = 0
    error: str = ""
    ui: str = ""
    """Where Spark serves its pages; empty where it does not."""
    queries: Mapping[str, QueryState] = field(default_factory=dict)


def check_machine() -> None:
    """LocalError with one sentence where Spark cannot run at all."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise LocalError(NO_JAVA)
    from importlib.util import find_spec

    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise LocalError(NO_SPARK)


def check_file(file: Path) -> None:
    """ConfigError unless this is something that can be run."""
    if file.is_dir():
        if not any((file / name).exists() for name in PROJECT_FILES):
            raise ConfigError(f"{file} is no declarative pipeline: it has no {PROJECT_FILES[0]}")
    elif not file.exists():
        raise ConfigError(f"there is no file {file}")
    elif file.suffix not in (".py", ".sql"):
        raise ConfigError(f"{file}: a pipeline is a .py file, a .sql file or a directory")
    elif file.suffix == ".py":
        try:
            complaint = wrong_text(str(file), file.read_bytes())
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error}") from None
        if complaint is not None:
            raise ConfigError(complaint)


class Supervisor:
    """`run` returns when the pipeline has ended as it should; LocalError says why it gave up."""

    def __init__(self, plan: Plan, show: Callable[[State], None]) -> None:
        self.plan = plan
        self._show = show
        self.state = State()
        self._reports: queue.Queue[dict[str, Any]] = queue.Queue(_REPORTS_MAX)
        self._stopping = threading.Event()
        self._restarting = threading.Event()
        self._teller = _Teller(plan, self._restarting.set) if plan.is_told else None
        # Rows of the drivers before this one, by query.
        self._rows_before: dict[str, int] = {}
        # What this driver reported, and where its part of the log begins.
        self._reported_error = ""
        self._log_begin = 0

    def stop(self) -> None:
        """Ask it to end; from a signal handler or another thread."""
        self._stopping.set()

    def run(self) -> None:
        check_file(self.plan.file)
        trigger_ms(self.plan.trigger)
        check_machine()
        self.plan.state.mkdir(parents=True, exist_ok=True)
        try:
            self._run()
            self._say(state="stopped", error="")
        except BaseException as error:
            self._say(state="failed", error=str(error)[:1000])
            raise
        finally:
            if self._teller is not None:
                self._teller.close()

    def _run(self) -> None:
        pause_s, fruitless = PAUSE_S_LEAST, 0
        while True:
            code, finished = self._run_driver()
            if self._restarting.is_set() and not self._stopping.is_set():
                self._restarting.clear()
                pause_s, fruitless = PAUSE_S_LEAST, 0
                self._say(restarts=self.state.restarts + 1)
                self._rows_before = {name: query.rows for name, query in self.state.queries.items()}
                continue
            if code == 0 or self._stopping.is_set():
                return
            if code == 2 and self.state.error:
                raise ConfigError(self.state.error)
            fruitless = 0 if finished else fruitless + 1
            pause_s = PAUSE_S_LEAST if finished else min(2 * pause_s, PAUSE_S_MOST)
            reason = self._reported_error or cause_of_death(code, last_words(self.plan.log, self._log_begin))
            if fruitless >= self.plan.starts_max:
                raise LocalError(
                    f"pipeline {self.plan.name} gives up after {fruitless} starts without a finished batch: "
                    f"{reason}; its log is {self.plan.log}"
                )
            self._say(state="waiting", error=reason, restarts=self.state.restarts + 1)
            if self._stopping.wait(pause_s):
                return
            # What was asked for meanwhile happens now.
            self._restarting.clear()
            self._rows_before = {name: query.rows for name, query in self.state.queries.items()}

    # ---------------------------------------------------------------------------------- one driver

    def _run_driver(self) -> tuple[int, bool]:
        """Start a driver and wait for its end; its exit status, and whether it finished a batch."""
        self._say(state="starting")
        reading, writing = os.pipe()
        self._reported_error = ""
        with opened_log(self.plan.log) as log:
            self._log_begin = log.tell()
            driver = subprocess.Popen(
                self._command(writing),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                env=self._environment(),
                # Ctrl-C is for the supervisor, which stops the driver in its own way.
                start_new_session=True,
            )
        os.close(writing)
        # For whoever wants to look at it, or to see what happens when it dies.
        (self.plan.state / "driver.pid").write_text(f"{driver.pid}\n")
        reader = threading.Thread(target=self._read, args=(os.fdopen(reading, "rb"),), daemon=True)
        reader.start()
        if self.plan.file.is_dir():
            self._say(state="running", error="")
        finished = False
        try:
            while driver.poll() is None and not (self._stopping.is_set() or self._restarting.is_set()):
                finished |= self._take(_TURN_S)
        finally:
            code = self._end(driver)
        reader.join(_TURN_S)
        while not self._reports.empty():
            finished |= self._take(0)
        return code, finished

    def _end(self, driver: "subprocess.Popen[bytes]") -> int:
        """The exit status; a driver that still runs is told to stop, and ended if it does not."""
        assert driver.stdin is not None
        try:
            if driver.poll() is None:
                driver.send_signal(signal.SIGTERM)
                driver.stdin.close()
            return driver.wait(self.plan.stop_s)
        except subprocess.TimeoutExpired:
            # With its JVM, which is of the same group; one whose driver is gone ends by itself.
            os.killpg(driver.pid, signal.SIGKILL)
            return driver.wait()
        finally:
            driver.stdin.close()

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                self._reports.put(msgspec.json.decode(line))

    def _take(self, timeout_s: float) -> bool:
        """Take one report, if one comes in time; whether it tells of a finished batch."""
        try:
            report = self._reports.get(timeout=timeout_s) if timeout_s else self._reports.get_nowait()
        except queue.Empty:
            return False
        if "error" in report:
            self._reported_error = str(report["error"])[:1000]
            self._say(error=self._reported_error)
        elif "running" in report:
            names = [str(name) for name in report["running"]]
            known = {name: self.state.queries.get(name, QueryState(name=name)) for name in names}
            self._say(state="running", error="", queries=known, ui=str(report.get("ui", "")))
        else:
            name = str(report.pop("query"))
            report["rows"] += self._rows_before.get(name, 0)
            self._say(queries={**self.state.queries, name: QueryState(name=name, **report)})
            return True
        return False

    def _say(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        self._show(self.state)
        if self._teller is not None:
            self._teller.tell(self.state)

    def _command(self, report: int) -> list[str]:
        plan = self.plan
        if plan.file.is_dir():
            spec = next(plan.file / name for name in PROJECT_FILES if (plan.file / name).exists())
            # It speaks to Spark through a Connect server of its own, which it starts at this master.
            settings = (f"{URL_SETTING}={plan.urls}", *self._ui_settings(), *plan.configuration)
            options = [word for one in settings for word in ("--conf", one)]
            program = str(Path(sys.executable).parent / "spark-pipelines")
            return [program, "--remote", plan.master, *options, "run", "--spec", str(spec.resolve())]
        command = [sys.executable, "-m", "millrace.spark.job", str(plan.file), "--name", plan.name]
        command += ["--url", plan.urls, "--master", plan.master, "--report", str(report)]
        command += ["--checkpoints", plan.checkpoints or str((plan.state / "checkpoints").resolve())]
        command += ["--once"] if plan.is_once else []
        command += ["--trigger", plan.trigger]
        command += [word for one in plan.settings for word in ("--set", one)]
        configuration = (*self._ui_settings(), *plan.configuration)
        return command + [word for one in configuration for word in ("--conf", one)]

    def _ui_settings(self) -> tuple[str, ...]:
        if self.plan.ui_port is None:
            return ()
        return ("spark.ui.enabled=true", f"spark.ui.port={self.plan.ui_port}")

    def _environment(self) -> dict[str, str]:
        # A source or a sink that names no nodes is meant for those of the pipeline.
        configuration = dict(one.split("=", 1) for one in self.plan.configuration if "=" in one)
        urls = {URL_VARIABLE: configuration.get(URL_SETTING, self.plan.urls)}
        if self.plan.run:
            urls[RUN_VARIABLE] = self.plan.run
        if not self.plan.master.startswith("local"):
            # On the driver Spark looks for sources, plans and commits with this interpreter; the workers have
            # theirs. Spark itself reads its setting only where spark-submit starts the driver.
            python = {"PYSPARK_DRIVER_PYTHON": sys.executable, **os.environ, **urls}
            workers = configuration.get("spark.pyspark.python")
            return {**python, "PYSPARK_PYTHON": workers} if workers else python
        # Somebody who sets these knows why.
        return {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **os.environ, **urls}


def opened_log(path: Path) -> IO[bytes]:
    """The log for another driver to write on. A long one is set aside, in place of the one before it."""
    if path.exists() and path.stat().st_size > _LOG_BYTES_MAX:
        path.replace(path.with_name(f"{path.name}.1"))
    return path.open("ab")


def last_lines(path: Path) -> list[str]:
    """The end of a driver's log, as much of it as a node takes."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            data = log.read(_LOG_TAIL_BYTES).decode(errors="replace")
    except OSError:
        return []
    lines = data.splitlines()[-PIPELINE_LOG_LINES_MAX:]
    return [line[:PIPELINE_LOG_LINE_CHARACTERS_MAX] for line in lines]


def last_words(path: Path, begin: int = 0) -> str:
    """Of what a driver wrote on its log, from `begin` on, the last line that names an error; where none does,
    its last lines."""
    with path.open("rb") as log:
        log.seek(max(begin, path.stat().st_size - _LOG_TAIL_BYTES))
        data = log.read(_LOG_TAIL_BYTES).decode(errors="replace")
    lines = [line.strip() for line in data.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return errors[-1][:500] if errors else " | ".join(lines[-_LAST_LINES:])[-500:]


def cause_of_death(code: int, words: str) -> str:
    """Why a driver that said nothing itself has ended: the signal that killed it, and its last words."""
    if code >= 0:
        return words or f"it ended with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the driver was killed by {name}" + (f"; its last words: {words}" if words else "")


class _Teller:
    """Tells every node how it goes, at most once a second, in a thread of its own: a dead node costs the
    pipeline nothing."""

    def __init__(self, plan: Plan, on_restart: Callable[[], None]) -> None:
        self._plan = plan
        self._on_restart = on_restart
        # Numbers of restarts that were asked for and begun, the last one last.
        self._restarted: list[str] = []
        self._path = f"/v1/pipelines/{quote(plan.name, safe='')}"
        given = tuple(url.strip() for url in plan.urls.split(",") if url.strip())
        urls, password = access(SinkOptions(urls=given))
        timeouts = Timeouts(connect_s=_REPORT_TIMEOUT_S, answer_s=_REPORT_TIMEOUT_S)
        self._http = Http(urls, password=password, timeouts=timeouts, ca_file=os.environ.get(CA_VARIABLE))
        self._state: State | None = None
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="millrace-teller", daemon=True)
        self._thread.start()

    def tell(self, state: State) -> None:
        with self._changed:
            self._state = state
            self._changed.notify()

    def close(self) -> None:
        """Returns once the last state was told, or could not be."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        # The nodes that were silent are asked last: twice a connection and an answer.
        self._thread.join(4 * _REPORT_TIMEOUT_S)

    def _run(self) -> None:
        last: State | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._state is not None or self._is_closing, _REPEAT_S)
                state, self._state = self._state, None
                if state is None and self._is_closing:
                    return
                last = state or last
            if last is not None:
                self._put(last)
            with self._changed:
                if not self._is_closing:
                    self._changed.wait_for(lambda: self._is_closing, _REPORT_EVERY_S)

    def _put(self, state: State) -> None:
        fields = msgspec.to_builtins(state)
        fields["queries"] = list(fields["queries"].values())
        fields["place"] = f"{socket.gethostname()}:{self._plan.log.resolve()}"
        fields["log"] = last_lines(self._plan.log)
        fields["restarted"] = self._restarted
        body = json_body(fields)

        def ask(node: HttpNode, limit: TimeLimit) -> None:
            said = node.request(limit, "PUT", self._path, body, headers=JSON_HEADERS).json()
            if isinstance(said, dict):
                self._heed(str(said.get("restart", "")))

        # The report is for onlookers; the pipeline has its own ways to notice a dead node.
        with contextlib.suppress(LocalError):
            self._http.every(ask, what=self._path)

    def _heed(self, restart: str) -> None:
        if restart and restart not in self._restarted:
            self._restarted = [*self._restarted, restart][-_RESTARTED_MAX:]
            self._on_restart()
