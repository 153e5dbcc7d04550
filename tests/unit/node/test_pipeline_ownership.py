"""Which node the leader gives a pipeline to and when, and what a driver gets of its node: pure decisions."""

from pathlib import Path

import pytest

from millrace.broker.entries.meta import OwnPipeline
from millrace.broker.meta.members import Member
from millrace.broker.meta.pipelines import Pipeline, Pipelines, PipelineSpec, Steer
from millrace.errors import LocalError
from millrace.node.pipelines.ownership import TAKEOVER_S, Ownership
from millrace.node.pipelines.running import Place, environment

FREE = PipelineSpec(name="free", file="f.py", checkpoints="s3a://b/c")
BOUND = PipelineSpec(name="bound", file="b.py", node="n1")


def member(number: int, *, runs: bool = True, is_draining: bool = False) -> Member:
    return Member(
        replica=f"r{number}", name=f"n{number}", peer="h:1", runs_pipelines=runs, is_draining=is_draining
    )


def members(*given: Member) -> dict[str, Member]:
    return {one.replica: one for one in given}


def held(*specs: PipelineSpec) -> Pipelines:
    pipelines = Pipelines()
    for spec in specs:
        pipelines.put(spec, "", "ann", create_only=True)
    return pipelines


def give(
    ownership: Ownership, pipelines: Pipelines, now_s: float, *, unheard: tuple[str, ...] = ()
) -> list[str]:
    """Carry out what the leader proposes; the replicas that got something."""
    entries = list(ownership.review(pipelines, members(member(1), member(2)), unheard, now_s))
    for one in entries:
        pipelines.own(one.name, one.after, one.owner)
    return [one.owner for one in entries]


def test_a_pipeline_goes_to_a_node_that_may_and_can_run_it() -> None:
    pipelines, ownership = held(FREE), Ownership()

    def proposed(*given: Member, unheard: tuple[str, ...] = ()) -> list[OwnPipeline]:
        return list(ownership.review(pipelines, members(*given), unheard, 0.0))

    assert proposed(member(1, runs=False), member(2, is_draining=True)) == []
    assert proposed(member(1), unheard=("r1",)) == []
    assert proposed(member(1), member(2, runs=False)) == [OwnPipeline("free", 0, "r1")]
    pipelines.steer("free", Steer.STOP)
    assert proposed(member(1)) == []


def test_one_that_is_bound_waits_for_its_node() -> None:
    pipelines, ownership = held(BOUND), Ownership()
    assert list(ownership.review(pipelines, members(member(2)), (), 0.0)) == []
    assert give(ownership, pipelines, 1.0) == ["r1"]
    # Nobody else may have it, however long its node is silent.
    assert give(ownership, pipelines, 2.0, unheard=("r1",)) == []
    assert give(ownership, pipelines, 1_000.0, unheard=("r1",)) == []


def test_an_owner_keeps_it_as_long_as_it_renews() -> None:
    """Counted from the last renewal, and anew by whoever comes to lead."""
    pipelines, ownership = held(FREE), Ownership()
    assert give(ownership, pipelines, 0.0) == ["r1"]
    for second in range(0, 60, 5):
        pipelines.renew("r1")
        assert give(ownership, pipelines, float(second)) == []
    assert give(ownership, pipelines, 55.0 + TAKEOVER_S - 0.1) == []
    another = Ownership()
    assert give(another, pipelines, 55.0 + TAKEOVER_S) == []
    assert give(ownership, pipelines, 55.0 + TAKEOVER_S) == ["r2"]


def test_another_start_is_news_of_the_owner() -> None:
    pipelines, ownership = held(FREE), Ownership()
    give(ownership, pipelines, 0.0)
    assert give(ownership, pipelines, 1.0) == []
    pipelines.own("free", 1, "r1")
    assert give(ownership, pipelines, TAKEOVER_S) == []
    assert give(ownership, pipelines, 2 * TAKEOVER_S) == ["r2"]


def test_a_driver_gets_no_setting_of_its_node() -> None:
    own = {"PATH": "/bin", "MILLRACE_CLUSTER__SECRET": "s", "MILLRACE_CA_FILE": "ca", "MILLRACE_TOKEN": "old"}
    assert environment(own, "new") == {"PATH": "/bin", "MILLRACE_CA_FILE": "ca", "MILLRACE_TOKEN": "new"}


@pytest.mark.parametrize(
    ("checkpoints", "whole"),
    [
        ("", "{data}/pipelines/p/checkpoints/3-1"),
        ("/mnt/c", "/mnt/c/p/3-1"),
        ("file:///mnt/c/", "file:///mnt/c/p/3-1"),
        ("file:/mnt/c", "file:/mnt/c/p/3-1"),
        ("s3a://b/c", "s3a://b/c/p/3-1"),
    ],
)
def test_each_reset_has_a_place_of_its_own(tmp_path: Path, checkpoints: str, whole: str) -> None:
    spec = PipelineSpec(name="p", file="p.py", node="n1", checkpoints=checkpoints)
    place = Place.of(tmp_path, Pipeline(number=3, spec=spec, text="", resets=1))
    assert place.checkpoints == whole.format(data=tmp_path)
    path = place.checkpoints.removeprefix("file://").removeprefix("file:")
    assert place.mark == (None if "s3a" in checkpoints else Path(path) / "millrace-pipeline")


def test_checkpoints_that_are_not_where_they_were_are_missed(tmp_path: Path) -> None:
    """A second owner finds the mark of the first one, or none, or that of another cluster."""
    spec = PipelineSpec(name="p", file="p.py", checkpoints=f"file://{tmp_path}/shared")
    first = Pipeline(number=1, spec=spec, text="x = 1")
    begun = Pipeline(number=1, spec=spec, text="x = 2", has_begun=True)
    Place.of(tmp_path / "n1", first).prepare(first, "cluster")
    Place.of(tmp_path / "n2", begun).prepare(begun, "cluster")
    assert (tmp_path / "n2" / "pipelines" / "p" / "p.py").read_text() == "x = 2"
    place = Place.of(tmp_path / "n3", begun)
    with pytest.raises(LocalError, match="its checkpoints are not at"):
        place.prepare(begun, "another cluster")
    assert place.mark is not None
    place.mark.unlink()
    with pytest.raises(LocalError, match="its checkpoints are not at"):
        place.prepare(begun, "cluster")
