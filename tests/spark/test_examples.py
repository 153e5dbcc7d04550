"""The ready pipelines of `examples/`, built as `millrace pipeline run --once` builds them, at a real node."""

import importlib.util
import io
import json
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from millrace.client.http import Http
from millrace.limits import DEFAULT_LIMITS
from spark.filling import fill

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "pipelines"
_QUERY_S_MAX = 600
_ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
START_MS = 1_600_000_000_000
Run = Callable[..., None]


def reading(
    device: str, sequence: int, temperature: float, *, after_ms: int | None = None
) -> tuple[str, bytes]:
    time_ms = START_MS + (1_000 * sequence if after_ms is None else after_ms)
    fields = {"device": device, "sequence": sequence, "time_ms": time_ms, "temperature": temperature}
    return f"telemetry/{device}", json.dumps(fields).encode()


# Three hot readings of each, which were an episode if the device had a name that a topic can have.
BAD_NAMES = ["#", "a+b", "a\0b", "a/b", "", "x" * 201]
BAD_TIMES_MS = [-1, 2**63 - 1, int(datetime(2200, 1, 1, tzinfo=UTC).timestamp()) * 1000]
BAD = [
    ("telemetry/d0", b"\xff\xfe no text"),
    ("telemetry/d1", b'{"device": "d1"}'),
    ("telemetry/d1", b"[]"),
    # As large as a node takes it on this topic; the other one is longer.
    ("telemetry/d0", b"x" * (DEFAULT_LIMITS.packet_bytes_max - 20)),
    *(("telemetry/d0", reading(name, n, 99)[1]) for name in BAD_NAMES for n in range(3)),
    *(reading("d0", 100 + n, 20, after_ms=time_ms - START_MS) for n, time_ms in enumerate(BAD_TIMES_MS)),
]
LAST_MS = 3_600_000
MESSAGES = [
    *(reading("d0", n, 20 + n) for n in range(10)),
    # Not sure whether it arrived, the device sends it again.
    reading("d0", 3, 23),
    *BAD,
    *(reading("d1", n, temperature) for n, temperature in enumerate([20, 35, 36, 37, 38, 20, 35, 20])),
    # An hour later, so that every window before is over.
    reading("d0", 10, 20, after_ms=LAST_MS),
    reading("d1", 8, 20, after_ms=LAST_MS),
]


@pytest.fixture(scope="module")
def telemetry(node: BrokerProcess, http: Http) -> None:
    http.call("POST", "/v1/streams", {"name": "telemetry", "filters": ["telemetry/#"], "shards": 2})
    fill(node.port, MESSAGES)


@pytest.fixture
def run(spark: Any, node: BrokerProcess, telemetry: None, tmp_path: Path) -> Run:
    """Build a pipeline and run it to the end of what is there, from its checkpoint if it ran before."""
    from millrace.spark import job
    from millrace.spark.flow import Flow

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _ROCKS)

    def start(file: str, **settings: str) -> None:
        checkpoints = str(tmp_path / "checkpoints")
        flow = Flow(spark=spark, url=node.url, checkpoints=checkpoints, settings=settings, is_once=True)
        job.load(EXAMPLES / file)(flow)
        watches = [job.Watch(name, query) for name, query in flow.start().items()]
        stopping = threading.Event()
        timer = threading.Timer(_QUERY_S_MAX, stopping.set)
        timer.start()
        try:
            job.watch(flow, watches, stopping, io.StringIO())
        finally:
            timer.cancel()
        assert not any(watch.query.isActive for watch in watches), "a query did not end"

    return start


@pytest.fixture
def published(http: Http) -> Callable[[str], list[tuple[str, bytes]]]:
    """What the default stream holds below a topic."""

    def read(root: str) -> list[tuple[str, bytes]]:
        found = []
        for row in http.get("/v1/streams/default")["shard_list"]:
            query: dict[str, Any] = {"from": row["first_offset"], "limit": 10_000, "filter": f"{root}/#"}
            while query["from"] < row["next_offset"]:
                page = http.get(f"/v1/streams/default/shards/{row['shard']}/messages", **query)
                found += [(one["topic"], one["payload"]) for one in page["messages"]]
                query["from"] = page["next_offset"]
        return found

    return read


