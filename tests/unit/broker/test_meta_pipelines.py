"""Pipelines that the cluster holds: one owner under a rising epoch, and decisions of the newest run alone."""

import pytest

from millrace.broker.entries.meta import (
    BeginPipeline,
    CommitBatch,
    DeletePipeline,
    FailPipeline,
    MetaEntry,
    OwnPipeline,
    PutPipeline,
    RenewPipelines,
    SteerPipeline,
)
from millrace.broker.meta.pipelines import Fence, Pipeline, Pipelines, PipelineSpec, Steer, wrong_text
from millrace.broker.meta.state import FIRST_SHARD, MetaState
from millrace.errors import LocalError
from millrace.limits import DECLARED_PIPELINES_MAX, PIPELINE_FILE_BYTES_MAX, PIPELINE_FILES_BYTES_MAX

SPEC = PipelineSpec(name="copy", file="copy.py", node="n1")


def put(spec: PipelineSpec = SPEC, text: str = "x = 1", *, create_only: bool = True) -> PutPipeline:
    return PutPipeline(spec, text, "ann", create_only)


def made(*entries: MetaEntry) -> MetaState:
    state = MetaState()
    for entry in (put(), *entries):
        result = state.apply(entry)
        assert result.error is None, (entry, result)
    return state


def shown(state: MetaState) -> Pipeline:
    return state.pipelines.by_name["copy"]


def test_ownership_passes_under_a_rising_epoch() -> None:
    """Of two that want it from the same epoch one gets it; the other's entry changes nothing."""
    state = made(OwnPipeline("copy", 0, "a"))
    assert (shown(state).owner, shown(state).epoch) == ("a", 1)
    assert "meanwhile" in (state.apply(OwnPipeline("copy", 0, "b")).error or "")
    assert state.apply(OwnPipeline("copy", 1, "b")).error is None
    assert (shown(state).owner, shown(state).epoch) == ("b", 2)


def test_a_driver_of_an_older_run_decides_no_batch() -> None:
    """The old driver's decision is refused, also for a batch that is new; the new one's, and that of a writer
    without a pipeline, are taken. A repeat by the new driver is one batch."""
    state = made(OwnPipeline("copy", 0, "a"))
    number = shown(state).number
    winners = {"attempt": {FIRST_SHARD: 1}}

    def commit(batch: int, epoch: int | None) -> MetaEntry:
        fence = None if epoch is None else Fence(number, epoch)
        return CommitBatch("w", batch, winners, "ann", fence)

    assert state.apply(commit(0, 1)).error is None
    assert state.apply(OwnPipeline("copy", 1, "b")).error is None
    assert "any more" in (state.apply(commit(1, 1)).error or "")
    assert state.writers.writers["w"].last == 0
    assert state.apply(commit(0, 2)).is_repeat
    assert state.apply(commit(1, 2)).error is None
    assert state.apply(commit(2, None)).error is None
    assert state.writers.writers["w"].last == 2


@pytest.mark.parametrize("after", ["deleted", "made again", "reset"])
def test_a_driver_of_a_pipeline_that_is_no_more_decides_nothing(after: str) -> None:
    """Also where another pipeline has its name, or the same one begins anew, and gets to the same epoch."""
    state = made(OwnPipeline("copy", 0, "a"))
    old = shown(state).fence
    if after == "reset":
        entries: list[MetaEntry] = [SteerPipeline("copy", Steer.STOP), SteerPipeline("copy", Steer.RESET)]
    else:
        entries = [DeletePipeline("copy")]
    if after == "made again":
        entries += [put(), OwnPipeline("copy", 0, "a")]
    for entry in entries:
        assert state.apply(entry).error is None
    assert "any more" in (state.apply(CommitBatch("w", 0, {}, "ann", old)).error or "")


def test_what_people_ask_for() -> None:
    state = made(OwnPipeline("copy", 0, "a"), BeginPipeline("copy", 1))
    assert shown(state).runs and shown(state).version == 1
    assert "stop it first" in (state.apply(SteerPipeline("copy", Steer.RESET)).error or "")
    state.apply(SteerPipeline("copy", Steer.STOP))
    assert not shown(state).runs
    state.apply(SteerPipeline("copy", Steer.RESET))
    assert (shown(state).resets, shown(state).has_begun, shown(state).owner) == (1, False, "")
    state.apply(SteerPipeline("copy", Steer.START))
    assert shown(state).runs and shown(state).version == 2
    state.apply(SteerPipeline("copy", Steer.START))
    assert shown(state).version == 3


def test_a_failure_stays_until_somebody_asks() -> None:
    """Only the run that failed may say so; whoever restarts or upgrades it clears it."""
    state = made(OwnPipeline("copy", 0, "a"))
    assert state.apply(FailPipeline("copy", 0, "late news")).error
    assert state.apply(FailPipeline("copy", 1, "no table")).error is None
    assert shown(state).failure == "no table" and not shown(state).runs
    assert state.apply(put(text="y = 2", create_only=False)).error is None
    assert shown(state).runs and (shown(state).text, shown(state).version) == ("y = 2", 2)


