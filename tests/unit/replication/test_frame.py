"""The frame formulas, the admission that follows from them, and the order in which jobs are given out."""

import pytest

from millrace.errors import LocalError
from millrace.replication.frame.schedule import (
    Deadlines,
    Job,
    JobKind,
    JobQueue,
    LinkBounds,
    Schedule,
    TopicTerms,
    deadlines,
)
from millrace.replication.frame.sides import Discard, FrameBackup, FramePrimary

BOUNDS = LinkBounds(failover_ms=50, publisher_ms=1, subscriber_ms=20, backup_ms=0.05)


def terms(period: int, deadline: int, tolerance: int | None, retention: int) -> TopicTerms:
    return TopicTerms(period_ms=period, deadline_ms=deadline, loss_tolerance=tolerance, retention=retention)


@pytest.mark.parametrize(
    ("given", "dispatch", "replicate", "is_replicated"),
    [
        ((50, 50, 0, 2), 29, 48.95, False),
        ((50, 50, 3, 0), 29, 98.95, False),
        ((100, 100, 0, 1), 79, 48.95, True),
        ((100, 100, 3, 0), 79, 248.95, False),
        ((100, 100, None, 0), 79, None, False),
        ((500, 500, 0, 1), 479, 448.95, True),
    ],
)
def test_the_categories_of_the_published_experiment(
    given: tuple[int, int, int | None, int], dispatch: float, replicate: float | None, is_replicated: bool
) -> None:
    found = deadlines(terms(*given), BOUNDS)
    assert found.dispatch_ms == pytest.approx(dispatch)
    assert found.replicate_ms == (None if replicate is None else pytest.approx(replicate))
    assert found.is_replicated is is_replicated


def test_a_negative_deadline_is_refused_with_the_number() -> None:
    with pytest.raises(LocalError, match=r"dispatch deadline would be -11 ms: 10 - 1 .* - 20"):
        deadlines(terms(100, 10, 3, 0), BOUNDS)
    with pytest.raises(LocalError, match=r"replication deadline would be -51.05 ms: \(0 \+ 0\) x 100"):
        deadlines(terms(100, 100, 0, 0), BOUNDS)


def test_three_checks_of_a_second_admit_only_what_outlasts_them() -> None:
    """[rule 24]."""
    slow = LinkBounds(failover_ms=3500, publisher_ms=1, subscriber_ms=1, backup_ms=1)
    with pytest.raises(LocalError):
        deadlines(terms(100, 100, 0, 2), slow)
    assert deadlines(terms(1000, 500, 1, 3), slow).replicate_ms == pytest.approx(498)


def test_equal_deadlines_need_no_copy() -> None:
    same = LinkBounds(failover_ms=50, publisher_ms=1, subscriber_ms=1, backup_ms=1)
    found = deadlines(terms(50, 50, 0, 2), same)
    assert found.dispatch_ms == found.replicate_ms
    assert not found.is_replicated


def job(kind: JobKind, number: int, due_us: int) -> Job:
    return Job(kind=kind, number=number, due_us=due_us)


def test_the_earliest_deadline_is_first_and_what_is_cancelled_is_passed_over() -> None:
    queue = JobQueue(4)
    late = job(JobKind.DISPATCH, 1, 900)
    copy = job(JobKind.REPLICATE, 2, 100)
    soon = job(JobKind.DISPATCH, 3, 200)
    for one in (late, copy, soon):
        queue.push(one)
    queue.cancel(JobKind.REPLICATE, 2)
    assert len(queue) == 2
    assert [queue.pop(), queue.pop(), queue.pop()] == [soon, late, None]


def test_a_full_queue_says_so() -> None:
    queue = JobQueue(1)
    queue.push(job(JobKind.DISPATCH, 1, 0))
    assert not queue.has_room(1)
    with pytest.raises(LocalError, match="1 jobs"):
        queue.push(job(JobKind.DISPATCH, 2, 0))


COPIED = Deadlines(dispatch_ms=79, replicate_ms=49, is_replicated=True, why="")
PLAIN = Deadlines(dispatch_ms=29, replicate_ms=49, is_replicated=False, why="")


def test_jobs_of_a_primary_go_by_deadline_and_a_dispatched_copy_is_discarded() -> None:
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=10)
    assert [primary.arrive(COPIED, 0), primary.arrive(PLAIN, 0)] == [1, 2]
    order = []
    discards = []
    while (one := primary.take()) is not None:
        order.append((one.kind.value, one.number))
        discards.append(primary.done(one))
    assert order == [("dispatch", 2), ("replicate", 1), ("dispatch", 1)]
    assert discards == [None, None, Discard(number=1)]


