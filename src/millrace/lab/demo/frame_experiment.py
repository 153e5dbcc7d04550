"""The published FRAME experiment at a size that fits: loss and deadline success per topic category.

    python -m millrace.lab.demo.frame_experiment [--topics 60,300,600] [--seconds 20] [--runs 5] [--out DIR]

Two nodes, one generator. Topics of the six categories publish 16 bytes on their periods; in the middle the
primary is killed. Publishers notice the closed connection, change over and send their last N messages again;
the subscriber listens at both nodes and counts a message once. A category's loss success is the share of its
topics that never lost more than L messages in a row; its deadline success the share of messages that arrived
within D of the moment their publisher made them. What was made while no broker could be reached counts as a
loss if nobody delivers it, and as late if it came late.

Deadlines are counted twice: for messages whose deadline lay before the kill, as the paper counts them (in
operation without faults), and for all messages, those of the kill included. The recovery is the time from the
kill to the first message behind which none was late or lost for a while. Of several runs the table at the end
has the worst figures of each category.
"""

import argparse
import asyncio
import json
import random
import struct
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace.lab.campaign.pair_run import call, settled
from millrace.local_cluster import LocalCluster

CATEGORIES = (
    (50, 50, 0, 2),
    (50, 50, 3, 0),
    (100, 100, 0, 1),
    (100, 100, 3, 0),
    (100, 100, None, 0),
    (500, 500, 0, 1),
)
PAYLOAD = struct.Struct("<IId")
STEP_S = 0.005
CONNECTIONS = 4
WARM_UP_S = 1.0
CALM_S = 0.25
"""What was late after such a time without a late message has another reason than the kill."""
FIGURES = ("loss_success", "deadline_success_before_kill", "deadline_success", "recovery_ms")


@dataclass
class Topic:
    number: int
    category: int
    due_s: float
    sent: int = 0
    kept: deque[bytes] = field(default_factory=deque)
    arrived: dict[int, float] = field(default_factory=dict)
    made_s: list[float] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"alarms/{self.category}/{self.number}"

    def packet(self) -> bytes:
        now_s = time.time()
        self.made_s.append(now_s)
        body = PAYLOAD.pack(self.number, self.sent, now_s)
        self.sent += 1
        topic = self.name.encode()
        rest = struct.pack(">H", len(topic)) + topic + body
        packet = bytes((0x30, len(rest))) + rest
        self.kept.append(packet)
        while len(self.kept) > CATEGORIES[self.category][3]:
            self.kept.popleft()
        return packet


def connect_packet(name: str) -> bytes:
    rest = struct.pack(">H4sBBH", 4, b"MQTT", 4, 2, 0) + struct.pack(">H", len(name)) + name.encode()
    return bytes((0x10, len(rest))) + rest


class Publishing:
    """One connection for some of the topics."""

    def __init__(self, number: int, topics: list[Topic], ports: list[int]) -> None:
        self.number = number
        self.topics = topics
        self._ports = ports
        self._writer: asyncio.StreamWriter | None = None
        self.is_running = True

    async def run(self) -> None:
        while self.is_running:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[0])
                writer.write(connect_packet(f"pub{self.number}-{random.getrandbits(32)}"))
                await reader.readexactly(4)
            except OSError:
                self._ports.append(self._ports.pop(0))
                await asyncio.sleep(0.002)
                continue
            for topic in self.topics:
                writer.write(b"".join(topic.kept))
            self._writer = writer
            try:
                while await reader.read(65536):
                    pass
            except OSError:
                pass
            self._writer = None
            self._ports.append(self._ports.pop(0))

    def step(self, now_s: float) -> None:
        made = []
        for topic in self.topics:
            while topic.due_s <= now_s:
                topic.due_s += CATEGORIES[topic.category][0] / 1000
                made.append(topic.packet())
        if made and self._writer is not None:
            self._writer.write(b"".join(made))


