"""What campaigns judge and break by, without a cluster."""

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millrace.errors import LocalError
from millrace.lab.campaign.churn import Use, judge_growth
from millrace.lab.campaign.damage import hurt
from millrace.lab.campaign.faults import kinds
from millrace.lab.campaign.partitions import cut
from millrace.lab.campaign.random_kills import _Restarts
from millrace.lab.campaign.report import Report
from millrace.local_cluster import NodeProcess

SAMPLES = 120


def growth(**by_sample: Any) -> list[str]:
    """What is told of a node whose figures follow these functions of the sample."""

    def at(number: int) -> Use:
        flat = {"memory, MiB": 80.0, "descriptors": 40.0, "threads": 8.0, "files": 30.0}
        return Use(flat | {name.replace("_", ", "): of(number) for name, of in by_sample.items()})

    report = Report("test")
    run: Any = SimpleNamespace(report=report)
    judge_growth({"n1": [at(number) for number in range(SAMPLES)]}, run)
    return [violation.split(" grew")[0] for violation in report.violations]


def test_what_grows_after_the_warm_up_is_told_and_what_is_flat_or_settles_is_not() -> None:
    assert growth() == []
    assert growth(memory_MiB=lambda number: 60 + min(number, SAMPLES // 4)) == []
    assert growth(memory_MiB=lambda number: 80 + number / 2) == ["n1: memory, MiB"]
    assert growth(descriptors=lambda number: 40 + number, files=lambda number: 30 + number) == [
        "n1: descriptors",
        "n1: files",
    ]
    assert growth(threads=lambda number: 8 + number // 20) == ["n1: threads"]
    spikes = growth(memory_MiB=lambda number: 300 if number % 10 == 0 else 80)
    assert spikes == [], "one sample in ten says nothing of the rest"


@pytest.mark.parametrize("seed", range(30))
def test_a_damage_flips_one_bit_or_cuts_the_end_of_one_file_and_leaves_the_lock_alone(
    tmp_path: Path, seed: int
) -> None:
    (tmp_path / "shards").mkdir()
    files = {
        tmp_path / "FORMAT": bytes(100),
        tmp_path / "shards" / "log": bytes(5000),
        tmp_path / "LOCK": b"me",
    }
    for path, data in files.items():
        path.write_bytes(data)
    said = hurt(tmp_path, random.Random(seed))
    changed = {path: path.read_bytes() for path, data in files.items() if path.read_bytes() != data}
    ((path, now),) = changed.items()
    was = files[path]
    assert path.name != "LOCK" and path.name in said
    if len(now) < len(was):
        assert was.startswith(now)
    else:
        flipped = [a ^ b for a, b in zip(was, now, strict=True) if a != b]
        assert len(flipped) == 1 and flipped[0].bit_count() == 1


def test_shapes_that_need_a_network_of_their_own_are_left_out_without_one() -> None:
    assert kinds(None) == ("kill", "stop", "stall")
    networks: Any = object()
    for shape in kinds(networks)[3:]:
        assert cut(shape, 0, [1, 2])


class _Slow:
    """A node that is killed in its first starts, and then serves, or fails by itself."""

    name = "n1"

    def __init__(self, kills: int, *, fails: bool) -> None:
        self.left, self.fails, self.starts = kills, fails, 0
        self.restarts = _Restarts()

    async def kill(self) -> None:
        pass

    async def start(self) -> None:
        self.starts += 1
        if self.left:
            self.left -= 1
            await self.restarts.kill(cast(NodeProcess, self))
            raise LocalError("killed")
        if self.fails:
            raise LocalError("its disk is gone")


def test_a_node_that_is_killed_in_many_starts_in_a_row_is_started_again() -> None:
    async def body() -> None:
        node = _Slow(20, fails=False)
        await node.restarts.kill(cast(NodeProcess, node))
        await node.restarts.done()
        assert (node.starts, node.restarts.in_start) == (21, 20)

    asyncio.run(body())


def test_a_node_that_does_not_start_by_itself_ends_a_campaign() -> None:
    async def body() -> None:
        node = _Slow(2, fails=True)
        await node.restarts.kill(cast(NodeProcess, node))
        with pytest.raises(LocalError, match="its disk is gone"):
            await node.restarts.done()

    asyncio.run(body())
