"""Nodes join, leave, are drained and lose their disks, while nodes are killed and frozen.

The founders n1 to n3 and up to two more. Each change is asked of any node until it is answered, as a person
would; data is put at risk (a disk replaced, a node removed dead) only while the others are whole, as the
documentation says. Faults go on meanwhile: kills, and nodes that stand still.
"""

import argparse
import asyncio
import shutil
import signal
from collections import Counter
from contextlib import suppress
from typing import Any

from millrace.errors import LocalError
from millrace.lab.campaign.faults import start_again
from millrace.lab.campaign.judge import judge
from millrace.lab.campaign.run import Run
from millrace.lab.campaign.stage import Late, until
from millrace.local_cluster import NodeProcess

NODES_MOST = 5
_NODES_LEAST = 3
_ANSWER_S_MAX = 120.0
_FAULT_PAUSE_S = 4.0
_STOPPED_S = 2.0
_FINISH_S = 90.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=int, default=10, help="changes of members")


class _Members:
    """Makes the changes; `free` is set while faults may happen."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._stage = run.stage
        self._rng = run.rng
        self.free = asyncio.Event()
        self.faults: Counter[str] = Counter()
        self.busy: set[str] = set()
        """Nodes that a change is about, which no fault hits."""

    async def change(self) -> str:
        nodes = self._stage.nodes
        possible = ["replace", "drain"]
        if len(nodes) < NODES_MOST:
            possible += ["add"] * 2
        if len(nodes) > _NODES_LEAST:
            possible += ["remove", "remove dead"]
        what = self._rng.choice(possible)
        if what in ("replace", "remove dead"):
            # Whoever puts a copy at risk looks first whether the others are there.
            self.free.clear()
            await self._stage.whole()
        node = self._new() if what == "add" else self._rng.choice(nodes)
        self.busy = {node.name}
        self.free.set()
        match what:
            case "add":
                await self._stage.start_empty(node)
            case "remove":
                await self._remove(node)
            case "remove dead":
                await node.kill()
                await self._remove(node)
            case "replace":
                await node.kill()
                await self._stage.start_empty(node)
            case _:
                await self._drain(node)
        await until(self._agreed, f"all know of it: {what} {node.name}", _ANSWER_S_MAX)
        self.busy = set()
        return f"{what} {node.name}"

    def _new(self) -> NodeProcess:
        taken = {node.number for node in self._stage.nodes}
        number = next(number for number in range(NODES_MOST) if number not in taken)
        node = self._stage.cluster.add(number)
        self._stage.nodes.sort(key=lambda one: one.number)
        return node

    async def _ask(self, method: str, path: str, body: Any = None, *, but: NodeProcess) -> None:
        """At any node that answers, again until one did."""

        async def answered() -> bool:
            node = self._rng.choice([one for one in self._stage.running() if one is not but])
            try:
                await self._stage.command(node, method, path, body)
            except LocalError:
                # Where it was carried out although the answer is lost, the members say so.
                return method == "DELETE" and await self._is_out(but)
            return True

        await until(answered, f"{method} {path} is answered", _ANSWER_S_MAX, 0.2)

    async def _is_out(self, node: NodeProcess) -> bool:
        answers = await asyncio.gather(*(self._stage.ask(one) for one in self._stage.running()))
        told = [{row["node"] for row in answer["members"]} for answer in answers if answer is not None]
        return any(node.name not in names and len(names) > 1 for names in told)

    async def _remove(self, node: NodeProcess) -> None:
        await self._ask("DELETE", f"/v1/cluster/nodes/{node.name}", but=node)
        self._stage.nodes.remove(node)
        await node.stop()
        shutil.rmtree(node.data, ignore_errors=True)

    async def _drain(self, node: NodeProcess) -> None:
        path = f"/v1/cluster/nodes/{node.name}/drain"
        await self._ask("POST", path, {"draining": True}, but=node)
        await asyncio.sleep(self._rng.random())
        await self._ask("POST", path, {"draining": False}, but=node)

    async def _agreed(self) -> bool:
        """Whether every running node that answers names just these members."""
        names = {node.name for node in self._stage.nodes}
        answers = await asyncio.gather(*(self._stage.ask(node) for node in self._stage.running()))
        told = [{row["node"] for row in answer["members"]} for answer in answers if answer is not None]
        return bool(told) and all(one == names for one in told)

    async def break_things(self) -> None:
        """One node at a time is killed or stands still, for as long as this runs."""
        while True:
            await asyncio.sleep(self._rng.random() * 2 * _FAULT_PAUSE_S)
            await self.free.wait()
            others = [node for node in self._stage.nodes if node.name not in self.busy and node.is_running]
            if len(others) < 3:
                # Two of three are needed for the change that is under way.
                continue
            node = self._rng.choice(others)
            if self._rng.random() < 0.5:
                self.faults["kill"] += 1
                await node.kill()
                await start_again(node)
            else:
                self.faults["stop"] += 1
                node.signal(signal.SIGSTOP)
                try:
                    await asyncio.sleep(_STOPPED_S)
                finally:
                    node.signal(signal.SIGCONT)


async def body(run: Run) -> None:
    stage, given, report = run.stage, run.given, run.report
    members = _Members(run)
    changes: Counter[str] = Counter()
    first = stage.nodes[0]
    port = first.mqtt_port - 10 * first.number
    urls = [f"mqtt://{first.host}:{port + 10 * number}" for number in range(NODES_MOST)]
    async with run.load(urls=urls) as load:
        breaking = asyncio.create_task(members.break_things())
        try:
            for number in range(given.count):
                what = await members.change()
                changes[what.rpartition(" ")[0]] += 1
                report.note("changes done", number + 1)
                run.say(
                    f"{number + 1}/{given.count} {what}; {len(stage.nodes)} nodes, "
                    f"faults {dict(members.faults)}, {load.acknowledged_count:,} acknowledged"
                )
                if breaking.done():
                    breaking.result()
        finally:
            # Whoever stands still goes on, and whoever is being started is waited for below.
            breaking.cancel()
            with suppress(asyncio.CancelledError, LocalError):
                await breaking
        await asyncio.gather(*(start_again(node) for node in stage.nodes if not node.is_running))
        report.note("changes", dict(changes))
        report.note("faults", dict(members.faults))
        report.note("whole again, s", round(await stage.whole(), 1))
        await load.finish(_FINISH_S)
        if not load.acknowledged_count:
            raise Late("nothing was acknowledged")
        await judge(stage, load, report)
