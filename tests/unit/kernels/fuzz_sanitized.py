"""Run by test_sanitized in a process of its own, under the address sanitizer: EXTENSION SEED SECONDS.

The sanitizer ends the process at the first read or write out of bounds. The answers are compared with the
Python twin as well, so that the input is known to reach the code. Prints how many calls were made.
"""

import importlib.util
import sys
import time
from array import array
from random import Random
from typing import Any

from millrace.kernels import blocks, filters, packing, pure
from unit.kernels.block_inputs import runs
from unit.kernels.filter_inputs import filter_calls
from unit.kernels.kernel_inputs import calls
from unit.kernels.packing_inputs import slices, table


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
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        for name, arguments in calls(random):
            assert outcome(compiled, name, arguments) == outcome(pure, name, arguments), (name, arguments)
            done += 1
        for name, arguments in filter_calls(random):
            assert outcome(compiled, name, arguments) == outcome(filters, name, arguments), (name, arguments)
            done += 1
        made = runs(random)
        assert outcome(compiled, "scan_rows", (made, {})) == outcome(blocks, "scan_rows", (made, {})), made
        assert outcome(compiled, "join_body", (made, b"k")) == outcome(blocks, "join_body", (made, b"k")), (
            made
        )
        given = table(random)
        assert outcome(compiled, "pack_rows", given) == outcome(packing, "pack_rows", given), given
        cut = slices(random)
        assert outcome(compiled, "gather", cut) == outcome(packing, "gather", cut), cut
        data = random.randbytes(random.randint(1, 40))
        places = memoryview(array("I", (random.randrange(len(data)) for _ in range(random.randint(0, 9)))))
        assert compiled.first_bytes(data, places) == blocks.first_bytes(data, places)
        done += 5
    print(done)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
