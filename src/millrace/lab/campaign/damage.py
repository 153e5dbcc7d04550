"""Files of one node are damaged while it is down: bits are flipped, ends cut off, what was synced too.

The node must come back by itself, or say that a file is damaged and refuse to start; then its directory is
emptied and it joins again, as the documentation tells a person. What it serves, from the moment it is ready,
must be what the others have, block for block; and in the end its logs must equal theirs.
"""

import argparse
import asyncio
import os
import random
from contextlib import suppress
from pathlib import Path

from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.logs import blocks_of
from millrace.lab.campaign.run import Run
from millrace.lab.campaign.stage import STREAM, Late, Stage, until
from millrace.local_cluster import NodeProcess
from millrace.storage.block import BlockDamaged

_WORDS = ("damage", "lost", "repair", "cut off", "checksum")
_TAIL_BYTES = 4096
_DAMAGED = "millrace_storage_damaged_logs "
_REPAIR_S = 60.0
# A node with a damaged file of its identity or its vote does not start, and what else is damaged is not
# looked at then: most damages are where most bytes are.
_BY_SIZE = 0.95


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=20, help="damages in all")
    parser.add_argument("--per-round", type=int, default=5, help="of one node before it starts again")


def hurt(data: Path, rng: random.Random) -> str:
    """One damage somewhere below this directory; what it was. Files are chosen by their size or evenly."""
    files = sorted(path for path in data.rglob("*") if path.is_file() and path.stat().st_size)
    files = [path for path in files if path.name != "LOCK"]
    sizes = [path.stat().st_size for path in files]
    path = rng.choices(files, weights=sizes if rng.random() < _BY_SIZE else None)[0]
    size = path.stat().st_size
    name = path.relative_to(data)
    if rng.random() < 0.3:
        cut = rng.randint(1, min(size, _TAIL_BYTES))
        os.truncate(path, size - cut)
        return f"{name} loses its last {cut} bytes"
    # In what was written last, every second time.
    first = max(0, size - _TAIL_BYTES) if rng.random() < 0.5 else 0
    bit = rng.randrange(first * 8, size * 8)
    with path.open("r+b") as file:
        file.seek(bit >> 3)
        (old,) = file.read(1)
        file.seek(bit >> 3)
        file.write(bytes((old ^ (1 << (bit & 7)),)))
    return f"{name}, bit {bit & 7} of byte {bit >> 3} of {size}"


def _served(node: NodeProcess, shard: int) -> tuple[dict[int, bytes], int]:
    """*blocking* What a node hands out of this shard, by offset, and how much of it cannot be read; nothing
    where it refuses."""
    found = {}
    try:
        for block in blocks_of(node, STREAM, shard):
            found[int(block.header.base_offset)] = block.to_bytes()
    except BlockDamaged:
        return found, 1
    except LocalError:
        # It has not the block, and says so, or it is still becoming a replica.
        pass
    return found, 0


async def _differences(stage: Stage, victim: NodeProcess) -> int:
    """Blocks that it serves now and that are not those of the others."""
    witness = next(node for node in stage.nodes if node is not victim)
    wrong = 0
    for shard in stage.shards:
        # The witness is asked later: it has what the other has.
        seen, unreadable = await asyncio.to_thread(_served, victim, shard)
        true, _ = await asyncio.to_thread(_served, witness, shard)
        wrong += unreadable + sum(offset in true and true[offset] != data for offset, data in seen.items())
    return wrong


async def _left(victim: NodeProcess) -> int:
    """How many of its logs are still damaged when it had its time to repair them."""

    def ask() -> int:
        with Http(victim.http_url) as http:
            lines = bytes(http.request("GET", "/metrics").body).decode().splitlines()
        return round(sum(float(line.split()[-1]) for line in lines if line.startswith(_DAMAGED)))

    left = 0

    async def is_repaired() -> bool:
        nonlocal left
        left = await asyncio.to_thread(ask)
        return left == 0

    with suppress(Late):
        await until(is_repaired, "its logs are repaired", _REPAIR_S)
    return left


async def body(run: Run) -> None:
    stage, given, report = run.stage, run.given, run.report
    done = told = refused = harmless = 0
    async with run.load() as load:
        while done < given.count:
            victim = run.rng.choice(stage.nodes)
            await (victim.kill() if run.rng.random() < 0.5 else victim.stop())
            count = min(given.per_round, given.count - done)
            hurts = [hurt(victim.data, run.rng) for _ in range(count)]
            done += count
            victim.lines.clear()
            try:
                await victim.start()
            except LocalError as error:
                refused += 1
                run.say(f"{victim.name} refuses to start, and joins again: {error}")
                report.require("damage" in str(error), f"{victim.name} does not start: {error} ({hurts})")
                await stage.start_empty(victim)
            wrong = await _differences(stage, victim)
            report.require(not wrong, f"{victim.name} served {wrong} wrong blocks after {hurts}")
            whole_s = await stage.whole()
            # Two nodes that are damaged at a time may have lost the same, which nobody promises to keep.
            left = await _left(victim)
            report.require(not left, f"{victim.name} did not repair {left} of its logs after {hurts}")
            says = [line for line in victim.lines if any(word in line for word in _WORDS)]
            told += bool(says)
            harmless += not says
            report.note("damages done", done)
            run.say(
                f"{done}/{given.count} {victim.name}: {'; '.join(hurts)}: whole after {whole_s:.1f} s; "
                f"it said: {says[0][:160] if says else 'nothing'}"
            )
        report.note("starts that told of damage", told)
        report.note("starts that were refused", refused)
        report.note("starts that found nothing to tell", harmless)
        await load.finish()
        await stage.whole()
        await judge(stage, load, report)
