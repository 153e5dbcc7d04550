"""`pipeline`: from devices to Spark and back; the leader and the driver are killed, nothing is lost or twice.

Three nodes, devices over MQTT, the telemetry pipeline of `examples/` on local Spark. The devices remember
every reading that was acknowledged, with its time, so the number of readings in each window is known. At the
end it is compared with what the pipeline wrote, window by window: fewer is lost, more is twice.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from millrace.client import Client
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.lab.demo import failover
from millrace.lab.demo.devices import Fleet, Habits
from millrace.lab.demo.stage import cluster_of, leader
from millrace.lab.demo.story import Story
from millrace.local_cluster import LocalCluster
from millrace.spark.supervisor import check_machine

PIPELINE = Path(__file__).resolve().parents[4] / "examples" / "pipelines" / "telemetry" / "pipeline.py"
PICTURE = Path("millrace-demo.png")

_NAME = "telemetry"
_DEVICES, _RATE_HZ = 20, 5.0
_WINDOW_MS = 5_000
_WATERMARK_S = 30
# Far ahead of the watermark: a reading of this age closes every window before it. The pipeline takes an hour.
_AHEAD_MS = 1_800_000
_CALM_S = 6.0
_WAIT_S = 600.0
_STOP_S = 60.0
_NEWS_EVERY_S = 5.0
_DEVICES_DRAWN = 8

Window = tuple[str, int]


async def run(story: Story) -> None:
    try:
        check_machine()
        if not PIPELINE.exists():
            raise LocalError(f"the examples are not here: {PIPELINE} is missing")
    except LocalError as error:
        story.say("stage", f"no pipeline: {error}", "yellow")
        story.say("stage", "the cluster alone, then:")
        await failover.run(story)
        return
    story.title("Devices -> cluster -> Spark -> topics and a table; the leader and the driver are killed")
    async with story.lasting(_directory()) as directory, cluster_of(story, 3) as cluster:
        await _Play(story, cluster, directory).run()


@asynccontextmanager
async def _directory() -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory(prefix="millrace-pipeline-") as name:
        yield Path(name)


class _Play:
    def __init__(self, story: Story, cluster: LocalCluster, directory: Path) -> None:
        self._story, self._cluster, self._directory = story, cluster, directory
        self._fleet = Fleet(_DEVICES, Habits(rate_hz=_RATE_HZ))
        self._urls = [node.http_url for node in cluster.nodes]
        self._killed: dict[str, float] = {}
        self._next_news_s = 0.0

    async def run(self) -> None:
        spec = {"name": _NAME, "filters": [f"{_NAME}/#"], "shards": 2}
        await asyncio.to_thread(Http(self._urls[0]).call, "POST", "/v1/streams", spec)
        self._story.say(
            "stage", f"look at {self._urls[1]}/v1/pipelines, or: millrace status --url {self._urls[1]}"
        )
        async with self._story.lasting(_supervised(self._story, self._directory, self._urls)):
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(client) for client in self._clients()]
                flowing = asyncio.create_task(self._fleet.run(clients))
                self._story.say("devices", f"{_DEVICES} of them, {_DEVICES * _RATE_HZ:.0f} readings a second")
                try:
                    await self._kill_things()
                    self._fleet.stop()
                    await flowing
                finally:
                    flowing.cancel()
                    await asyncio.gather(flowing, return_exceptions=True)
                published = dict(self._fleet.acknowledged)
                for number in range(_DEVICES):
                    # Windows end when time goes on; nobody wants to wait for that.
                    await self._fleet.report(clients[0], f"d{number}", 20.0, ahead_ms=_AHEAD_MS)
            self._story.say(
                "devices",
                f"done: {len(published)} readings acknowledged, {self._fleet.repeated} "
                f"sent twice, {self._fleet.bad} that are no reading",
            )
            expected = windows_of(published)
            await self._until(lambda: sum(self._table().values()) >= len(published), "the last windows")
            await self._until_topics(len(expected))
        await self._check(expected)

    def _clients(self) -> list[Client]:
        urls = [node.url for node in self._cluster.nodes]
        return [
            Client([*urls[n:], *urls[:n]], client_id=f"gateway-{n}", session_expiry_s=600) for n in range(3)
        ]

    async def _kill_things(self) -> None:
        await self._until(lambda: self._read() > 0, "the first batch")
        await self._calm()
        victim = await leader(self._cluster.nodes)
        self._story.say(victim.name, "kill -9: it led the cluster", "red")
        self._killed[f"{victim.name} killed"] = time.time()
        await victim.kill()
        await self._calm()
        await victim.start()
        self._story.say(victim.name, "is back with its data")
        before = self._read()
        await self._until(lambda: self._read() > before, "batches after the failover")
        driver = int((self._directory / "state" / "driver.pid").read_text())
        self._story.say("spark", f"kill -9: its driver, process {driver}", "red")
        self._killed["driver killed"] = time.time()
        os.kill(driver, signal.SIGKILL)
        before = self._read()
        await self._until(lambda: self._read() > before, "batches of the next driver")
        await self._calm()

    async def _calm(self) -> None:
        """Let it run for a while."""
        deadline_s = time.monotonic() + _CALM_S
        await self._until(lambda: time.monotonic() > deadline_s, "a calm moment")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition, with a line now and then that shows that things go on."""
        deadline_s = time.monotonic() + _WAIT_S
        while not await asyncio.to_thread(condition):
            now_s = time.monotonic()
            if now_s > deadline_s:
                raise LocalError(f"{what} did not come in {_WAIT_S:.0f} s")
            if now_s > self._next_news_s:
                self._next_news_s = now_s + _NEWS_EVERY_S
                sent, read = len(self._fleet.acknowledged), await asyncio.to_thread(self._read)
                self._story.say("news", f"{sent} readings acknowledged, {read} messages read by Spark", "dim")
            await asyncio.sleep(0.25)

    def _read(self) -> int:
        """Messages that the query of the averages has read, as any node was told."""
        most = 0
        for url in self._urls:
            with contextlib.suppress(LocalError):
                for report in Http(url).call("GET", "/v1/pipelines", timeout_s=1.0)["pipelines"]:
                    most = max(most, *(q["rows"] for q in report["queries"] if q["name"] == "averages"), 0)
        return most

    def _table(self) -> dict[Window, int]:
        return {window: count for window, count, _ in averages(self._directory / "tables" / "averages")}

    async def _until_topics(self, count: int) -> None:
        await self._until(lambda: len(self._messages()) >= count, "the last averages on their topics")

    def _messages(self) -> list[Window]:
        """The windows on `averages/#`, one for each message."""
        found: list[Window] = []
        http = Http(self._urls[0])
        for row in http.get("/v1/streams/default")["shard_list"]:
            offset = row["first_offset"]
            while offset < row["next_offset"]:
                page = http.messages("default", row["shard"], offset, filter="averages/#")
                for message in page["messages"]:
                    fields = json.loads(message["payload"])
                    start = datetime.fromisoformat(fields["start"])
                    found.append((fields["device"], round(start.timestamp() * 1000)))
                offset = page["next_offset"]
        return found

    async def _check(self, expected: Counter[Window]) -> None:
        got = Counter(await asyncio.to_thread(self._table))
        lost, twice = (expected - got).total(), (got - expected).total()
        messages = await asyncio.to_thread(self._messages)
        again = len(messages) - len(set(messages))
        self._story.say(
            "check", f"published {expected.total()}, arrived {got.total()}, twice {twice}, lost {lost}"
        )
        self._story.say(
            "check", f"{len(expected)} windows; messages on averages/#: {len(messages)}, twice {again}"
        )
        with contextlib.suppress(ImportError):
            draw(averages(self._directory / "tables" / "averages"), self._killed, PICTURE)
            self._story.say("check", f"the averages are drawn in {os.path.abspath(PICTURE)}")  # noqa: ASYNC240
        self._story.proved(
            {
                f"all {expected.total()} acknowledged readings are in the averages": lost == 0,
                "none counts twice, though some were sent twice": twice == 0,
                "each window was published once": set(messages) == set(expected) and again == 0,
            }
        )