def test_telemetry(run: Run, published: Any, spark: Any, tmp_path: Path) -> None:
    """Windows of ten seconds, each reading once, on topics and in the table; bad records apart; and a second
    run repeats nothing."""
    for _ in range(2):
        run("telemetry/pipeline.py", tables=str(tmp_path))
    rows = spark.read.parquet(f"{tmp_path}/averages").orderBy("device").collect()
    d0, d1 = sum(range(20, 30)) / 10, sum([20, 35, 36, 37, 38, 20, 35, 20]) / 8
    assert [(row.device, row.mean, row.readings) for row in rows] == [("d0", d0, 10), ("d1", d1, 8)]
    messages = {topic: json.loads(payload) for topic, payload in published("averages")}
    assert {topic: message["mean"] for topic, message in messages.items()} == {
        "averages/d0": d0,
        "averages/d1": d1,
    }
    assert len(published("averages")) == 2
    assert len(published("dead-letter")) == len(BAD)


def test_alerts(run: Run, published: Any) -> None:
    """Four hot readings in a row are one episode with a beginning and an end; one hot reading is none."""
    run("alerts/pipeline.py", limit="30", after="3")
    alerts = [(topic, json.loads(payload)) for topic, payload in published("alerts")]
    assert [(topic, alert["episode"], alert["sequence"]) for topic, alert in alerts] == [
        ("alerts/d1", "begins", 3),
        ("alerts/d1", "ends", 5),
    ]


def test_archive_and_compaction(run: Run, spark: Any, node: BrokerProcess, tmp_path: Path) -> None:
    """Every message once, by date and root, over three runs; compaction keeps the rows of all but the last
    batch in one file, also when an earlier one died half way."""
    lake = tmp_path / "lake"
    run("archive/pipeline.py", lake=str(lake), stream="telemetry")
    for more in (b"more", b"most"):
        fill(node.port, [("telemetry/d9", more)])
        run("archive/pipeline.py", lake=str(lake), stream="telemetry")

    def payloads() -> list[bytes]:
        return sorted(bytes(row.payload) for row in spark.read.parquet(str(lake)).collect())

    expected = sorted([*(payload for _, payload in MESSAGES), b"more", b"most"])
    assert payloads() == expected
    spec = importlib.util.spec_from_file_location("compact", EXAMPLES / "archive" / "compact.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (partition,) = lake.glob("date=*/root=*")
    assert module.compact(lake, date(2026, 1, 1)) == 0, "a day that is not over stays as it is"
    (partition / "_compact").mkdir()
    (partition / "_compact" / "part-0.parquet").write_bytes(b"half a file")
    assert module.compact(lake, date(9999, 12, 31)) == 1
    names = sorted(path.parent.name for path in partition.glob("*/*.parquet"))
    assert names[0] == "batch=-1" and len(names) == 2
    spark.catalog.clearCache()
    assert payloads() == expected


def test_enrich(run: Run, published: Any) -> None:
    """Each reading goes to the room of its device, with the device's correction."""
    run("enrich/pipeline.sql", devices=str(EXAMPLES / "enrich" / "devices.csv"))
    rooms = published("rooms")
    assert {topic for topic, _ in rooms} == {"rooms/hall/d0", "rooms/kitchen/d1"}
    found = sorted(
        json.loads(payload)["temperature"] for topic, payload in rooms if topic.startswith("rooms/kitchen")
    )
    assert found[-1] == pytest.approx(38.1)
    named = [payload for _, payload in MESSAGES if b'"device": "d' in payload and b"time_ms" in payload]
    assert len(rooms) == len(named)
