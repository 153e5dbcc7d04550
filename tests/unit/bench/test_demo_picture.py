"""The picture of the pipeline demo can be read: nothing that is written lies upon something else."""

from itertools import combinations
from typing import Any

import pytest

from millrace.lab.demo.pipeline import Window, figure_of

_BEGIN_S = 1_795_000_000


def rows() -> list[tuple[Window, int, float]]:
    return [
        ((f"d{device}", (_BEGIN_S + 5 * at) * 1000), 25, 20.0 + device + (at % 3) / 3)
        for device in range(20)
        for at in range(18)
    ]


@pytest.mark.parametrize("apart_s", [2, 20])
def test_no_words_lie_upon_others(apart_s: int) -> None:
    """Two kills that follow at once, and two apart: their words, the title, the legend and the ticks."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    moments = {"n1 killed": _BEGIN_S + 30.0, "driver killed": _BEGIN_S + 30.0 + apart_s}
    figure: Any = figure_of(rows(), moments)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    axes = figure.axes[0]
    words = [*axes.texts, figure._suptitle, axes.get_legend(), axes.yaxis.label]
    boxes = [(one, one.get_window_extent(renderer)) for one in words]
    boxes.append((axes, axes.get_window_extent(renderer)))
    for (one, box), (other, other_box) in combinations(boxes, 2):
        assert not box.overlaps(other_box), f"{one} lies upon {other}"
    whole = figure.bbox
    for one, box in boxes:
        assert box.x0 >= whole.x0 and box.x1 <= whole.x1 and box.y1 <= whole.y1, f"{one} is cut off"
