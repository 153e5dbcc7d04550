"""In place of Spark: the supervisor of a pipeline with a driver that copies numbers, for fast tests.

`interpreter` makes a program that nodes start as their `pipelines.python`: it is the real supervisor, which
starts this file as the driver. The driver counts up in a file that stands for the checkpoint, and writes each
number once as a batch of its own: it remembers what it is about to write before it writes it, like Spark. The
text of the pipeline is JSON in a SQL file: `stream` where it writes, `fail` why it cannot.
"""

import argparse
import json
import os
import signal
import stat
import sys
import threading
import time
from pathlib import Path

_INTERPRETER = """#!{python}
import sys
sys.path[:0] = {path!r}
from millrace.spark import declared, supervisor

def command(self, report):
    return [{python!r}, {driver!r}, "--report", str(report), "--file", str(self.plan.file),
            "--url", self.plan.urls, "--checkpoints", self.plan.checkpoints]

supervisor.check_machine = lambda: None
supervisor.Supervisor._command = command
sys.exit(declared.main())
"""
_PAUSE_S = 0.05


def interpreter(directory: Path) -> str:
    """The setting `pipelines.python` of a node whose pipelines are run by stand-ins."""
    path = directory / "python"
    here = Path(__file__).resolve()
    roots = [str(here.parents[1]), str(here.parents[2] / "src")]
    path.write_text(_INTERPRETER.format(python=sys.executable, path=roots, driver=str(here)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def _until_told(stopping: threading.Event) -> None:
    def read() -> None:
        while os.read(0, 1):
            pass
        stopping.set()

    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threading.Thread(target=read, daemon=True).start()


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--report", "--file", "--url", "--checkpoints"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    stopping = threading.Event()
    _until_told(stopping)
    text = json.loads(Path(given.file).read_text())
    with os.fdopen(int(given.report), "w") as out:

        def say(**fields: object) -> None:
            out.write(json.dumps(fields) + "\n")
            out.flush()

        if "fail" in text:
            say(error=text["fail"])
            return 2
        say(running=["count"], ui="http://127.0.0.1:4040")
        print("the driver writes", flush=True)
        return _count(text["stream"], given, stopping, say)


def _count(stream: str, given: argparse.Namespace, stopping: threading.Event, say: object) -> int:
    sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
    from e2e.staged import Writer
    from millrace.spark.options import SinkOptions, access
    from millrace.spark.writing import ClusterWriter

    planned = Path(given.checkpoints.removeprefix("file://")) / "planned"
    # Who begins at another checkpoint is another writer.
    name = planned.with_name("writer")
    if not name.exists():
        name.write_text(f"w-{os.getpid()}-{time.time_ns()}")
    urls = tuple(given.url.split(","))
    writer = Writer(name.read_text(), urls, stream)
    writer.cluster = ClusterWriter(*access(SinkOptions(urls=urls)), 30.0)
    number = int(planned.read_text()) if planned.exists() else 0
    while not stopping.is_set():
        # Whole or not at all: the driver may be killed here.
        aside = planned.with_name(f"planned.{os.getpid()}")
        aside.write_text(str(number))
        aside.replace(planned)
        attempt = f"a{os.getpid()}-{number}"
        writer.commit(number, **{attempt: writer.stage(number, attempt, [number])})
        say(query="count", batch=number, rows=1, rows_per_s=1.0, lag=0)  # type: ignore[operator]
        number += 1
        stopping.wait(_PAUSE_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
