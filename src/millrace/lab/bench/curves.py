"""The growth curves of `millrace bench scale` as a picture: what one more costs, by how many there are."""

import math
from collections.abc import Sequence

from millrace.lab.bench import svg
from millrace.lab.bench.accounts import Cost

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 300, 200, 50, 34, 40
_COLUMNS = 4
_COLOURS = ("#2a6f97", "#e07a5f")


def plot(costs: Sequence[Cost]) -> str:
    """An SVG: a panel for each row, CPU of one unit upwards, the logarithm of their number to the right."""
    brokers = list(dict.fromkeys(cost.broker for cost in costs))
    colours = dict(zip(brokers, _COLOURS, strict=False))
    rows = list(dict.fromkeys(cost.row for cost in costs))
    panels = []
    for number, row in enumerate(rows):
        x, y = number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT
        panels += _panel(row, [cost for cost in costs if cost.row == row], colours, x, y)
    legend = "CPU us of one more, by their number: " + ", ".join(
        f'<tspan fill="{colour}">{name}</tspan>' for name, colour in colours.items()
    )
    width = _WIDTH * min(_COLUMNS, max(1, len(rows)))
    return svg.page(width, _HEIGHT * math.ceil(len(rows) / _COLUMNS) + 24, panels, legend)


def _panel(row: str, costs: list[Cost], colours: dict[str, str], x: int, y: int) -> list[str]:
    top = max(cost.cpu_us for cost in costs) or 1.0
    first, last = (math.log10(choose(cost.units for cost in costs)) for choose in (min, max))
    right, low = _WIDTH - _LEFT - 40, _HEIGHT - _BOTTOM

    def at(units: int, cpu_us: float) -> tuple[float, float]:
        share = (math.log10(units) - first) / ((last - first) or 1)
        return x + _LEFT + share * right, y + low - cpu_us / top * (low - _TOP)

    made = [
        f'<text x="{x + 10}" y="{y + 18}" font-weight="bold">{row}</text>',
        f'<text x="{x + 8}" y="{y + _TOP + 4}" font-size="9">{top:,.1f}</text>',
        f'<path d="M{x + _LEFT} {y + _TOP}V{y + low}H{x + _LEFT + right}" fill="none" stroke="#999"/>',
    ]
    for broker, colour in colours.items():
        points = [at(cost.units, cost.cpu_us) for cost in costs if cost.broker == broker]
        line = " ".join(f"{point_x:.1f},{point_y:.1f}" for point_x, point_y in points)
        made.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        made += (
            f'<circle cx="{point_x:.1f}" cy="{point_y:.1f}" r="3" fill="{colour}"/>'
            for point_x, point_y in points
        )
    middle = 'font-size="9" text-anchor="middle"'
    made += (
        f'<text x="{at(units, 0)[0]:.1f}" y="{y + low + 15}" {middle}>{units:,}</text>'
        for units in sorted({cost.units for cost in costs})
    )
    return made
