"""`writeStream.format("millrace")`: topic to Spark to topic, each row once, over every kind of death.

A driver of its own process is killed where it hurts: after its tasks staged and before the commit, and after
the commit and before Spark wrote down that the batch is through. `dying_sink` is the real sink with one line
more at that place.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from spark.filling import fill
from waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MakeStream = Callable[..., str]
_QUERY_S_MAX = 600
# Spark gives a planning worker ten seconds to start, which a loaded machine may miss.
_SLOW_START = "Python worker failed to connect back"
_STARTS_MAX = 5
_ROOT = Path(__file__).resolve().parents[2]


class Copy:
    """A query from one stream to another; it may be run again from its checkpoint."""

    def __init__(self, url: str, checkpoint: Path, source: str, target: str) -> None:
        self.url, self.checkpoint, self.source, self.target = url, checkpoint, source, target

    def start(self, spark: Any, sink: str = "millrace") -> Any:
        frame = (
            spark.readStream.format("millrace")
            .options(url=self.url, stream=self.source, startingOffsets="earliest", maxRowsPerTrigger="300")
            .load()
            .selectExpr(f"replace(topic, '{self.source}/', '{self.target}/') as topic", "payload")
        )
        writer = frame.writeStream.format(sink).option("checkpointLocation", str(self.checkpoint))
        return writer.options(url=self.url, stream=self.target).trigger(availableNow=True).start()

    def run(self, spark: Any) -> None:
        """To the end, with another try from the checkpoint where Spark could not even start a worker."""
        for _ in range(_STARTS_MAX):
            try:
                assert self.start(spark).awaitTermination(_QUERY_S_MAX), "the query did not end"
                return
            except Exception as error:
                if _SLOW_START not in str(error):
                    raise
        raise AssertionError("Spark could not start its workers")

    def run_driver(self, die: str) -> int:
        """The same in a process of its own, which kills itself at the place named."""
        code = "from spark.dying_sink import drive; drive()"
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(_ROOT / "src"), str(_ROOT / "tests"))),
            "DIE": die,
            "COPY": "|".join((self.url, str(self.checkpoint), self.source, self.target)),
        }
        for _ in range(_STARTS_MAX):
            done = subprocess.run(
                [sys.executable, "-c", code],
                env=variables,
                capture_output=True,
                text=True,
                timeout=_QUERY_S_MAX,
                check=False,
            )
            if _SLOW_START not in done.stderr:
                break
        print(done.stdout, done.stderr[-3_000:])
        return done.returncode


def payloads(http: Http, stream: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for row in http.get(f"/v1/streams/{stream}")["shard_list"]:
        offset = int(row["first_offset"])
        while offset < int(row["next_offset"]):
            page = http.messages(stream, row["shard"], offset)
            found.update(message["payload"].encode() for message in page["messages"])
            offset = int(page["next_offset"])
    return found


def staged(http: Http, stream: str) -> int:
    return sum(int(row["staged_bytes"]) for row in http.get(f"/v1/streams/{stream}")["shard_list"])


@pytest.fixture
def copy(node: BrokerProcess, make_stream: MakeStream, tmp_path: Path) -> Copy:
    return Copy(node.url, tmp_path / "checkpoint", make_stream(shards=2), make_stream(shards=2))


def put(node: BrokerProcess, copy: Copy, first: int, after: int) -> None:
    fill(node.port, [(f"{copy.source}/{n % 9}", b"%d" % n) for n in range(first, after)])


def numbers(after: int) -> Counter[bytes]:
    return Counter(b"%d" % n for n in range(after))


def test_a_stream_is_copied_once_over_restarts(
    spark: Any, http: Http, node: BrokerProcess, copy: Copy
) -> None:
    """Several batches, a second run from the checkpoint, and one with nothing to do."""
    put(node, copy, 0, 1_000)
    copy.run(spark)
    assert payloads(http, copy.target) == numbers(1_000)
    put(node, copy, 1_000, 1_500)
    copy.run(spark)
    copy.run(spark)
    assert payloads(http, copy.target) == numbers(1_500)
    # The writer's name is the query's, which the checkpoint keeps.
    query_id = json.loads((copy.checkpoint / "metadata").read_text())["id"]
    shown = http.get(f"/v1/writers/{query_id}")
    assert shown["last_batch"] >= 5 and shown["staged"] == [] and shown["not_visible"] == []


@pytest.mark.parametrize("place", ["before commit", "after commit"])
def test_a_killed_driver_leaves_no_doubles(
    spark: Any, http: Http, node: BrokerProcess, copy: Copy, place: str
) -> None:
    """The driver dies in its second batch; a new one goes on from the checkpoint and repeats that batch."""
    put(node, copy, 0, 1_000)
    assert copy.run_driver(place) == -signal.SIGKILL
    seen = payloads(http, copy.target)
    # A batch has about 300 rows, shared by two shards.
    assert len(seen) // 290 == {"before commit": 1, "after commit": 2}[place] and set(seen.values()) == {1}
    assert (staged(http, copy.target) > 0) == (place == "before commit")
    copy.run(spark)
    assert payloads(http, copy.target) == numbers(1_000)
    until(lambda: staged(http, copy.target) == 0, "what lost to be dropped")


def test_a_killed_worker_leaves_no_doubles(spark: Any, http: Http, node: BrokerProcess, copy: Copy) -> None:
    """A Python worker, or a task in Java, dies after it staged; the next try stages again, and one wins."""
    put(node, copy, 0, 1_000)
    assert copy.run_driver("worker") == 1
    assert set(payloads(http, copy.target).values()) <= {1}
    copy.run(spark)
    assert payloads(http, copy.target) == numbers(1_000)
    until(lambda: staged(http, copy.target) == 0, "what lost to be dropped")
