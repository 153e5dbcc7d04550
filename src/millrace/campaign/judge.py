"""What clients were told, against what every node's log holds and what subscribers got."""

import asyncio
import base64
import hashlib
from collections import Counter
from typing import Any

from millrace.campaign.load import EXACT, Load
from millrace.campaign.report import Report
from millrace.campaign.stage import PREFIX, STREAM, Stage
from millrace.client.http import Http
from millrace.local_cluster import NodeProcess

_PAGES_MAX = 1_000_000
_READS_MAX = 20
_READ_AGAIN_S = 0.5


class Log:
    """The stream as one node keeps it: numbers by topic in order, and a hash over everything."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.hashes: dict[int, str] = {}
        self.gaps: list[str] = []
        self.count = 0

    def read(self, node: NodeProcess, shards: list[int]) -> None:
        """*blocking*"""
        http = Http(node.http_url)
        for shard in shards:
            running = hashlib.blake2b(digest_size=16)
            offset: int | str = "earliest"
            expected: int | None = None
            for _ in range(_PAGES_MAX):
                page = http.messages(STREAM, shard, offset)
                for message in page["messages"]:
                    if expected is not None and message["offset"] != expected:
                        self.gaps.append(f"shard {shard}: {message['offset']} after {expected - 1}")
                    expected = message["offset"] + 1
                    self._take(message, running)
                if page["next_offset"] >= page["end_offset"]:
                    break
                offset = page["next_offset"]
            self.hashes[shard] = running.hexdigest()

    def _take(self, message: dict[str, Any], running: "hashlib.blake2b") -> None:
        payload = message["payload"]
        data = base64.b64decode(payload) if message.get("encoding") == "base64" else payload.encode()
        running.update(f"{message['offset']} {message['topic']} ".encode() + data)
        self.count += 1
        if message["topic"].startswith(f"{PREFIX}/p"):
            self.numbers.setdefault(message["topic"], []).append(int(data))


async def judge(stage: Stage, load: Load, report: Report) -> None:
    """Every promise to every client, on every node."""
    for _ in range(_READS_MAX):
        logs = [Log() for _ in stage.nodes]
        for node, log in zip(stage.nodes, logs, strict=True):
            await asyncio.to_thread(log.read, node, stage.shards)
        first = logs[0]
        if all(log.hashes == first.hashes for log in logs):
            break
        # A node that is just back may be a moment behind; it must not stay so.
        await asyncio.sleep(_READ_AGAIN_S)
    for node, log in zip(stage.nodes, logs, strict=True):
        report.require(
            log.hashes == first.hashes, f"the log of {node.name} differs from that of the first node"
        )
        for gap in log.gaps:
            report.violate(f"{node.name}: offsets are not dense: {gap}")
    _judge_log(load, first, report)
    for subscriber in load.subscribers:
        _judge_subscriber(load, subscriber.name, subscriber.qos, subscriber.received, first, report)
    report.note("messages acknowledged", load.acknowledged_count)
    report.note("messages in the log", first.count)
    refused = sum((p.refused for p in load.publishers), Counter())
    report.note("publishes refused or given up, by reason", dict(refused) or 0)
    report.note("publishes without any answer at the end", load.answers_missing)
    report.require(load.answers_missing == 0, f"{load.answers_missing} publishes were never answered")
    for error in load.crashed():
        report.violate(f"a client ended: {error}")


def _judge_log(load: Load, log: Log, report: Report) -> None:
    repeated = 0
    for publisher in load.publishers:
        for topic, acknowledged in zip(publisher.topics, publisher.acknowledged, strict=True):
            stored = log.numbers.get(topic, [])
            lost = acknowledged - set(stored)
            report.require(
                not lost, f"lost: {len(lost)} acknowledged of {topic}, first {min(lost, default=0)}"
            )
            extra = len(stored) - len(set(stored))
            if publisher.kind in EXACT:
                report.require(not extra, f"doubled: {extra} of {publisher.kind} {topic}")
            else:
                repeated += extra
            _require_order(stored, acknowledged, f"the log, {topic}", report)
    report.note("QoS 1 without a key stored again", repeated)


def _judge_subscriber(
    load: Load, name: str, qos: int, received: dict[str, list[int]], log: Log, report: Report
) -> None:
    again = 0
    for publisher in load.publishers:
        for topic, acknowledged in zip(publisher.topics, publisher.acknowledged, strict=True):
            got = received.get(topic, [])
            missing = acknowledged - set(got)
            report.require(not missing, f"subscriber {name} never got {len(missing)} acknowledged of {topic}")
            extra = len(got) - len(set(got))
            if qos == 2 and publisher.kind == "qos2":
                report.require(not extra, f"subscriber {name} got {extra} of {topic} twice at QoS 2")
            again += extra
            _require_order(got, acknowledged, f"subscriber {name}, {topic}", report)
    report.note(
        f"subscriber {name} at QoS {qos}: messages, of them again",
        f"{sum(map(len, received.values())):,}, {again}",
    )


def _require_order(stored: list[int], acknowledged: set[int], where: str, report: Report) -> None:
    highest = -1
    seen: set[int] = set()
    for number in stored:
        if number in seen or number not in acknowledged:
            continue
        seen.add(number)
        if number < highest:
            report.violate(f"order: {number} after {highest} in {where}")
            return
        highest = number
