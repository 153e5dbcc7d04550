"""Run by test_sanitized in a process of its own, under the address sanitizer: EXTENSION SEED SECONDS.

The sanitizer ends the process at the first read or write out of bounds. The answers are compared with the
Python twin as well, so that the input is known to reach the code. Prints how many calls were made.
"""

import importlib.util
import sys
import time
from random import Random
from typing import Any

from millrace.kernels import blocks, pure
from unit.kernels.block_inputs import runs
from unit.kernels.kernel_inputs import calls


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("_kernels", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outcome(twin: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    try:
        return getattr(twin, name)(*arguments)
    except ValueError as error:
        return str(error)


def main(path: str, seed: int, seconds: float) -> None:
    compiled = load(path)
    random = Random(seed)
    done = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for name, arguments in calls(random):
            assert outcome(compiled, name, arguments) == outcome(pure, name, arguments), (name, arguments)
            done += 1
        made = runs(random)
        assert outcome(compiled, "scan_rows", (made, {})) == outcome(blocks, "scan_rows", (made, {})), made
        done += 1
    print(done)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
