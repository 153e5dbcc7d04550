"""The coordinator of staged publishing: a batch is decided once, and remembered until it is visible."""

import pytest

from millrace.broker.entries.meta import BatchRolled, CommitBatch, DeleteStream, PutStream
from millrace.broker.meta.state import MetaState, Result
from millrace.broker.meta.writers import Writers, winners_from
from millrace.broker.shards.staging import AttemptKey
from millrace.broker.streams.stream import StreamSpec
from millrace.errors import LocalError
from millrace.limits import ATTEMPTS_MAX, DECISIONS_MAX, WRITERS_MAX


def commit(writers: Writers, batch: int, winners: dict[str, dict[int, int]], name: str = "w") -> bool:
    return writers.commit(name, batch, winners, "", lambda shard: shard < 100)


def restored(writers: Writers) -> Writers:
    state = MetaState()
    state.writers = writers
    return MetaState.from_bytes(state.to_bytes()).writers


def test_a_batch_is_decided_once() -> None:
    """The same batch, an older one, and another driver's try at it change nothing."""
    writers = Writers()
    assert commit(writers, 0, {"a": {1: 2}})
    assert not commit(writers, 0, {"b": {1: 2}})
    assert commit(writers, 4, {"c": {1: 1, 2: 1}})
    assert not commit(writers, 3, {"d": {1: 2}})
    assert [(name, one.batch) for name, one in writers.waiting(1)] == [("w", 0), ("w", 4)]
    assert [one.attempts(1) for _, one in writers.waiting(1)] == [[("a", 2)], [("c", 1)]]


def test_a_decision_is_remembered_until_every_shard_has_it() -> None:
    writers = Writers()
    commit(writers, 0, {"a": {1: 1, 2: 1}})
    writers.rolled("w", 0, 1)
    assert not writers.waiting(1) and writers.waiting(2)
    assert not writers.is_given_up(AttemptKey("w", 0, "a"))
    writers.rolled("w", 0, 2)
    writers.rolled("w", 0, 2)
    assert not writers.waiting(2) and writers.writers["w"].last == 0


def test_what_may_be_dropped_is_only_what_was_recorded() -> None:
    """Undecided data stays; losers of a decided batch, aborted attempts and late ones go."""
    writers = Writers()
    assert not writers.is_given_up(AttemptKey("w", 0, "a"))
    commit(writers, 1, {"a": {1: 1}})
    assert not writers.is_given_up(AttemptKey("w", 1, "a"))
    assert writers.is_given_up(AttemptKey("w", 1, "b")) and writers.is_given_up(AttemptKey("w", 0, "z"))
    assert not writers.is_given_up(AttemptKey("w", 2, "a2"))
    writers.abort("w", 2, ["a2"], "")
    assert writers.is_given_up(AttemptKey("w", 2, "a2"))
    with pytest.raises(LocalError, match="a2 was given up"):
        commit(writers, 2, {"a2": {1: 1}, "b2": {1: 1}})
    assert writers.writers["w"].last == 1
    assert commit(writers, 2, {"b2": {1: 1}})
    assert writers.writers["w"].aborted == {}


def test_a_decision_cannot_be_given_up() -> None:
    writers = Writers()
    commit(writers, 0, {"a": {1: 1}})
    for batch in (0, 1):
        writers.abort("w", batch, ["a"], "")
        assert not writers.is_given_up(AttemptKey("w", 0, "a"))


def test_a_writer_that_never_commits_can_give_up_for_ever() -> None:
    """Beyond the bound what was given up first is forgotten: its data was let go long ago."""
    writers = Writers()
    first = [f"a{n}" for n in range(ATTEMPTS_MAX)]
    writers.abort("w", 0, first, "")
    writers.abort("w", 0, ["a0", "b"], "")
    given_up = [name for name in (*first, "b") if writers.is_given_up(AttemptKey("w", 0, name))]
    assert given_up == ["a0", *first[2:], "b"]
    # A replica that begins from a snapshot forgets the same ones.
    again = restored(writers)
    for one in (writers, again):
        one.abort("w", 0, ["c"], "")
    assert again.writers == writers.writers
    assert list(again.writers["w"].aborted) == list(writers.writers["w"].aborted)
    with pytest.raises(LocalError, match="too many"):
        writers.abort("w", 0, [f"c{n}" for n in range(ATTEMPTS_MAX + 1)], "")


def test_refusals_change_nothing() -> None:
    writers = Writers()
    with pytest.raises(LocalError, match="shard 100 takes no more data"):
        commit(writers, 0, {"a": {1: 1, 100: 1}})
    assert writers.writers["w"].last == -1 and not writers.waiting(1)
    with pytest.raises(LocalError, match="too many"):
        commit(writers, 0, {f"a{n}": {1: 1} for n in range(ATTEMPTS_MAX + 1)})
    with pytest.raises(LocalError, match="belongs to another user"):
        writers.commit("w", 0, {}, "eve", lambda shard: True)
    with pytest.raises(LocalError, match="belongs to another user"):
        writers.abort("w", 0, ["a"], "eve")
    for batch in range(DECISIONS_MAX):
        assert commit(writers, batch, {"a": {1: 1}})
    with pytest.raises(LocalError, match="not visible yet; try again"):
        commit(writers, DECISIONS_MAX, {"a": {1: 1}})


def test_quiet_writers_are_forgotten_and_busy_ones_never() -> None:
    writers = Writers()
    commit(writers, 0, {"a": {1: 1}}, "busy")
    for number in range(WRITERS_MAX):
        commit(writers, 0, {}, f"w{number}")
    assert len(writers.writers) == WRITERS_MAX
    assert "busy" in writers.writers and "w0" not in writers.writers


def test_the_meta_group_decides_and_remembers() -> None:
    """Through commands and a snapshot; what was sealed or deleted takes no batch any more."""
    state = MetaState()
    state.apply(PutStream(StreamSpec(name="s", filters=("s/#",), shards=2), create_only=True))
    first, second = state.table.streams["s"].shards

    def decide(batch: int, *shards: int) -> Result:
        return state.apply(CommitBatch("w", batch, {"a": dict.fromkeys(shards, 1)}, ""))

    assert decide(0, first, second).error is None and decide(0, first).is_repeat
    state = MetaState.from_bytes(state.to_bytes())
    state.apply(BatchRolled("w", 0, first))
    assert state.writers.waiting(second) and not state.writers.waiting(first)
    state.apply(PutStream(StreamSpec(name="s", filters=("s/#",), shards=1), create_only=False))
    refused = decide(1, first).error
    assert refused is not None and "takes no more data" in refused
    # What was decided before is still rolled forward, until the stream is gone with everything in it.
    assert state.writers.waiting(second)
    state.apply(DeleteStream("s"))
    assert not state.writers.waiting(second)


@pytest.mark.parametrize(("writer", "attempt"), [("a b", "a"), ("w", "a b")])
def test_a_decision_that_makes_no_sense_is_refused_alike(writer: str, attempt: str) -> None:
    assert MetaState().apply(CommitBatch(writer, 0, {attempt: {16: 1}}, "")).error


@pytest.mark.parametrize(
    "winners",
    [{"a": {"x": 1}}, {"a": 3}, {"a": {"16": 0}}],
)
def test_winners_that_make_no_sense_are_refused(winners: dict[str, dict[str, int]]) -> None:
    with pytest.raises(LocalError, match="attempt a"):
        winners_from(winners)