@asynccontextmanager
async def _supervised(story: Story, directory: Path, urls: list[str]) -> AsyncIterator[None]:
    """`millrace pipeline run` as anybody would start it, stopped at the end."""
    settings = [f"tables={directory / 'tables'}", f"window={_WINDOW_MS // 1000} seconds"]
    settings.append(f"watermark={_WATERMARK_S} seconds")
    command = [sys.executable, "-m", "millrace.cli.main", "pipeline", "run", str(PIPELINE), "--name", _NAME]
    command += ["--url", ",".join(urls), "--state", str(directory / "state"), "--master", "local[2]"]
    command += [word for setting in settings for word in ("--set", setting)]
    # For minutes, not for days: code is compiled quickly, not well.
    command += ["--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, start_new_session=True
    )
    telling = asyncio.create_task(_tell(story, process))
    try:
        yield
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        await telling


async def _tell(story: Story, process: asyncio.subprocess.Process) -> None:
    """What the supervisor says, without the figures that the story shows itself."""
    assert process.stderr is not None
    said = ""
    async for line in process.stderr:
        words = line.decode(errors="replace").strip().partition("; averages")[0]
        if words != said:
            said = words
            story.say("spark", words.removeprefix(f"pipeline {_NAME}: "), "cyan")


# --------------------------------------------------------------------------------------- the two ends


