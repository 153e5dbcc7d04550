"""Who takes work when nodes are slow, have not met yet, were cut off without knowing it, or meet again."""

from collections import Counter
from contextlib import AbstractContextManager

from millrace.lab.sim.planted.bug import planted
from millrace.lab.sim.planted.leaderless import LEADERLESS_BUGS
from millrace.replication.contract import LinkClosed, LinkOpened, ReplicaId, RequestId, Tick
from millrace.replication.leaderless.machine import LeaderlessOptions
from millrace.replication.leaderless.messages import Connected, Level, Origin, Slept, Subscribe
from unit.replication.leaderless_stage import OPTIONS, Stage

LINKS = LeaderlessOptions(pulse_ticks=1, silent_ticks=60, closed_ticks=8)


def shared(options: LeaderlessOptions = OPTIONS) -> Stage:
    """Two nodes with a member each, and one division."""
    stage = Stage(2, level=Level.LOCAL, options=options)
    for name in "ab":
        stage.join(name, "g", f"client {name}")
    stage.tick(20)
    assert stage.is_divided("g", "a", "b")
    return stage


def with_bugs(*names: str) -> AbstractContextManager[None]:
    return planted(LEADERLESS_BUGS, frozenset(names))


def taken(stage: Stage, *names: str) -> Counter[str]:
    return Counter(text for name in names for text in stage.texts(name, stage.take(name, "g")))


def only_a_ticks(stage: Stage, count: int) -> None:
    for _ in range(count):
        stage.step("a", Tick())
        stage.deliver()


def before_they_met() -> Counter[str]:
    stage = Stage(2, level=Level.LOCAL, ticks=0)
    stage.partition("a", "b")
    for name in "ab":
        stage.join(name, "g", f"client {name}")
    stage.publish("a", *map(str, range(20)))
    stage.tick(OPTIONS.silent_ticks - 1)
    got = taken(stage, "a", "b")
    stage.heal()
    for _ in range(30):
        stage.tick()
        got += taken(stage, "a", "b")
    return got


def test_nodes_that_have_not_met_wait_for_each_other_and_give_each_message_once() -> None:
    assert before_they_met() == Counter(map(str, range(20)))
    with with_bugs("alone_before_heard"):
        assert before_they_met().total() > 20


def test_a_node_that_nobody_answers_goes_on_alone() -> None:
    stage = Stage(2, level=Level.LOCAL, ticks=0)
    stage.partition("a", "b")
    stage.join("a", "g", "one")
    stage.publish("a", "x", "y")
    stage.tick(OPTIONS.silent_ticks + 5)
    assert taken(stage, "a") == Counter("xy")


def asleep_while_left_out() -> tuple[Counter[str], Counter[str]]:
    """What the sleeper takes when it wakes up, and what both took in the end."""
    stage = shared()
    stage.publish("a", *map(str, range(20)))
    stage.partition("a", "b")
    only_a_ticks(stage, 20)
    first = taken(stage, "a")
    stage.heal()
    stage.step("b", Slept(ticks=20))
    woken = taken(stage, "b")
    stage.tick(40)
    return woken, first + woken + taken(stage, "a", "b")


def test_a_node_that_stood_still_takes_nothing_before_it_has_heard_from_the_others() -> None:
    woken, all_of_them = asleep_while_left_out()
    assert not woken
    assert all_of_them == Counter(map(str, range(20)))
    with with_bugs("lease_ignored"):
        woken, _ = asleep_while_left_out()
    assert woken


def test_a_short_sleep_ends_with_the_next_pulses_and_the_division_stands() -> None:
    stage = shared()
    generation = stage["a"].machine.work_division.division("g").promised
    stage.publish("a", *map(str, range(20)))
    stage.step("b", Slept(ticks=OPTIONS.silent_ticks))
    assert not taken(stage, "b")
    stage.tick(3)
    assert taken(stage, "a", "b") == Counter(map(str, range(20)))
    assert stage["a"].machine.work_division.division("g").promised == generation


def after_a_partition() -> Counter[str]:
    """What was taken of messages that were published once both sides heard each other again."""
    stage = shared()
    stage.partition("a", "b")
    stage.tick(30)
    stage.heal()
    got: Counter[str] = Counter()
    for number in range(30):
        stage.tick()
        is_talking = all(stage[n].machine.work_division._contacts.live for n in "ab")
        if is_talking:
            stage.publish("a", str(number))
        got += taken(stage, "a", "b")
    return got


def test_two_that_meet_again_stop_at_once_and_divide_anew() -> None:
    got = after_a_partition()
    assert len(got) > 20 and set(got.values()) == {1}
    with with_bugs("other_division_unnoticed", "returned_unasked"):
        assert 2 in after_a_partition().values()


