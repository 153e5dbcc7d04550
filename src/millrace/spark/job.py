"""The driver of a pipeline: a process of its own, started and watched by a supervisor (`supervisor`).

    python -m millrace.spark.job FILE --url URL --checkpoints DIR --master M --report FD [--once] [--set K=V]

It builds the queries, starts them, and says how they go: a JSON object on a line each, on the descriptor it
was given, because the pipeline's own prints belong to standard output. It ends when a query fails, when all
have read what was there (`--once`), when it is told to (SIGTERM), and when its standard input ends: a
supervisor that was killed leaves no driver behind.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from millrace.broker.meta.pipelines import syntax_complaint
from millrace.errors import ConfigError, LocalError
from millrace.spark import sql
from millrace.spark.flow import Flow
from millrace.spark.options import trigger_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Build = Callable[[Flow], None]

_POLL_S = 0.25
# Spark gives a Python process ten seconds to come up and then fails the query. On a busy machine that is no
# fault of the query: it is started again in place, because another driver would only add to the load.
_SLOW_WORKER = "failed to connect back"
_SLOW_WORKERS_MAX = 30
_ERROR_CHARACTERS = 600
_MODULE = "millrace_pipeline"
# Conditions of Spark that stay until the pipeline is changed or what it names is made. A node that cannot be
# reached has others.
_LASTING = ("TABLE_OR_VIEW_NOT_FOUND", "UNRESOLVED_COLUMN", "UNRESOLVED_ROUTINE", "SCHEMA_NOT_FOUND")
_STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Watch:
    """One query: what it did since it was last looked at."""

    def __init__(self, name: str, query: "StreamingQuery") -> None:
        self.name, self.query = name, query
        self._batch = -1
        self._rows = 0
        self._retries = 0

    def go_on(self, query: "StreamingQuery") -> None:
        """The same query, started again."""
        self.query = query
        self._retries += 1

    def news(self) -> dict[str, Any] | None:
        """A report if a batch has ended since the last."""
        fresh = [one for one in self.query.recentProgress if int(one["batchId"]) > self._batch]
        if not fresh:
            return None
        last = fresh[-1]
        self._batch = int(last["batchId"])
        self._rows += sum(int(one["numInputRows"]) for one in fresh)
        return {
            "query": self.name,
            "batch": self._batch,
            "rows": self._rows,
            "rows_per_s": round(float(last.get("processedRowsPerSecond") or 0.0), 1),
            "lag": _lag(last),
            "batch_ms": (last.get("durationMs") or {}).get("triggerExecution"),
            "offset": _reached(last),
            "retries": self._retries,
        }


def _reached(progress: Mapping[str, Any]) -> int | None:
    """The next offsets to be read, added up over shards and sources; None where no source says."""
    ends = [_positions(source.get("endOffset")) for source in progress["sources"]]
    known = [sum(end.values()) for end in ends if end is not None]
    return sum(known) if known else None


def _lag(progress: Mapping[str, Any]) -> int | None:
    """Offsets between the end of the batch and the end of the logs, over the sources that say."""
    total = None
    for source in progress["sources"]:
        end, latest = _positions(source.get("endOffset")), _positions(source.get("latestOffset"))
        if end is not None and latest is not None:
            waiting = sum(max(0, offset - end.get(shard, 0)) for shard, offset in latest.items())
            total = waiting + (total or 0)
    return total


def _positions(value: Any) -> dict[str, int] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    is_position = isinstance(value, dict) and all(isinstance(offset, int) for offset in value.values())
    return value if is_position else None


def session(name: str, master: str, configuration: Mapping[str, str]) -> "SparkSession":
    """Local runs use this interpreter and the loopback address; a cluster has its own settings for both."""
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        "spark.sql.streaming.stateStore.providerClass": _STATE_STORE,
        # How long a Python worker may take to come up: a loaded machine is slow, not broken.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**defaults, **configuration}.items():
        builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("WARN")
    return made


def load(file: Path) -> Build:
    """The function that names the sources and sinks. Before there is a session: a file that cannot be read
    fails at once."""
    if file.suffix == ".sql":
        text = file.read_text()
        return lambda flow: sql.build(flow, text)
    from pyspark import cloudpickle

    spec = spec_from_file_location(_MODULE, file)
    assert spec is not None and spec.loader is not None, "the supervisor looked at the name"
    module = module_from_spec(spec)
    # A pipeline may import what lies beside it.
    sys.path.insert(0, str(file.resolve().parent))
    sys.modules[spec.name] = module
    # The workers cannot import a file that only the driver has: its functions and classes travel whole.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        # Also in what it imports: to start again would not help.
        raise ConfigError(syntax_complaint(error, file)) from None
    function = getattr(module, "build", None)
    if not callable(function):
        raise ConfigError(f"{file} has no function build(flow)")
    return function  # type: ignore[no-any-return]


def watch(flow: Flow, watches: list[Watch], stopping: threading.Event, out: TextIO) -> None:
    """Report until all queries have ended or somebody says stop; LocalError for a query that failed."""
    again = 0
    while True:
        is_stopping, is_active = stopping.is_set(), any(one.query.isActive for one in watches)
        for one in watches:
            report = one.news()
            if report is not None:
                again = 0
                _say(out, report)
            error = one.query.exception()
            if error is not None:
                if _SLOW_WORKER not in str(error) or again >= _SLOW_WORKERS_MAX:
                    raise LocalError(f"{one.name}: {_first_sentence(str(error))}")
                again += 1
                is_active = True
                one.go_on(flow.start_sink(one.name))
        if is_stopping or not is_active:
            return
        stopping.wait(_POLL_S)


def _first_sentence(text: str) -> str:
    """Of a failure in a worker the last line of its traceback, otherwise the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith(("millrace.", "pyspark.errors", "Caused by:"))]
    chosen = (ours or lines or ["no reason was given"])[0]
    return chosen[:_ERROR_CHARACTERS]


