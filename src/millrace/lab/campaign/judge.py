"""What clients were told, against what every node's log holds and what subscribers got."""

import asyncio
import hashlib
from collections import Counter

from millrace.lab.campaign.load import EXACT, Load
from millrace.lab.campaign.logs import blocks_of, messages_of
from millrace.lab.campaign.report import Report
from millrace.lab.campaign.stage import PREFIX, STREAM, Stage
from millrace.local_cluster import NodeProcess
from millrace.storage.block import Block

_READS_MAX = 20
_READ_AGAIN_S = 0.5


class Log:
    """The stream as one node keeps it: numbers by topic in order, and a hash over everything."""

    def __init__(self) -> None:
        self.numbers: dict[str, list[int]] = {}
        self.hashes: dict[int, str] = {}
        self.gaps: list[str] = []
        self.count = 0

    def read(self, node: NodeProcess, shards: list[int], *, hashes_only: bool) -> None:
        """*blocking* All of it. Logs with equal hashes need to be looked into once."""
        for shard in shards:
            running = hashlib.blake2b(digest_size=16)
            expected: int | None = None
            for block in blocks_of(node, STREAM, shard):
                first = block.header.base_offset
                if expected is not None and first != expected:
                    self.gaps.append(f"shard {shard}: {first} after {expected - 1}")
                expected = block.header.next_offset
                running.update(block.to_bytes())
                if not hashes_only:
                    self._take(block)
            self.hashes[shard] = running.hexdigest()

    def _take(self, block: Block) -> None:
        for topic, payload in messages_of(block):
            self.count += 1
            if topic.startswith(f"{PREFIX}/p"):
                self.numbers.setdefault(topic, []).append(int(payload))


async def judge(stage: Stage, load: Load, report: Report) -> None:
    """Every promise to every client, on every node."""
    for _ in range(_READS_MAX):
        logs = [Log() for _ in stage.nodes]
        for node, log in zip(stage.nodes, logs, strict=True):
            await asyncio.to_thread(log.read, node, stage.shards, hashes_only=log is not logs[0])
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
        rows = zip(publisher.topics, publisher.acknowledged, publisher.sent, strict=True)
        for topic, acknowledged, sent in rows:
            stored = log.numbers.get(topic, [])
            lost = acknowledged - set(stored)
            report.require(
                not lost, f"lost: {len(lost)} acknowledged of {topic}, first {min(lost, default=0)}"
            )
            strange = set(stored) - set(range(sent))
            report.require(not strange, f"{len(strange)} messages of {topic} that nobody sent")
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