def test_a_link_that_is_made_again_soon_changes_nothing() -> None:
    stage = shared(options=LINKS)
    generation = stage["a"].machine.work_division.division("g").promised
    _break(stage)
    stage.tick(LINKS.closed_ticks - 1)
    stage.publish("a", *map(str, range(20)))
    assert not taken(stage, "a", "b"), "the other may leave this node out any moment now"
    stage.heal()
    for one, other in ("ab", "ba"):
        stage.step(one, LinkOpened(peer=ReplicaId(other)))
    stage.deliver()
    stage.tick(3)
    assert taken(stage, "a", "b") == Counter(map(str, range(20)))
    assert stage["a"].machine.work_division.division("g").promised == generation


def test_a_node_without_a_link_is_left_out_before_it_has_been_silent_for_long() -> None:
    stage = shared(options=LINKS)
    _break(stage)
    stage.tick(LINKS.closed_ticks + 5)
    stage.publish("a", *map(str, range(20)))
    assert taken(stage, "a") == Counter(map(str, range(20)))


def _break(stage: Stage) -> None:
    stage.partition("a", "b")
    for one, other in ("ab", "ba"):
        stage.step(one, LinkClosed(peer=ReplicaId(other)))


def test_what_was_removed_before_a_group_was_known_is_done_for_it_everywhere() -> None:
    """Otherwise whoever still has it would wait for the group for ever."""
    stage = shared()
    origin = Origin("a", 1)
    stage.holds["b"] = ((origin, 0),)
    stage.publish("a", "x", "y")
    stage.tick(3)
    for name in "ab":
        spans = stage.take(name, "g")
        if spans:
            stage.settle(name, "g", spans)
    stage.until(lambda: stage["a"].removed.get(origin) == 2)
    stage.join("a", "late", "one")
    stage.tick(20)
    assert stage.take("a", "late") == ()
    stage.deliver()
    group = stage["b"].machine.state.find("late")
    assert group is not None and stage["b"].machine.low(group, origin) == 2


def test_a_group_that_turns_out_to_begin_earlier_is_done_with_what_was_removed_there_too() -> None:
    """Two nodes make a group apart from each other, one of them later in a log of which the beginning is gone
    where the members are."""
    stage = shared()
    origin = Origin("a", 1)
    stage.holds["b"] = ((origin, 0),)
    stage.publish("a", "x", "y")
    stage.tick(3)
    for name in "ab":
        spans = stage.take(name, "g")
        if spans:
            stage.settle(name, "g", spans)
    stage.until(lambda: stage["a"].removed.get(origin) == 2)
    stage.partition("a", "b")
    for name, saved_position in (("a", b'[["a",1,1,[]]]'), ("b", b'[["a",1,0,[]]]')):
        join = Subscribe(
            request=RequestId(1_000),
            group="late",
            client="one",
            filters=("#",),
            wall_us=1,
            saved_position=saved_position,
        )
        stage.step(name, join)
    stage.step("a", Connected(group="late", members=1))
    stage.until(lambda: stage.is_divided("late", "a"))

    def low(name: str) -> int:
        assert stage.take("a", "late") == ()
        group = stage[name].machine.state.find("late")
        return 0 if group is None else group.low(origin)

    stage.until(lambda: low("a") == 2)
    stage.heal()
    stage.until(lambda: low("b") == 2)


def share_of_one_that_restarted() -> int:
    """How much of twenty messages the other node takes when one comes back at once, without its member."""
    stage = shared()
    stage.publish("a", *map(str, range(20)))
    stage.take("b", "g")
    stage.start("b", stage.stop("b"))
    got: Counter[str] = Counter()
    for _ in range(30):
        stage.tick()
        got += taken(stage, "a")
    assert got.total() == len(got)
    return len(got)


def test_what_a_node_had_in_hand_when_it_restarted_goes_to_others() -> None:
    assert share_of_one_that_restarted() == 20
    with with_bugs("other_division_unnoticed"):
        assert share_of_one_that_restarted() < 20


def test_where_only_one_node_reaches_both_others_every_message_is_given_all_the_same() -> None:
    """Divisions follow each other there, and each of them lasts for a while."""
    stage = Stage(3, level=Level.LOCAL, options=LeaderlessOptions())
    for name in "ac":
        stage.join(name, "g", f"client {name}")
    stage.tick(40)
    stage.partition("a", "c")
    got: set[str] = set()
    for turn in range(200):
        if turn < 100:
            stage.publish("abc"[turn % 3], str(turn))
        stage.tick()
        for name in "ac":
            spans = stage.take(name, "g")
            got.update(stage.texts(name, spans))
            stage.settle(name, "g", spans)
    assert got == set(map(str, range(100)))