def _say(out: TextIO, fields: Mapping[str, Any]) -> None:
    out.write(json.dumps(fields) + "\n")
    out.flush()


def _stop_when_told(stopping: threading.Event) -> None:
    def read() -> None:
        # Unbuffered: a thread that sleeps in a buffered read keeps the interpreter from ending.
        while os.read(0, 1):
            pass
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    threading.Thread(target=read, name="millrace-parent", daemon=True).start()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="millrace.spark.job")
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--master", required=True)
    parser.add_argument("--report", type=int, required=True)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--trigger", default="2s")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args(arguments)
    stopping = threading.Event()
    _stop_when_told(stopping)
    with os.fdopen(given.report, "w") as out:
        spark = None
        try:
            build = load(given.file)
            spark = session(given.name, given.master, dict(one.split("=", 1) for one in given.conf))
            flow = Flow(
                spark=spark,
                url=given.url,
                checkpoints=given.checkpoints,
                settings=dict(one.split("=", 1) for one in given.set),
                is_once=given.once,
                trigger_ms=trigger_ms(given.trigger),
            )
            _build(build, flow)
            watches = [Watch(name, query) for name, query in flow.start().items()]
            _say(out, {"running": sorted(flow.sinks), "ui": spark.sparkContext.uiWebUrl or ""})
            watch(flow, watches, stopping, out)
            _stop(watches)
        except ConfigError as error:
            _say(out, {"error": str(error), "is_final": True})
            return 2
        except Exception as error:
            # Whatever a pipeline's own code raises ends the driver; its log has the traceback.
            _say(out, {"error": _first_sentence(str(error)) or type(error).__name__})
            raise
        finally:
            if spark is not None:
                spark.stop()
    return 0


def _build(build: Build, flow: Flow) -> None:
    """Let the pipeline name its sources and sinks. ConfigError for a table, a column or a function that is
    not there, and for SQL that Spark does not understand: another start would find the same."""
    from pyspark.errors import AnalysisException, ParseException

    try:
        build(flow)
    except AnalysisException as error:
        condition = error.getCondition() or ""
        if not isinstance(error, ParseException) and not condition.startswith(_LASTING):
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        place = next((line for line in lines if line.startswith("== SQL (line")), "")
        where = _line_of(error)
        raise ConfigError(
            " ".join(part for part in (where, lines[0], place.strip("= ")) if part)[:_ERROR_CHARACTERS]
        ) from None


def _line_of(error: BaseException) -> str:
    """The line of the pipeline's own file at which it happened; nothing for a SQL file."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == _MODULE:
            found = f"{trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}:"
        trace = trace.tb_next
    return found


def _stop(watches: list[Watch]) -> None:
    """A batch that is under way may end first: what it has done need not be done again."""
    deadline_s = time.monotonic() + 5.0
    for query in (one.query for one in watches):
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline_s:
            time.sleep(0.05)
        query.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
