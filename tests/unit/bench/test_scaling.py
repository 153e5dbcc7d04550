"""Figures of one, two and three nodes: what is measured, how it is compared, and what the plot shows."""

import os
from xml.etree import ElementTree

import pytest

from millrace.errors import LocalError
from millrace.lab.bench.quota import held_to
from millrace.lab.bench.scaling import CASES, OTHER, OWN, Point, check, plot, rows, steps


def point(nodes: int, cpu_us: float, placement: str = OWN, errors: tuple[str, ...] = ()) -> Point:
    return Point(
        case="qos0-mixed",
        nodes=nodes,
        placement=placement,
        is_held=True,
        delivered_s=1000.0 * nodes,
        cpu_us=cpu_us,
        errors=errors,
    )


def test_every_case_is_measured_at_one_two_and_three_nodes() -> None:
    for case in CASES:
        assert {nodes for each, nodes, _ in steps() if each is case} == {1, 2, 3}
    assert not [step for step in steps() if step[1] == 1 and step[2] == OTHER], "one node has no other"


def test_figures_stand_beside_those_of_one_node() -> None:
    first, second = rows([point(1, 2.0), point(3, 2.5, OTHER)])
    assert (first["cpu to 1 node"], first["rate to 1 node"]) == (1.0, 1.0)
    assert (second["cpu to 1 node"], second["rate to 1 node"]) == (1.25, 3.0)


def test_a_run_that_failed_has_no_ratio_and_is_an_error() -> None:
    failed = point(2, 0.0, errors=("lost: 3 messages",))
    assert rows([point(1, 2.0), failed])[1]["cpu to 1 node"] is None
    with pytest.raises(LocalError, match="lost: 3"):
        check([failed])


def test_the_plot_has_a_bar_for_every_figure_of_every_point() -> None:
    points = [point(1, 2.0), point(2, 2.1), point(2, 3.0, OTHER)]
    drawn = ElementTree.fromstring(plot(points))
    bars = [bar for bar in drawn.iter("{http://www.w3.org/2000/svg}rect") if bar.get("height") != "100%"]
    assert len(bars) == 2 * len(points)


def test_a_process_that_is_not_there_is_not_held_and_nothing_is_left() -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    with held_to([gone], 0.25) as is_held:
        assert not is_held
    assert not [
        path
        for path in ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")
        if os.path.isdir(f"{path}/millrace-bench-{gone}")
    ]
