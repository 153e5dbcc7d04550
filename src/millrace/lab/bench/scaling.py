"""One, two and three nodes of a routed stream, each held to a part of a core: what a message costs as nodes
are added [E9].

Clients grow with the nodes, so that each node has as many as one node alone: 16 pairs, or 16 subscribers.
That makes about 100 clients at three nodes. They are spread over the nodes in turn. Where publisher and
subscriber of a pair stand at different nodes, every message crosses a link. Three placements are measured:
`spread`, one publisher with subscribers at every node, as fan-out has it; `own`, pairs of which no message
crosses; and `other`, pairs of which all do, the worst case. Pairs placed at random lie at (n - 1) / n of the
way between the last two.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.lab.bench import svg
from millrace.lab.bench.generator import Generator, GeneratorError
from millrace.lab.bench.quota import held_to
from millrace.local_cluster import LocalCluster

SHARE = 0.25
OWN, OTHER, SPREAD = "own", "other", "spread"
_STREAM = {"name": "bench", "filters": ["bench/#"], "replication": "routed"}
_READY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    title: str
    flags: tuple[str, ...]
    placements: tuple[str, ...] = (OWN, OTHER)


# At each node.
_PAIRS = 16
CASES = (
    Case(
        name="qos0-fanout",
        title="QoS 0, 256 B, each message to all subscribers, 16 a node",
        flags=("-m", "fanout", "-o", "512"),
        placements=(SPREAD,),
    ),
    Case(
        name="qos0-mixed",
        title="mixed QoS 0, 16 pairs a node",
        flags=("-v", "-K", "10", "-o", "100"),
    ),
    Case(
        name="qos2-1000",
        title="QoS 2, 1000 B, 16 pairs a node (100 clients at three)",
        flags=("-q", "2", "-s", "1000", "-W", "10", "-o", "10"),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One case at one number of nodes."""

    case: str
    nodes: int
    placement: str
    is_held: bool
    delivered_s: float
    cpu_us: float
    errors: tuple[str, ...] = ()


def steps() -> list[tuple[Case, int, str]]:
    """What is measured: one node has no other to cross to."""
    return [
        (case, nodes, placement)
        for case in CASES
        for nodes in (1, 2, 3)
        for placement in case.placements
        if nodes > 1 or placement != OTHER
    ]


def measure(
    case: Case, nodes: int, placement: str, generator: Generator, *, rounds: int, seconds: float
) -> Point:
    return asyncio.run(_measure(case, nodes, placement, generator, rounds, seconds))


async def _measure(
    case: Case, nodes: int, placement: str, generator: Generator, rounds: int, seconds: float
) -> Point:
    # The generator gives connection i to node i modulo their number, publishers before subscribers.
    pairs = _PAIRS * nodes + (1 if placement == OTHER else 0)
    publishers = 1 if placement == SPREAD else pairs
    flags = (*case.flags, "-P", str(publishers), "-S", str(pairs))
    found: list[dict[str, Any]] = []
    errors: list[str] = []
    is_held = True
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as directory:
        async with LocalCluster(nodes, Path(directory), options=("--set", "log.level=warning")) as cluster:
            await _ready(cluster)
            pids = [node.pid for node in cluster.nodes]
            ports = [node.mqtt_port for node in cluster.nodes]
            with held_to(pids, SHARE) as is_held:
                for _ in range(rounds):
                    try:
                        found.append(await asyncio.to_thread(_run, generator, flags, ports, pids, seconds))
                    except GeneratorError as error:
                        errors.append(str(error))
    return Point(
        case=case.name,
        nodes=nodes,
        placement=placement,
        is_held=is_held,
        delivered_s=median([row["delivered_s"] for row in found]) if found else 0.0,
        cpu_us=median([row["cpu_us_per_delivered"] for row in found]) if found else 0.0,
        errors=tuple(errors),
    )


def _run(
    generator: Generator, flags: Sequence[str], ports: Sequence[int], pids: Sequence[int], seconds: float
) -> dict[str, Any]:
    # The last -p counts: all nodes in place of the first.
    spread = ("-p", ",".join(map(str, ports)))
    return generator.run((*flags, *spread), port=ports[0], pids=pids, seconds=seconds)


