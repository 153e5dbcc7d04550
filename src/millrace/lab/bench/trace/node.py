"""A node that traces itself: `python -m millrace.lab.bench.trace.node time|calls DIRECTORY start ...`.

It begins to trace with SIGUSR1. With SIGUSR2 it ends that and writes what it found to PID.json in the
directory.
"""

import json
import os
import runpy
import signal
import sys
from pathlib import Path

from millrace.lab.bench.trace.steps import Tracer


def main() -> None:
    kind, directory = sys.argv[1:3]
    tracer = Tracer(counts=kind == "calls")
    tracer.install()

    def write() -> None:
        half = Path(directory, f"{os.getpid()}.half")
        half.write_text(json.dumps(tracer.end()))
        half.rename(half.with_suffix(".json"))

    signal.signal(signal.SIGUSR1, lambda number, frame: tracer.begin())
    signal.signal(signal.SIGUSR2, lambda number, frame: write())
    sys.argv[1:3] = []
    runpy.run_module("millrace.cli.main", run_name="__main__")


if __name__ == "__main__":
    main()
