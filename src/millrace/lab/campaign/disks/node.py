"""`python -m millrace.lab.campaign.disks.node KIND start ...`: as `millrace start`, on a disk that fails.

KIND is `lossy` or `stalling`. Beside its data directory D the node has `D.unsynced`, what a loss of power may
bring back. No sync returns while there is a file `D.stall`.
"""

import os
import random
import runpy
import sys
from dataclasses import replace
from pathlib import Path

from millrace.lab.campaign.disks.lossy import LossyDisk
from millrace.lab.campaign.disks.stalling import StallingDisk
from millrace.node import surroundings
from millrace.storage.disk import Disk

SEED = "MILLRACE_CAMPAIGN_SEED"


def program(kind: str) -> tuple[str, ...]:
    """What a Python runs in place of `millrace`."""
    return ("-m", "millrace.lab.campaign.disks.node", kind)


def unsynced(data: Path) -> Path:
    return data.with_name(f"{data.name}.unsynced")


def gate(data: Path) -> Path:
    """While this file is there, the node whose data directory this is syncs nothing."""
    return data.with_name(f"{data.name}.stall")


def main() -> None:
    kind, *arguments = sys.argv[1:]
    data = Path(arguments[arguments.index("--data") + 1])

    def make_disk() -> Disk:
        if kind == "stalling":
            return StallingDisk(gate(data))
        # Each life of a node has chances of its own.
        seed = f"{os.environ.get(SEED, '')} {data.name} {os.getpid()}"
        return LossyDisk(random.Random(seed), unsynced(data), StallingDisk(gate(data)).wait)

    # Before what runs a node is loaded, which takes this.
    surroundings.SYSTEM = replace(surroundings.SYSTEM, make_disk=make_disk)
    sys.argv = ["millrace", *arguments]
    runpy.run_module("millrace.cli.main", run_name="__main__")


if __name__ == "__main__":
    main()