def windows_of(readings: dict[tuple[str, int], int]) -> Counter[Window]:
    """How many readings each window of each device has."""
    return Counter((device, time_ms // _WINDOW_MS * _WINDOW_MS) for (device, _), time_ms in readings.items())


def averages(table: Path) -> list[tuple[Window, int, float]]:
    """Window, readings and mean of every row that Spark has committed. A driver that was killed leaves files
    that count for nothing: the table's own log names those that do."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows: list[tuple[Window, int, float]] = []
    for file in committed(table):
        found = pq.read_table(file)
        # As numbers: Spark writes times without a zone, and Python would take them for local ones.
        starts_ms = found.column("start").cast(pa.timestamp("ms")).cast(pa.int64()).to_pylist()
        for row, start_ms in zip(found.to_pylist(), starts_ms, strict=True):
            rows.append(((row["device"], start_ms), row["readings"], row["mean"]))
    return rows


def committed(table: Path) -> list[Path]:
    """The files that the log of a streaming table names: the last compaction, and every batch since."""
    log = table / "_spark_metadata"
    names = {path.name for path in log.glob("*") if not path.name.startswith(".")} if log.exists() else set()
    compacted = max(
        (int(name.removesuffix(".compact")) for name in names if name.endswith(".compact")), default=-1
    )
    batches = sorted(int(name) for name in names if name.isdigit() and int(name) > compacted)
    chosen = ([f"{compacted}.compact"] if compacted >= 0 else []) + [str(batch) for batch in batches]
    found: dict[Path, None] = {}
    for name in chosen:
        for line in (log / name).read_text().splitlines()[1:]:
            entry: dict[str, Any] = json.loads(line)
            if entry["action"] == "add":
                found[Path(entry["path"].removeprefix("file://"))] = None
    return list(found)


def draw(rows: list[tuple[Window, int, float]], moments: dict[str, float], picture: Path) -> None:
    """The averages of some devices over time, with what was killed when. ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = figure_of(rows, moments)
    figure.savefig(picture, dpi=120)
    pyplot.close(figure)


def figure_of(rows: list[tuple[Window, int, float]], moments: dict[str, float]) -> Any:
    """The picture before it is written. What was killed stands above the plot, in two rows, so that neither
    the lines nor two kills in a row lie upon it; the names of the devices stand beside it."""
    from matplotlib import pyplot

    made: Any = pyplot.subplots(figsize=(10, 5), layout="constrained")
    figure, axes = made
    to_axis: Any = datetime.fromtimestamp
    lines: dict[str, list[tuple[Any, float]]] = {}
    for (device, start_ms), _, mean in rows:
        lines.setdefault(device, []).append((to_axis(start_ms / 1000), mean))
    for device in sorted(lines, key=lambda name: int(name[1:]))[:_DEVICES_DRAWN]:
        points = sorted(lines[device])
        axes.plot([when for when, _ in points], [mean for _, mean in points], marker=".", label=device)
    for number, (words, moment_s) in enumerate(sorted(moments.items(), key=lambda item: item[1])):
        axes.axvline(to_axis(moment_s), color="red", linestyle="--")
        axes.annotate(
            words,
            # A place on the axis of times, at the upper end of the other one.
            (axes.convert_xunits(to_axis(moment_s)), 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 4 + 14 * (number % 2)),
            textcoords="offset points",
            color="red",
            ha="center",
        )
    figure.suptitle("Mean temperature by window, each reading once")
    axes.set(ylabel="°C")
    axes.tick_params(axis="x", rotation=30)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small", title="device")
    return figure
