"""A fleet of devices, each with its own topic, and one backend that takes everything: what a message costs.

Unlike in the patterns of `bench mqtt`, no two messages of a read belong together here. Beside it the
experiment of 100 clients that exchange 10,000 messages of 1,000 B each at QoS 2, as numbers and as a picture:
the rate of a closed loop, the bandwidth of its payloads, and the latency at a rate that both brokers can
follow. A run takes the time that is given, so how long 10,000 messages each take is reckoned from its rate.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from millrace.lab.bench import svg
from millrace.lab.bench.patterns import (
    BULK,
    CPU_FIELD,
    LATENCY,
    ONE_PER_READ,
    RATE_FIELD,
    Evidence,
    Pattern,
)
from millrace.lab.bench.runner import Result

CLOSED, OPEN = "qos2-clients", "qos2-clients-latency"
_CLIENTS, _MESSAGES, _BYTES = 100, 10_000, 1_000
# Of all clients together, a second.
_OPEN_RATE = 2_000
_LATENCY = ("lat_p50_us", "lat_p99_us", CPU_FIELD)
_FEW, _MANY = 50, 2_000
_WIDTH, _HEIGHT, _BOTTOM = 230, 220, 40
_COLOURS = ("#2b6cb0", "#c05621", "#718096")


def patterns(devices: int, rate: int) -> tuple[Pattern, ...]:
    """All that is measured, for a fleet of so many devices and messages a second in all."""
    own_topics = ("-m", "fanin", "-S", "1")
    in_all = (*own_topics, "-P", str(devices), "-r", str(rate), "-s", "256")
    held = (Evidence(field="published_s", low=0.98 * rate, high=1.02 * rate),)
    clients = ("-q", "2", "-s", str(_BYTES), "-P", str(_CLIENTS), "-S", str(_CLIENTS))
    title = f"{devices:,} devices, {rate:,}/s in all"
    return (
        *(
            Pattern(
                name=f"fleet-qos{qos}{'-durable' if is_durable else ''}",
                title=title + (", ours on disk" if is_durable else ""),
                regime=LATENCY,
                qos=qos,
                durable=is_durable,
                flags=(*in_all, "-q", str(qos)),
                fields=_LATENCY,
                evidence=held,
            )
            for qos, is_durable in ((0, False), (1, False), (1, True))
        ),
        *(
            Pattern(
                name=f"fanin-{count}{'' if qos == 1 else '-qos2'}-durable",
                title=f"{count:,} devices, one QoS {qos} message in flight each, ours on disk",
                regime=ONE_PER_READ,
                qos=qos,
                durable=True,
                flags=(*own_topics, "-P", str(count), "-q", str(qos), "-W", "1", "-o", "1"),
            )
            for qos in (1, 2)
            for count in (_FEW, _MANY)
        ),
        Pattern(
            name=CLOSED,
            title="100 clients, QoS 2, 1,000 B",
            regime=BULK,
            qos=2,
            flags=(*clients, "-W", "10", "-o", "10"),
        ),
        Pattern(
            name=OPEN,
            title=f"the same at {_OPEN_RATE:,}/s in all",
            regime=LATENCY,
            qos=2,
            flags=(*clients, "-r", str(_OPEN_RATE)),
            fields=_LATENCY,
        ),
    )


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    made = []
    for result in results:
        values = result.values
        rate = values.get(RATE_FIELD, 0)
        is_closed = result.pattern == CLOSED and rate
        made.append(
            {
                "pattern": result.pattern,
                "broker": str(result.subject),
                "delivered/s": f"{rate:,.0f}",
                "CPU us/message": _figure(values, CPU_FIELD),
                "p50 us": _figure(values, "lat_p50_us"),
                "p99 us": _figure(values, "lat_p99_us"),
                "MB/s": f"{_megabytes_s(rate):.1f}" if is_closed else "-",
                "10,000 each, s": f"{_CLIENTS * _MESSAGES / rate:.1f}" if is_closed else "-",
                "failed": "; ".join(result.errors),
            }
        )
    return made


def _figure(values: Any, name: str) -> str:
    return f"{values[name]:,.1f}" if name in values else "-"


def _megabytes_s(rate: float) -> float:
    """Payload from its publishers to the broker, and the same from there to the subscribers."""
    return 2 * rate * _BYTES / 1e6


def plot(results: Sequence[Result]) -> str:
    """An SVG of the 100 clients: rate, bandwidth, and both latencies, a bar for each broker."""
    closed = {str(one.subject): one.values for one in results if one.pattern == CLOSED and one.values}
    paced = {str(one.subject): one.values for one in results if one.pattern == OPEN and one.values}
    rates = {name: values[RATE_FIELD] for name, values in closed.items()}
    panels = (
        ("messages / s", rates),
        ("MB / s, in and out", {name: _megabytes_s(rate) for name, rate in rates.items()}),
        (f"p50 us at {_OPEN_RATE:,}/s", {name: values["lat_p50_us"] for name, values in paced.items()}),
        (f"p99 us at {_OPEN_RATE:,}/s", {name: values["lat_p99_us"] for name, values in paced.items()}),
    )
    drawn = [_panel(title, bars, column * _WIDTH) for column, (title, bars) in enumerate(panels)]
    width, height = _WIDTH * len(panels), _HEIGHT + 30
    return svg.page(width, height, drawn, f"{_CLIENTS} clients, QoS 2, {_BYTES:,} B")


def _panel(title: str, bars: dict[str, float], x: int) -> str:
    top = max(bars.values(), default=0) or 1
    room = _HEIGHT - _BOTTOM - 40
    made = [f'<text x="{x + 10}" y="18" font-weight="bold">{escape(title)}</text>']
    for number, (name, value) in enumerate(bars.items()):
        size = room * value / top
        at_x, at_y, colour = x + 20 + number * 100, 40 + room - size, _COLOURS[number % len(_COLOURS)]
        made += (
            f'<rect x="{at_x}" y="{at_y:.1f}" width="60" height="{size:.1f}" fill="{colour}"/>',
            f'<text x="{at_x}" y="{at_y - 4:.1f}">{value:,.0f}</text>',
            f'<text x="{at_x}" y="{_HEIGHT - _BOTTOM + 15}">{escape(name.split(" ")[0])}</text>',
        )
    return "\n".join(made)