def test_a_dispatch_that_is_first_cancels_the_copy() -> None:
    """Two jobs of a message may be under way at once; the one that is done first decides."""
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=10)
    primary.arrive(COPIED, 0)
    dispatch = Job(kind=JobKind.DISPATCH, number=1, due_us=79_000)
    assert primary.done(dispatch) is None
    left = primary.take()
    assert left is not None and left.kind is JobKind.DISPATCH, "the copy was passed over"


def test_overload_is_counted_and_refused() -> None:
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=3)
    assert [primary.arrive(COPIED, 0), primary.arrive(COPIED, 0), primary.arrive(PLAIN, 0)] == [1, None, 2]
    assert primary.overloaded == 1


def test_fcfs_copies_and_dispatches_in_the_order_of_arrival() -> None:
    primary = FramePrimary(schedule=Schedule.FCFS, jobs_max=10)
    primary.arrive(COPIED, 5)
    primary.arrive(PLAIN, 6)
    order = []
    while (one := primary.take()) is not None:
        order.append((one.kind.value, one.number))
        primary.done(one)
    assert order == [("replicate", 1), ("dispatch", 1), ("replicate", 2), ("dispatch", 2)]


def test_without_a_backup_nothing_is_copied() -> None:
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=10)
    primary.arrive(COPIED, 0, has_backup=False)
    one = primary.take()
    assert one is not None and one.kind is JobKind.DISPATCH
    assert primary.take() is None


def test_a_promotion_hands_out_what_was_not_discarded_in_order() -> None:
    backup = FrameBackup(copies_max=10)
    for number in (3, 1, 2):
        backup.on_copy(7, number, b"%d" % number)
    backup.on_discard(7, 2)
    assert backup.promote() == [b"1", b"3"]
    assert backup.promote() == []


def test_a_discard_may_overtake_its_copy() -> None:
    backup = FrameBackup(copies_max=10)
    backup.on_discard(7, 1)
    backup.on_copy(7, 1, b"late")
    assert backup.promote() == []


def test_copies_of_an_earlier_epoch_say_nothing() -> None:
    backup = FrameBackup(copies_max=10)
    backup.on_copy(7, 1, b"old")
    backup.on_copy(8, 1, b"new")
    backup.on_copy(7, 2, b"stale")
    assert backup.promote() == [b"new"]


def test_a_full_backup_forgets_the_oldest_and_counts() -> None:
    backup = FrameBackup(copies_max=2)
    for number in (1, 2, 3):
        backup.on_copy(7, number, b"%d" % number)
    assert backup.promote() == [b"2", b"3"]
    assert backup.dropped == 1


def test_a_run_is_one_job_and_counts_as_its_messages() -> None:
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=10)
    assert [primary.arrive(COPIED, 0, count=3), primary.arrive(PLAIN, 0, count=3)] == [1, 4]
    assert len(primary) == 6
    assert primary.arrive(PLAIN, 0, count=2) is None, "six, three and two do not fit"
    assert primary.overloaded == 2
    assert primary.has_room(1) and not primary.has_room(2)
    found = []
    while (one := primary.take()) is not None:
        found.append((one.kind.value, one.number, one.messages, primary.done(one)))
    assert found == [
        ("dispatch", 4, 3, None),
        ("replicate", 1, 3, None),
        ("dispatch", 1, 3, Discard(number=1)),
    ]
    assert len(primary) == 0 and primary.has_room(10)
    assert primary.copies == 3


def test_a_cancelled_run_keeps_its_place_until_its_turn() -> None:
    queue = JobQueue(5)
    queue.push(Job(JobKind.REPLICATE, 1, 100, 3))
    queue.push(Job(JobKind.DISPATCH, 1, 900, 2))
    queue.cancel(JobKind.REPLICATE, 1, 3)
    assert len(queue) == 2 and not queue.has_room(1)
    assert queue.pop() == Job(JobKind.DISPATCH, 1, 900, 2)
    assert len(queue) == 0 and queue.has_room(5)


def test_a_backup_is_bounded_by_messages_and_discards_runs_whole() -> None:
    backup = FrameBackup(copies_max=5)
    backup.on_copy(7, 1, b"1-3", 3)
    backup.on_copy(7, 4, b"4-5", 2)
    assert len(backup) == 5
    backup.on_copy(7, 4, b"4-5", 2)
    assert len(backup) == 5, "a copy that comes twice is one"
    backup.on_copy(7, 6, b"6", 1)
    assert (len(backup), backup.dropped) == (3, 3)
    backup.on_discard(7, 4)
    assert len(backup) == 1
    assert backup.promote() == [b"6"]
    assert len(backup) == 0