def test_an_upgrade_keeps_the_checkpoints() -> None:
    """To name another place would be to begin anew in silence."""
    elsewhere = PipelineSpec(name="copy", file="copy.py", node="n1", checkpoints="s3a://b/c")
    state = made(OwnPipeline("copy", 0, "a"), BeginPipeline("copy", 1))
    assert "has its checkpoints elsewhere" in (state.apply(put(elsewhere, create_only=False)).error or "")
    state.apply(SteerPipeline("copy", Steer.STOP))
    state.apply(SteerPipeline("copy", Steer.RESET))
    assert state.apply(put(elsewhere, create_only=False)).error is None
    assert not shown(state).is_wanted


def test_names_and_sizes_are_bounded() -> None:
    state = made()
    assert "upgrade copy FILE" in (state.apply(put()).error or "")
    other = PipelineSpec(name="other", file="o.sql", node="n1")
    assert "no pipeline 'other'" in (state.apply(put(other, create_only=False)).error or "")
    assert "the most is" in (state.apply(put(other, "é" * PIPELINE_FILE_BYTES_MAX)).error or "")
    pipelines, spec = Pipelines(), {"file": "p.py", "node": "n1"}
    for n in range(PIPELINE_FILES_BYTES_MAX // PIPELINE_FILE_BYTES_MAX):
        named = PipelineSpec(name=f"p{n}", **spec)
        pipelines.put(named, "x" * PIPELINE_FILE_BYTES_MAX, "ann", create_only=True)
    with pytest.raises(LocalError, match="all files together"):
        pipelines.put(other, "x", "ann", create_only=True)
    pipelines = Pipelines()
    for n in range(DECLARED_PIPELINES_MAX):
        pipelines.put(PipelineSpec(name=f"p{n}", **spec), "", "ann", create_only=True)
    with pytest.raises(LocalError, match="the most"):
        pipelines.put(other, "x", "ann", create_only=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"node": ""}, "more than one node may run it"),
        ({"node": "", "checkpoints": "/mnt/shared"}, "more than one node may run it"),
        ({"master": "spark://head:7077"}, "workers of a Spark cluster"),
        ({"checkpoints": "relative/path"}, "begins with /"),
        ({"file": "copy.jar"}, "ends in .py or .sql"),
        ({"file": "../copy.py"}, "ends in .py or .sql"),
        ({"name": "a/b"}, "a name is up to 64"),
        ({"settings": ("x",)}, "not KEY=VALUE"),
        ({"trigger": "often"}, "a time such as 500ms"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_reason(given: dict[str, object], said: str) -> None:
    with pytest.raises(LocalError, match=said):
        PipelineSpec.read({"name": "copy", "file": "copy.py", "node": "n1", **given})


@pytest.mark.parametrize("checkpoints", ["s3a://bucket/x", "hdfs://h/x", "file:///mnt/shared"])
def test_any_node_may_run_what_has_its_checkpoints_at_a_url(checkpoints: str) -> None:
    assert PipelineSpec(name="copy", file="copy.py", checkpoints=checkpoints).node == ""


def test_the_one_that_runs_few_is_chosen() -> None:
    state = made(OwnPipeline("copy", 0, "a"))
    free = PipelineSpec(name="free", file="f.py", checkpoints="s3a://b/c")
    state.apply(put(free))
    pipelines = state.pipelines
    fit = [("a", "n1"), ("b", "n2")]
    assert pipelines.choose(pipelines.by_name["free"], fit) == "b"
    assert pipelines.choose(pipelines.by_name["copy"], fit) == "a"
    assert pipelines.choose(pipelines.by_name["copy"], fit[1:]) is None


def test_renewals_are_counted_of_owners_alone() -> None:
    state = made(OwnPipeline("copy", 0, "a"), RenewPipelines("a"), RenewPipelines("a"), RenewPipelines("b"))
    assert state.pipelines.renewals == {"a": 2}
    state.apply(OwnPipeline("copy", 1, "b"))
    assert state.pipelines.renewals == {}


def test_what_python_does_not_understand_is_said_with_its_line() -> None:
    assert wrong_text("p.py", "def build(flow):\n    return (\n") == (
        "p.py, line 2: '(' was never closed: return ("
    )
    assert "null" in (wrong_text("p.py", "x = '\0'") or "")
    assert wrong_text("p.sql", "SELECT (") is None and wrong_text("p.py", "x = 1") is None


@pytest.mark.parametrize("text", ["", "1", ":", "a:1", "1:b", "-1:2", "1:2:3", "\u0661:1"])
def test_a_fence_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(LocalError):
        Fence.parse(text)
    assert Fence.parse("3:14") == Fence(3, 14) and str(Fence(3, 14)) == "3:14"
