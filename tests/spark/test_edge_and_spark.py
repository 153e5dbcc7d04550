"""`examples/edge_and_spark`: the broker's edge function and Spark make the same of the same messages."""

import asyncio
import io
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from millrace.lab.campaign.pair_run import call
from millrace.local_cluster import LocalCluster
from waiting import until_async

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "edge_and_spark"
MACHINES, COUNT = 3, 40
_QUERY_S_MAX = 300
STREAMS: tuple[dict[str, object], ...] = (
    {
        "name": "vibration",
        "filters": ["vibration/#"],
        "replication": "primary-backup",
        "edge": "vibration:edge",
    },
    {"name": "verdicts", "filters": ["verdicts/#"]},
)


def run_pipeline(spark: Any, url: str, checkpoints: str) -> None:
    """To the end of what is there."""
    from millrace.spark import job
    from millrace.spark.flow import Flow

    flow = Flow(spark=spark, url=url, checkpoints=checkpoints, settings={}, is_once=True)
    job.load(FOLDER / "pipeline.py")(flow)
    watches = [job.Watch(name, query) for name, query in flow.start().items()]
    stopping = threading.Event()
    timer = threading.Timer(_QUERY_S_MAX, stopping.set)
    timer.start()
    try:
        job.watch(flow, watches, stopping, io.StringIO())
    finally:
        timer.cancel()


@contextmanager
def background_loop() -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """An event loop in a thread; what is given is run there to its end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda work: asyncio.run_coroutine_threadsafe(work, loop).result(_QUERY_S_MAX)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_both_make_the_same_of_the_same_messages(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER), prepend=":")
    monkeypatch.setenv("MILLRACE_EDGE__MODULES", "vibration")
    import compare
    import machines
    import vibration

    async def publish(cluster: LocalCluster) -> None:
        first = cluster.nodes[0]
        for body in STREAMS:
            await call(first, "POST", "/v1/streams", body)
        await machines.run([node.url for node in cluster.nodes], COUNT, MACHINES, 0.01)
        expected = 0
        for machine in range(MACHINES):
            async for payload in machines.readings(COUNT, machine):
                expected += vibration.verdict(payload) is not None
        assert 0.8 * COUNT * MACHINES < expected < COUNT * MACHINES, "some are no readings"

        def made() -> int:
            return sum(map(len, compare.outputs(first.http_url)[0].values()))

        await until_async(lambda: made() == expected, "the function in the broker", 60.0)

    # Spark knows its session by the thread that made it, so it is the nodes that go elsewhere.
    with background_loop() as run:
        cluster = LocalCluster(2, tmp_path / "nodes")
        run(cluster.start())
        try:
            run(publish(cluster))
            url = cluster.nodes[0].http_url
            run_pipeline(spark, url, str(tmp_path / "checkpoints"))
            edge, by_spark = compare.outputs(url)
            assert sorted(edge) == [f"m{number}" for number in range(MACHINES)]
            assert compare.differences(edge, by_spark) == []
        finally:
            run(cluster.stop())