async def subscribe(port: int, topics: list[Topic], ready: asyncio.Event) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    filter = b"alarms/#"
    rest = struct.pack(">HH", 1, len(filter)) + filter + b"\x00"
    writer.write(connect_packet(f"sub{port}") + bytes((0x82, len(rest))) + rest)
    await reader.readexactly(4 + 5)
    ready.set()
    try:
        rest = b""
        while data := await reader.read(1 << 20):
            data, start, now_s = rest + data, 0, time.time()
            # Two bytes of head: every packet here is short.
            while start + 2 <= len(data) and (end := start + 2 + data[start + 1]) <= len(data):
                number, sequence, made_s = PAYLOAD.unpack_from(data, end - PAYLOAD.size)
                topics[number].arrived.setdefault(sequence, now_s - made_s)
                start = end
            rest = data[start:]
    except OSError:
        return


def stream_of(schedule: str, check_ms: int) -> dict[str, object]:
    """The stream's definition, with a topic class for each category."""
    classes = [
        {
            "filter": f"alarms/{number}/#",
            "period_ms": period,
            "deadline_ms": deadline,
            "loss_tolerance": tolerance,
            "retention": retention,
        }
        for number, (period, deadline, tolerance, retention) in enumerate(CATEGORIES)
    ]
    pair = {
        "schedule": schedule,
        "check_interval_ms": check_ms,
        "failover_ms": 3 * check_ms + check_ms // 2,
        "publisher_ms": 0.5,
        "subscriber_ms": 0.5,
        "backup_ms": 0.2,
        "topics": classes,
    }
    return {
        "name": "alarms",
        "filters": ["alarms/#"],
        "replication": "primary-backup",
        "primary_backup": pair,
    }


async def run_once(schedule: str, count: int, seconds: float, check_ms: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="frame-") as directory:
        async with LocalCluster(2, Path(directory)) as cluster:
            while True:
                status = await call(cluster.nodes[0], "GET", "/status")
                if len(status["cluster"]["members"]) == 2 and status["cluster"]["is_settled"]:
                    break
                await asyncio.sleep(0.1)
            await call(cluster.nodes[0], "POST", "/v1/streams", stream_of(schedule, check_ms))
            primary, backup = await settled(cluster)
            ports = [int(node.url.rsplit(":", 1)[1]) for node in (primary, backup)]
            topics = [Topic(number, number % 6, 0.0) for number in range(count)]
            readers = []
            for port in ports:
                ready = asyncio.Event()
                readers.append(asyncio.create_task(subscribe(port, topics, ready)))
                await ready.wait()
            publishers = [
                Publishing(number, topics[number::CONNECTIONS], list(ports)) for number in range(CONNECTIONS)
            ]
            running = [asyncio.create_task(each.run()) for each in publishers]
            await asyncio.sleep(0.2)
            rng = random.Random(1)
            started_s = time.monotonic()
            for topic in topics:
                # One after the other: a node looks a topic up once, and all in one moment are no steady load.
                joins_s = started_s + WARM_UP_S * topic.number / count
                topic.due_s = joins_s + rng.random() * CATEGORIES[topic.category][0] / 1000
            killed_s = 0.0
            while (now_s := time.monotonic()) < started_s + seconds:
                for each in publishers:
                    each.step(now_s)
                if not killed_s and now_s >= started_s + seconds / 2:
                    killed_s = time.time()
                    await primary.kill()
                await asyncio.sleep(STEP_S)
            await asyncio.sleep(1.5)
            for task in (*running, *readers):
                task.cancel()
            await asyncio.gather(*running, *readers, return_exceptions=True)
            return judge(schedule, count, topics, killed_s)


