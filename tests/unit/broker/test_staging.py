"""What writers staged at a shard: each block once, in order, and dropped only by an entry."""

import msgspec
import pytest

from millrace.broker.shards.staging import (
    AttemptKey,
    BlockKey,
    Place,
    SavedStaged,
    Staged,
    Taken,
    make_key,
    parse_key,
    saved_attempt,
)
from millrace.errors import LocalError
from millrace.limits import WRITERS_SETTLED_MAX


def key(block: int, attempt: str = "a", batch: int = 0, writer: str = "w") -> BlockKey:
    return make_key(writer, batch, attempt, block)


def stage(staged: Staged, key: BlockKey, index: int = 1, user: str = "") -> bool:
    return staged.stage(key, Place(index=index, size_bytes=10, rows=3), user=user, time_us=5)


def test_a_block_is_staged_once_and_in_order() -> None:
    staged = Staged()
    assert stage(staged, key(0), 7) and not stage(staged, key(0), 8)
    assert not stage(staged, key(2), 9)
    assert stage(staged, key(1), 10)
    assert [place.index for place in staged.attempts[key(0).owner].places] == [7, 10]
    assert staged.size_bytes == 20
    assert staged.has(key(1), "") and not staged.has(key(2), "")


def test_nobody_puts_a_block_into_the_attempt_of_another() -> None:
    """Otherwise the owner's block of that number would pass for a repeat, and its rows would be lost."""
    staged = Staged()
    assert stage(staged, key(0), 7, user="ann")
    assert not stage(staged, key(1), 8, user="bob")
    assert not staged.has(key(0), "bob") and not staged.has(key(1), "ann")
    assert stage(staged, key(1), 9, user="ann")
    assert [place.index for place in staged.attempts[key(0).owner].places] == [7, 9]


def test_a_batch_that_is_through_takes_nothing_more() -> None:
    """A task that comes too late stages nothing, and is told that nothing more is wanted of it."""
    staged = Staged()
    stage(staged, key(0))
    stage(staged, key(0, batch=1))
    stage(staged, key(0, writer="other"))
    staged.settle("w", 0)
    assert set(staged.attempts) == {AttemptKey("w", 1, "a"), AttemptKey("other", 0, "a")}
    assert staged.size_bytes == 20
    assert not stage(staged, key(0, "late")) and staged.has(key(5, "late"), "")
    staged.settle("w", 1)
    staged.settle("w", 0)
    assert staged.settled["w"] == 1


def test_the_leader_takes_the_next_block_of_an_attempt_and_no_other() -> None:
    """Two nodes propose the same winners: each block is admitted once, whoever comes first."""
    staged = Staged()
    for block in range(3):
        stage(staged, key(block))
    taken = Taken(staged)
    assert taken.admits(key(0)) and not taken.admits(key(0))
    assert not taken.admits(key(2))
    assert taken.admits(key(1))
    # A new leader knows only what is applied; what it applied it does not take again.
    staged.release(key(0))
    fresh = Taken(staged)
    assert not fresh.admits(key(0)) and fresh.admits(key(1)) and fresh.admits(key(2))
    staged.settle("w", 0)
    assert not fresh.admits(key(2)) and not fresh.admits(key(3))


def test_a_block_that_the_log_refused_is_taken_when_it_comes_again() -> None:
    staged = Staged()
    for block in range(3):
        stage(staged, key(block))
    taken = Taken(staged)
    assert all(taken.admits(key(block)) for block in range(3))
    for block in (1, 2):
        taken.withdraw(key(block))
    assert not taken.admits(key(0)) and taken.admits(key(1)) and taken.admits(key(2))


def test_the_oldest_entry_that_is_needed_is_known() -> None:
    staged = Staged()
    assert staged.first_index() is None
    stage(staged, key(0), 10)
    stage(staged, key(1), 12)
    stage(staged, key(0, "b"), 11)
    assert staged.first_index() == 10
    staged.release(key(0))
    assert staged.first_index() == 11
    staged.attempts[key(0, "b").owner].places[0].data = b"from a snapshot"
    assert staged.first_index() == 12
    staged.drop(list(staged.attempts))
    assert staged.first_index() is None and staged.size_bytes == 0


def test_a_snapshot_holds_everything_with_the_bytes_of_what_is_not_released() -> None:
    staged = Staged()
    stage(staged, key(0), 10)
    stage(staged, key(1), 12)
    staged.release(key(0))
    staged.settle("gone", 4)
    assert [place.index for place in staged.unreleased()] == [12]
    data = {12: b"bytes"}
    rows = [saved_attempt(owner, attempt, data) for owner, attempt in staged.copies()]
    saved = SavedStaged(rows, list(staged.settled.items()))
    again = Staged.restored(msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=SavedStaged))
    assert [saved_attempt(owner, attempt, data) for owner, attempt in again.copies()] == rows
    assert [place.data for place in again.attempts[key(0).owner].places] == [None, b"bytes"]
    assert (again.size_bytes, again.settled) == (20, {"gone": 4})
    assert again.attempts[key(0).owner].released == 1


def test_writers_that_were_quiet_longest_are_forgotten() -> None:
    staged = Staged()
    for number in range(WRITERS_SETTLED_MAX + 1):
        staged.settle(f"w{number}", 0)
    assert len(staged.settled) == WRITERS_SETTLED_MAX and "w0" not in staged.settled


@pytest.mark.parametrize("text", [b"w/0/a", b"w/x/a/0", b"w/0/a b/0", b"/0/a/0", b"\xff/0/a/0", b"w/-1/a/0"])
def test_a_key_is_read_strictly(text: bytes) -> None:
    assert parse_key(key(3, "a-1", 7, "W.x").encode()) == key(3, "a-1", 7, "W.x")
    with pytest.raises(LocalError):
        parse_key(text)
