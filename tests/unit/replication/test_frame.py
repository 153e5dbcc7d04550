"""The frame formulas, the admission that follows from them, and the order in which jobs are given out."""

import pytest

from millrace.errors import LocalError
from millrace.replication.frame.machine import Frame
from millrace.replication.frame.messages import (
    Arrived,
    Copied,
    Discard,
    Discarded,
    Dispatch,
    Dispatched,
    FrameEffect,
    Overloaded,
    Promoted,
    Queued,
    Ready,
    Recover,
    Replicate,
    Replicated,
)
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
from millrace.replication.frame.sides import FrameBackup, FramePrimary

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


def drain(frame: Frame) -> list[FrameEffect]:
    """Every job done as soon as it is given out, and what came of it."""
    effects: list[FrameEffect] = []
    while found := frame.step(Ready()):
        for one in found:
            effects.append(one)
            if isinstance(one, Replicate):
                effects += frame.step(Replicated(number=one.number, count=one.count))
            elif isinstance(one, Dispatch):
                effects += frame.step(Dispatched(number=one.number, count=one.count))
    return effects


def test_jobs_of_a_primary_go_by_deadline_and_a_dispatched_copy_is_discarded() -> None:
    frame = Frame(schedule=Schedule.FRAME, jobs_max=10, copies_max=10)
    assert frame.step(Arrived(wanted=COPIED, now_us=0)) == [Queued(number=1)]
    assert frame.step(Arrived(wanted=PLAIN, now_us=0)) == [Queued(number=2)]
    assert drain(frame) == [
        Dispatch(number=2, count=1, due_us=29_000),
        Replicate(number=1, count=1, due_us=49_000),
        Dispatch(number=1, count=1, due_us=79_000),
        Discard(number=1),
    ]


def test_a_machine_answers_for_both_sides() -> None:
    frame = Frame(schedule=Schedule.FRAME, jobs_max=1, copies_max=10)
    assert frame.step(Arrived(wanted=COPIED, now_us=0)) == [Overloaded(count=1)]
    assert frame.step(Ready()) == []
    assert frame.step(Copied(epoch=7, number=1, messages=b"one")) == []
    assert frame.step(Copied(epoch=7, number=2, messages=b"two")) == []
    assert frame.step(Discarded(epoch=7, number=1)) == []
    assert (frame.overloaded, frame.stored) == (1, 1)
    assert frame.step(Promoted()) == [Recover(runs=(b"two",))]
    assert frame.step(Promoted()) == [Recover(runs=())]


def test_a_dispatch_that_is_first_cancels_the_copy() -> None:
    """Two jobs of a message may be under way at once; the one that is done first decides."""
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=10)
    primary.arrived(COPIED, 0)
    assert not primary.dispatched(1), "no copy has left"
    left = primary.take()
    assert left is not None and left.kind is JobKind.DISPATCH, "the copy was passed over"


def test_a_copy_leaves_once() -> None:
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=10)
    primary.arrived(COPIED, 0)
    primary.replicated(1)
    with pytest.raises(AssertionError, match="the copy has left"):
        primary.replicated(1)
    assert primary.dispatched(1)
    primary.arrived(PLAIN, 0)
    with pytest.raises(AssertionError, match="no copy is needed"):
        primary.replicated(2)


def test_overload_is_counted_and_refused() -> None:
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=3)
    assert [primary.arrived(COPIED, 0), primary.arrived(COPIED, 0), primary.arrived(PLAIN, 0)] == [1, None, 2]
    assert primary.overloaded == 1


def test_fcfs_copies_and_dispatches_in_the_order_of_arrival() -> None:
    frame = Frame(schedule=Schedule.FCFS, jobs_max=10, copies_max=10)
    frame.step(Arrived(wanted=COPIED, now_us=5))
    frame.step(Arrived(wanted=PLAIN, now_us=6))
    assert drain(frame) == [
        Replicate(number=1, count=1, due_us=5),
        Dispatch(number=1, count=1, due_us=5),
        Discard(number=1),
        Replicate(number=2, count=1, due_us=6),
        Dispatch(number=2, count=1, due_us=6),
        Discard(number=2),
    ]


def test_without_a_backup_nothing_is_copied() -> None:
    primary = FramePrimary(schedule=Schedule.FRAME, jobs_max=10)
    primary.arrived(COPIED, 0, has_backup=False)
    one = primary.take()
    assert one is not None and one.kind is JobKind.DISPATCH
    assert primary.take() is None


def test_a_promotion_hands_out_what_was_not_discarded_in_order() -> None:
    backup = FrameBackup(copies_max=10)
    for number in (3, 1, 2):
        backup.copied(7, number, b"%d" % number)
    backup.discarded(7, 2)
    assert backup.recovered() == (b"1", b"3")
    assert backup.recovered() == ()


def test_a_discard_may_overtake_its_copy() -> None:
    backup = FrameBackup(copies_max=10)
    backup.discarded(7, 1)
    backup.copied(7, 1, b"late")
    assert backup.recovered() == ()


def test_copies_of_an_earlier_epoch_say_nothing() -> None:
    backup = FrameBackup(copies_max=10)
    backup.copied(7, 1, b"old")
    backup.copied(8, 1, b"new")
    backup.copied(7, 2, b"stale")
    assert backup.recovered() == (b"new",)


def test_a_full_backup_forgets_the_oldest_and_counts() -> None:
    backup = FrameBackup(copies_max=2)
    for number in (1, 2, 3):
        backup.copied(7, number, b"%d" % number)
    assert backup.recovered() == (b"2", b"3")
    assert backup.dropped == 1


def test_a_run_is_one_job_and_counts_as_its_messages() -> None:
    frame = Frame(schedule=Schedule.FRAME, jobs_max=10, copies_max=10)
    assert frame.step(Arrived(wanted=COPIED, now_us=0, count=3)) == [Queued(number=1)]
    assert frame.step(Arrived(wanted=PLAIN, now_us=0, count=3)) == [Queued(number=4)]
    assert frame.queued == 6
    assert frame.step(Arrived(wanted=PLAIN, now_us=0, count=2)) == [Overloaded(count=2)], "6, 3 and 2 in 10"
    assert frame.overloaded == 2
    assert frame.has_room(1) and not frame.has_room(2)
    assert drain(frame) == [
        Dispatch(number=4, count=3, due_us=29_000),
        Replicate(number=1, count=3, due_us=49_000),
        Dispatch(number=1, count=3, due_us=79_000),
        Discard(number=1),
    ]
    assert frame.queued == 0 and frame.has_room(10)
    assert frame.copies == 3


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
    backup.copied(7, 1, b"1-3", 3)
    backup.copied(7, 4, b"4-5", 2)
    assert len(backup) == 5
    backup.copied(7, 4, b"4-5", 2)
    assert len(backup) == 5, "a copy that comes twice is one"
    backup.copied(7, 6, b"6", 1)
    assert (len(backup), backup.dropped) == (3, 3)
    backup.discarded(7, 4)
    assert len(backup) == 1
    assert backup.recovered() == (b"6",)
    assert len(backup) == 0