async def _ready(cluster: LocalCluster) -> None:
    """Every group where it belongs, and the stream known everywhere."""
    async with asyncio.timeout(_READY_S):
        for node in cluster.nodes:
            while not await _has(Http(node.http_url), len(cluster.nodes)):
                await asyncio.sleep(0.1)
        await asyncio.to_thread(Http(cluster.nodes[0].http_url).call, "POST", "/v1/streams", _STREAM)
        for node in cluster.nodes:
            while not await _knows(Http(node.http_url)):
                await asyncio.sleep(0.05)


async def _has(http: Http, count: int) -> bool:
    cluster = (await asyncio.to_thread(http.call, "GET", "/status"))["cluster"]
    return len(cluster["members"]) == count and bool(cluster["is_settled"])


async def _knows(http: Http) -> bool:
    streams = await asyncio.to_thread(http.call, "GET", "/v1/streams")
    return any(stream["name"] == _STREAM["name"] for stream in streams["streams"])


# --------------------------------------------------------------------------------------------- report


def rows(points: Sequence[Point]) -> list[dict[str, Any]]:
    """With each figure as a ratio to one node."""
    first = {point.case: point for point in points if point.nodes == 1}
    made = []
    for point in points:
        base = first.get(point.case)
        is_known = base is not None and base.cpu_us and point.cpu_us
        made.append(
            {
                "case": point.case,
                "nodes": point.nodes,
                "clients": point.placement,
                "delivered/s": round(point.delivered_s),
                "cpu us": round(point.cpu_us, 2),
                "cpu to 1 node": round(point.cpu_us / base.cpu_us, 2) if base and is_known else None,
                "rate to 1 node": round(point.delivered_s / base.delivered_s, 2)
                if base and is_known
                else None,
                "quarter core": "yes" if point.is_held else "no",
                "errors": "; ".join(point.errors) or "-",
            }
        )
    return made


_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 300, 200, 60, 40
_COLOURS = {OWN: "#2a6f97", OTHER: "#e07a5f", SPREAD: "#81b29a"}


def plot(points: Sequence[Point]) -> str:
    """An SVG: delivered messages per second above, CPU per message below, one column for each case."""
    names = list(dict.fromkeys(point.case for point in points))
    panels = []
    for column, name in enumerate(names):
        chosen = [point for point in points if point.case == name]
        for line, (title, field) in enumerate(
            (("delivered / s", "delivered_s"), ("CPU us / message", "cpu_us"))
        ):
            panels.append(_panel(f"{name}: {title}", chosen, field, column * _WIDTH, line * _HEIGHT))
    width, height = _WIDTH * max(1, len(names)), 2 * _HEIGHT + 20
    legend = (
        "nodes held to a quarter of a core each; "
        f'<tspan fill="{_COLOURS[SPREAD]}">fan-out over all nodes</tspan>, '
        f'<tspan fill="{_COLOURS[OWN]}">pairs at one node</tspan>, '
        f'<tspan fill="{_COLOURS[OTHER]}">pairs across nodes</tspan>'
    )
    return svg.page(width, height, panels, legend)


def _panel(title: str, points: Sequence[Point], field: str, x: int, y: int) -> str:
    top = max((getattr(point, field) for point in points), default=0) or 1
    room = _HEIGHT - _BOTTOM - 30
    made = [f'<text x="{x + 10}" y="{y + 18}" font-weight="bold">{title}</text>']
    for point in points:
        value = getattr(point, field)
        size = room * value / top
        shift = 26 if point.placement == OTHER else 0
        at_x, at_y = x + _LEFT + (point.nodes - 1) * 75 + shift, y + 30 + room - size
        colour = _COLOURS[point.placement]
        made.append(f'<rect x="{at_x}" y="{at_y:.1f}" width="22" height="{size:.1f}" fill="{colour}"/>')
        shown = f"{value / 1000:.0f}k" if value >= 10_000 else f"{value:.1f}"
        made.append(f'<text x="{at_x - 2}" y="{at_y - 3:.1f}" font-size="9">{shown}</text>')
    for nodes in sorted({point.nodes for point in points}):
        label_x, label_y = x + _LEFT + (nodes - 1) * 75, y + _HEIGHT - _BOTTOM + 15
        made.append(f'<text x="{label_x}" y="{label_y}">{nodes} node{"s" if nodes > 1 else ""}</text>')
    return "\n".join(made)


def check(points: Sequence[Point]) -> None:
    """LocalError where a run failed."""
    failed = [f"{point.case}, {point.nodes} nodes: {error}" for point in points for error in point.errors]
    if failed:
        raise LocalError("; ".join(failed))
