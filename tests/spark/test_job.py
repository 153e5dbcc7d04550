"""The driver of a pipeline without a session: what a file defines, and how it reaches the workers."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'millrace[spark]'")

from pyspark import cloudpickle

from millrace.spark import job

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
_IN_A_WORKER = """
import pickle, sys
from collections import namedtuple

class State:
    value = None
    exists = lambda self: self.value is not None
    get = lambda self: self.value
    def update(self, value): self.value = value

class Handle:
    def getValueState(self, name, schema): return State()

Row = namedtuple("Row", "sequence temperature")
processor = pickle.load(sys.stdin.buffer)
processor.init(Handle())
found = []
for batch in ([(3, 36), (1, 20), (2, 35)], [(4, 37), (5, 38)], [(6, 20), (7, 35), (8, 20)]):
    found += processor.handleInputRows(("d1",), iter([Row(*row) for row in batch]), None)
print([(row.topic, row.payload) for row in found])
"""


def test_what_a_pipeline_defines_travels_to_workers_that_do_not_have_the_file() -> None:
    """The alerts' state machine, unpickled in another process: hot readings are counted over batches, in the
    order of their sequence, and an episode has one beginning and one end."""
    build: Any = job.load(EXAMPLES / "alerts" / "pipeline.py")
    processor = build.__globals__["Episodes"](30.0, 3)
    done = subprocess.run(
        [sys.executable, "-c", _IN_A_WORKER],
        input=cloudpickle.dumps(processor),
        capture_output=True,
        timeout=120,
        cwd="/",
        check=True,
    )
    assert done.stdout.decode().strip() == str(
        [
            ("alerts/d1", '{"device": "d1", "episode": "begins", "sequence": 4}'),
            ("alerts/d1", '{"device": "d1", "episode": "ends", "sequence": 6}'),
        ]
    )


def test_lag_is_what_lies_between_a_batch_and_the_end_of_the_logs() -> None:
    """A source that does not say where it ends has no lag; a new shard counts from 0."""
    ours = {"endOffset": '{"1": 5, "2": 7}', "latestOffset": '{"1": 9, "2": 7, "3": 4}'}
    assert job._lag({"sources": [ours]}) == 8
    assert job._lag({"sources": [ours, {"endOffset": "17", "latestOffset": None}]}) == 8
    assert job._lag({"sources": [{"endOffset": "17", "latestOffset": "20"}]}) is None


def test_what_a_query_reached_is_added_up_over_shards_and_sources() -> None:
    ours = {"endOffset": '{"1": 5, "2": 7}', "latestOffset": '{"1": 9, "2": 7}'}
    assert job._reached({"sources": [ours, ours, {"endOffset": "17"}]}) == 24
    assert job._reached({"sources": [{"endOffset": None}]}) is None