def judge(schedule: str, count: int, topics: list[Topic], killed_s: float) -> list[dict[str, Any]]:
    """One row for each category, of a run in which the primary was killed at `killed_s`."""
    rows: list[dict[str, Any]] = []
    for category, (period, deadline, tolerance, retention) in enumerate(CATEGORIES):
        chosen = [topic for topic in topics if topic.category == category]
        kept = in_time = made = lost = made_before = in_time_before = 0
        late_s: list[float] = []
        for topic in chosen:
            longest = row = 0
            first = int(WARM_UP_S * 1000 / period)
            for sequence in range(first, topic.sent):
                made += 1
                took_s = topic.arrived.get(sequence)
                lost += took_s is None
                is_in_time = took_s is not None and took_s * 1000 <= deadline
                in_time += is_in_time
                made_s = topic.made_s[sequence]
                if made_s + deadline / 1000 < killed_s:
                    made_before += 1
                    in_time_before += is_in_time
                elif not is_in_time:
                    late_s.append(made_s)
                row = 0 if took_s is not None else row + 1
                longest = max(longest, row)
            kept += tolerance is None or longest <= tolerance
        limit = "inf" if tolerance is None else tolerance
        rows.append(
            {
                "schedule": schedule,
                "topics": count,
                "category": f"{period}, {deadline}, {limit}, {retention}",
                "messages": made,
                "lost": lost,
                "loss_success": round(100 * kept / max(1, len(chosen)), 1),
                "deadline_success": round(100 * in_time / max(1, made), 2),
                "deadline_success_before_kill": round(100 * in_time_before / max(1, made_before), 2),
                "recovery_ms": round(1000 * recovery_s(late_s, killed_s)),
            }
        )
    return rows


def recovery_s(late_s: list[float], killed_s: float) -> float:
    """How long after the kill messages were still late or lost; `late_s` has the moments they were made."""
    recovered_s = killed_s
    for made_s in sorted(late_s):
        if made_s > recovered_s + CALM_S:
            break
        recovered_s = max(recovered_s, made_s)
    return recovered_s - killed_s


def worst_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each schedule, size and category: the worst figures of all runs."""
    worst: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = row["schedule"], row["topics"], row["category"]
        so_far = worst.setdefault(key, {**row, "runs": 0})
        so_far["runs"] += 1
        so_far["lost"] = max(so_far["lost"], row["lost"])
        so_far["recovery_ms"] = max(so_far["recovery_ms"], row["recovery_ms"])
        for success in ("loss_success", "deadline_success", "deadline_success_before_kill"):
            so_far[success] = min(so_far[success], row[success])
    return list(worst.values())


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each category, a column for each size and schedule.

    A cell has loss success / deadline success before the kill / of all messages / recovery in milliseconds.
    """
    columns = list(dict.fromkeys((row["topics"], row["schedule"]) for row in rows))
    lines = [f"| T, D, L, N | {' | '.join(f'{schedule} {count:,}' for count, schedule in columns)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for category in dict.fromkeys(row["category"] for row in rows):
        found = {(row["topics"], row["schedule"]): row for row in rows if row["category"] == category}
        cells = [" / ".join(f"{found[at][figure]:g}" for figure in FIGURES) for at in columns]
        lines.append(f"| {category} | {' | '.join(cells)} |")
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, what in zip(axes, ("loss_success", "deadline_success"), strict=True):
        for schedule, style in (("frame", "-o"), ("fcfs", "--x")):
            for category in dict.fromkeys(row["category"] for row in rows):
                line = [row for row in rows if row["schedule"] == schedule and row["category"] == category]
                if line:
                    xs, ys = [row["topics"] for row in line], [row[what] for row in line]
                    axis.plot(xs, ys, style, label=f"{schedule} ({category})", markersize=4)
        axis.set_title(what.replace("_", " ") + " (%)")
        axis.set_xlabel("topics")
        axis.set_ylim(-5, 105)
    axes[1].legend(fontsize=6, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", default="60,300,600")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=1, help="so many runs of each; the worst of them counts")
    parser.add_argument("--check-ms", type=int, default=14)
    parser.add_argument("--schedules", default="frame,fcfs")
    parser.add_argument("--out", type=Path, default=None, help="directory for frame.json and frame.png")
    given = parser.parse_args()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for count in map(int, given.topics.split(",")):
        for schedule in given.schedules.split(","):
            for _ in range(given.runs):
                found = await run_once(schedule, count, given.seconds, given.check_ms)
                rows += found
                for row in found:
                    print(json.dumps(row), flush=True)
    print(table(worst_of(rows)))
    if given.out is not None:
        (given.out / "frame.json").write_text(json.dumps(rows, indent=1) + "\n")
        plot(worst_of(rows), given.out / "frame.png")


if __name__ == "__main__":
    asyncio.run(main())
