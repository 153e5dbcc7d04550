"""A stream that keeps little: its log is trimmed while nodes are away, so that they need a snapshot.

What retention removed is a beginning of each topic: of two acknowledged messages the later one is there if
the earlier one is, and what is there is equal everywhere.
"""

import random

from millrace.broker.streams.stream import StreamSpec
from millrace.lab.sim.cluster.checks import Logs
from millrace.lab.sim.cluster.scene import Scene
from millrace.lab.sim.cluster.work import Work

SPEC = StreamSpec(name="short", filters=("t/#",), retention_age_s=0, retention_bytes=4_096)


class ShortWork(Work):
    def __init__(self, world: Scene, rng: random.Random) -> None:
        super().__init__(world, rng)
        self.add_publisher("t1", "t", 1)
        self.add_publisher("t2", "t", 2)
        world.asked.append(("the stream short", lambda server: server.engine.opening.put(SPEC, create=False)))

    def is_ready(self) -> bool:
        hosts = [host for host in self.world.members if host.server is not None and host.is_up]
        return bool(hosts) and all(
            "short" in h.server.engine.definitions.table.streams for h in hosts if h.server
        )

    def check(self, logs: Logs) -> None:
        kept: dict[str, int] = {}
        for payload, sent in sorted(self.history.sent.items(), key=lambda item: item[1].number):
            count = logs.counts[payload]
            if sent.qos == 1:
                # A copy that was sent again may stand behind its successors.
                continue
            if count:
                kept.setdefault(sent.topic, sent.number)
            elif sent.is_acknowledged and sent.topic in kept:
                logs.fail(
                    "acknowledged",
                    f"{payload.decode()} was acknowledged and is in no log, {kept[sent.topic]} before it is",
                )
            if count > 1:
                logs.fail("log once", f"{payload.decode()} is in the log {count} times")
