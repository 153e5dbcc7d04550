"""Leaderless machines, one promise at a time; the simulation tries them together."""

import itertools
import random

import pytest

from millrace.errors import RemoteError
from millrace.replication.contract import EntryKind, PeerMessage, ReplicaId, RequestId
from millrace.replication.leaderless import state as leaderless_state
from millrace.replication.leaderless.machine import LeaderlessOptions
from millrace.replication.leaderless.messages import (
    Await,
    Begin,
    Connected,
    Entries,
    GroupRemoved,
    Level,
    LogEntry,
    Origin,
    Overloaded,
    Overtaken,
    Position,
    Pulse,
    Release,
    RemoveGroup,
    Reorganise,
    Subscribe,
)
from millrace.replication.leaderless.state import (
    FIRST_LIFE,
    ControlState,
    Ranges,
    Stamp,
    make_group,
    mark,
    put_client,
    remove_group,
)
from millrace.replication.leaderless.work_division import IDLE_TICKS, place_of
from unit.replication.leaderless_stage import Stage

# ------------------------------------------------------------------------------------------------ logs


def test_every_node_takes_messages_and_all_get_them_in_the_order_of_each_origin() -> None:
    stage = Stage()
    for turn in range(3):
        for name in "abc":
            stage.publish(name, f"{name}{turn}")
    stage.tick(3)
    for node in stage.nodes.values():
        for origin in "abc":
            _, entries = node.disk.entries(Origin(origin, 1), 1, 99, 1 << 30)
            assert [entry.payload.decode() for entry in entries] == [f"{origin}{turn}" for turn in range(3)]


@pytest.mark.parametrize(
    ("level", "reachable", "is_acknowledged"),
    [
        (Level.LOCAL, "", True),
        (Level.ONE, "", False),
        (Level.ONE, "b", True),
        (Level.MAJORITY, "b", False),
        (Level.MAJORITY, "bc", True),
        (Level.ALL, "bcd", False),
        (Level.ALL, "bcde", True),
    ],
)
def test_a_level_is_a_number_of_disks(level: Level, reachable: str, is_acknowledged: bool) -> None:
    stage = Stage(5, level=level)
    stage.partition("a", "".join(set("bcde") - set(reachable)))
    request = stage.publish("a", "x")
    stage.tick(10)
    assert (request in stage["a"].acknowledged) == is_acknowledged
    stage.heal()
    stage.tick(10)
    assert request in stage["a"].acknowledged


@pytest.mark.parametrize("asked", ["a", "b"])
def test_a_repeat_is_answered_when_the_message_has_reached_its_level(asked: str) -> None:
    """At the node that took it in, and at another one that has it."""
    stage = Stage(level=Level.ALL)
    stage.partition("ab", "c")
    stage.publish("a", "x")
    stage.tick(3)
    assert stage["b"].machine.positions[Origin("a", 1)].entry == 1
    request = RequestId(99)
    stage.step(asked, Await(request=request))
    stage.tick(3)
    assert request not in stage[asked].acknowledged
    stage.heal()
    stage.until(lambda: request in stage[asked].acknowledged)


def test_a_copy_counts_once_it_is_on_disk() -> None:
    stage = Stage(2, level=Level.ALL)
    stage["b"].is_stalled = True
    request = stage.publish("a", "x")
    stage.tick(10)
    assert request not in stage["a"].acknowledged
    stage.unstall("b")
    assert request in stage["a"].acknowledged


def test_nothing_leaves_a_node_before_its_own_disk_has_it() -> None:
    stage = Stage()
    stage["a"].is_stalled = True
    stage.publish("a", "x")
    stage.tick(10)
    assert Origin("a", 1) not in {origin for origin, _ in stage["b"].stored}
    stage.unstall("a")
    assert stage["b"].stored == [(Origin("a", 1), 1)]


def test_both_sides_of_a_partition_work_and_fill_each_other_up() -> None:
    stage = Stage(level=Level.LOCAL)
    stage.partition("a", "bc")
    stage.publish("a", "left")
    stage.publish("b", "right")
    stage.tick(10)
    assert stage["a"].machine.positions != stage["b"].machine.positions
    stage.heal()
    stage.until(lambda: stage["a"].machine.positions == stage["b"].machine.positions)
    assert stage["a"].machine.positions[Origin("b", 1)].offset == 1
    assert stage["b"].machine.positions[Origin("a", 1)].offset == 1


def test_a_message_whose_origin_died_reaches_those_it_had_not_reached() -> None:
    stage = Stage(level=Level.ONE)
    stage.partition("a", "c")
    assert stage.publish("a", "x") in stage["a"].acknowledged
    stage.stop("a")
    stage.until(lambda: (Origin("a", 1), 1) in stage["c"].stored)


def test_a_restart_with_a_whole_log_goes_on_with_it() -> None:
    stage = Stage()
    stage.publish("a", "x")
    stage.start("a", stage.stop("a"))
    stage.tick(3)
    stage.publish("a", "y")
    assert stage["b"].stored == [(Origin("a", 1), 1), (Origin("a", 1), 2)]


def test_a_restart_with_a_lost_log_is_another_origin_and_gets_the_old_one_back() -> None:
    stage = Stage()
    stage.publish("a", "x")
    disk = stage.stop("a")
    disk.lose()
    stage.start("a", disk)
    request = stage.publish("a", "y")
    stage.until(lambda: request in stage["a"].acknowledged)
    stage.until(lambda: stage["a"].machine.positions == stage["b"].machine.positions)
    assert stage["a"].machine.positions[Origin("a", 1)].offset == 1
    assert stage["a"].machine.positions[Origin("a", 2)].offset == 1


def test_a_peer_that_holds_more_of_the_own_log_proves_that_it_was_not_whole() -> None:
    stage = Stage()
    stage.publish("a", "x")
    disk = stage.stop("a")
    disk.lose()
    disk.is_whole = True
    stage.start("a", disk)
    stage.tick(2)
    effects = [effect for _, effects in stage["a"].steps for effect in effects]
    assert any(isinstance(effect, Overtaken) for effect in effects)


def test_more_than_the_bound_is_refused() -> None:
    stage = Stage(options=LeaderlessOptions(unacknowledged_bytes_max=100))
    stage.partition("a", "bc")
    for _ in range(20):
        stage.publish("a", "x" * 20)
    refused = [e for _, effects in stage["a"].steps for e in effects if isinstance(e, Overloaded)]
    assert 10 <= len(refused) < 20
    # Members come and go all the same: they wait for this disk alone.
    assert stage.join("a", "g", "client") in stage["a"].acknowledged
    stage.leave("a", "g", "client")
    assert stage["a"].machine.state.find("g") is None


# ---------------------------------------------------------------------------------------------- groups


def settle_all(stage: Stage, name: str, group: str) -> list[str]:
    spans = stage.take(name, group)
    texts = stage.texts(name, spans)
    if spans:
        stage.settle(name, group, spans)
    return texts


def test_each_message_of_a_group_is_one_node_s_and_the_nodes_share_them() -> None:
    stage = Stage()
    for name in "abc":
        stage.join(name, "g", f"client {name}")
    stage.until(lambda: stage.is_divided("g", "a", "b", "c"))
    stage.publish("a", *(str(number) for number in range(60)))
    stage.tick(3)
    shares = [settle_all(stage, name, "g") for name in "abc"]
    assert sorted(int(text) for share in shares for text in share) == list(range(60))
    assert all(len(share) > 8 for share in shares)


def test_two_groups_get_every_message_each() -> None:
    stage = Stage()
    stage.join("a", "g", "one")
    stage.join("b", "h", "two")
    stage.until(lambda: stage.is_divided("g", "a", "b") and stage.is_divided("h", "a", "b"))
    stage.publish("c", "x", "y")
    stage.tick(2)
    assert settle_all(stage, "a", "g") == settle_all(stage, "b", "h") == ["x", "y"]


def test_messages_wait_for_a_member_that_is_away_and_are_given_wherever_it_comes_back() -> None:
    stage = Stage()
    stage.join("a", "g", "one", members=0)
    stage.publish("b", "x", "y")
    stage.tick(3)
    stage.join("c", "g", "one")
    stage.until(lambda: stage.is_divided("g", "a", "b", "c"))
    assert settle_all(stage, "c", "g") == ["x", "y"]


def test_what_a_member_left_unacknowledged_goes_to_another_node() -> None:
    stage = Stage()
    stage.join("a", "g", "one")
    stage.until(lambda: stage.is_divided("g", "a", "b", "c"))
    stage.publish("a", "x", "y")
    spans = stage.take("a", "g")
    assert stage.texts("a", spans) == ["x", "y"]
    stage.join("b", "g", "two")
    stage.until(
        lambda: (
            stage["b"].machine.work_division.division("g").connected == 1 and stage.is_divided("g", "a", "b")
        )
    )
    stage.tick(20)
    assert stage.take("b", "g") == (), "what is in a member's hands stays there"
    stage.step("a", Release(group="g", spans=spans))
    stage.leave("a", "g", "one", is_last_out=False)
    stage.tick(20)
    assert settle_all(stage, "b", "g") == ["x", "y"]


def test_what_was_acknowledged_is_not_given_again_after_a_reorganisation() -> None:
    stage = Stage()
    stage.join("a", "g", "one")
    stage.until(lambda: stage.is_divided("g", "a", "b", "c"))
    stage.publish("a", *map(str, range(20)))
    assert len(settle_all(stage, "a", "g")) == 20
    stage.leave("a", "g", "one", is_last_out=False)
    stage.join("b", "g", "one")
    stage.tick(20)
    stage.publish("c", "new")
    stage.tick(3)
    assert settle_all(stage, "b", "g") == ["new"]


def test_across_a_partition_each_side_delivers_and_afterwards_one_division_is_left() -> None:
    stage = Stage(level=Level.LOCAL)
    stage.join("a", "g", "one")
    stage.join("b", "g", "two")
    stage.until(lambda: stage.is_divided("g", "a", "b", "c"))
    stage.partition("a", "bc")
    stage.tick(40)
    stage.publish("a", "left")
    stage.publish("c", "right")
    stage.tick(5)
    assert settle_all(stage, "a", "g") == ["left"]
    assert settle_all(stage, "b", "g") == ["right"]
    stage.heal()
    stage.tick(60)
    assert stage.is_divided("g", "a", "b", "c")
    assert (
        stage["a"].machine.work_division.division("g").installed
        == stage["c"].machine.work_division.division("g").installed
    )
    assert settle_all(stage, "a", "g") == settle_all(stage, "b", "g") == []


def test_sessions_at_the_same_time_end_in_one_division() -> None:
    stage = Stage(5)
    for name in "abcde":
        stage.step(name, Reorganise(group="g"))
    stage.deliver()
    stage.tick(40)
    assert stage.is_divided("g", *"abcde")


def test_an_assignment_by_hand_holds_until_a_node_of_it_dies() -> None:
    stage = Stage()
    for name in "abc":
        stage.join(name, "g", f"client {name}")
    stage.tick(20)
    stage.step("a", Reorganise(group="g", order=(ReplicaId("c"),)))
    stage.deliver()
    stage.tick(20)
    stage.publish("a", *map(str, range(10)))
    stage.tick(2)
    assert len(stage.take("c", "g")) == 1
    assert stage.take("a", "g") == stage.take("b", "g") == ()
    stage.stop("c")
    stage.tick(60)
    assert len(settle_all(stage, "a", "g") + settle_all(stage, "b", "g")) == 10


def test_a_message_goes_when_every_group_and_every_hold_lets_it() -> None:
    stage = Stage()
    origin = Origin("c", 1)
    stage.join("a", "g", "one")
    stage.join("b", "h", "two")
    stage.tick(20)
    stage.holds["a"] = ((origin, 1),)
    stage.publish("c", "x", "y")
    stage.tick(3)
    settle_all(stage, "a", "g")
    stage.tick(20)
    assert not any(node.removed for node in stage.nodes.values())
    settle_all(stage, "b", "h")
    stage.tick(20)
    assert stage["b"].removed[origin] == stage["c"].removed[origin] == 2
    assert stage["a"].removed[origin] == 1
    stage.holds.clear()
    stage.tick(5)
    assert stage["a"].removed[origin] == 2


def test_a_message_stays_while_a_member_has_not_received_it() -> None:
    stage = Stage(level=Level.LOCAL)
    stage.join("a", "g", "one")
    stage.tick(20)
    stage.partition("c", "ab")
    stage.publish("a", "x")
    stage.tick(30)
    assert settle_all(stage, "a", "g") == ["x"]
    stage.join("c", "late", "two", from_start=False)
    stage.tick(30)
    assert not stage["a"].removed and not stage["b"].removed
    stage.heal()
    stage.tick(60)
    assert settle_all(stage, "c", "late") == ["x"]
    stage.tick(30)
    assert stage["a"].removed


def test_a_message_stays_while_a_log_is_missing_in_which_a_group_may_stand() -> None:
    """Until a node that lost its disk has its old log again, it does not know the group that it had made, and
    must not remove what that still wants."""
    stage = Stage()
    stage.join("a", "g", "one")
    stage.join("c", "h", "two")
    stage.tick(20)
    stage.publish("c", "x", "y")
    stage.tick(2)
    assert settle_all(stage, "c", "h") == ["x", "y"]
    disk = stage.stop("a")
    disk.lose()
    stage.start("a", disk)
    stage.is_lost = lambda to, body: to == "a" and getattr(body, "origin", None) == Origin("a", 1)
    stage.tick(60)
    assert stage["a"].machine.state.find("h") is not None
    assert stage["a"].machine.state.find("g") is None
    assert not stage["a"].removed
    stage.is_lost = lambda to, body: False
    stage.join("a", "g", "three")
    stage.tick(80)
    assert settle_all(stage, "a", "g") == ["x", "y"]
    stage.until(lambda: bool(stage["a"].removed))


def test_a_node_that_lost_its_disk_gets_groups_and_marks_back_though_their_entries_were_removed() -> None:
    stage = Stage()
    stage.join("a", "g", "one")
    stage.tick(20)
    for turn in range(5):
        stage.publish("a", f"{turn}")
        assert settle_all(stage, "a", "g") == [f"{turn}"]
    stage.until(lambda: len(stage["b"].removed) > 0)
    disk = stage.stop("c")
    disk.lose()
    stage.start("c", disk)
    stage.until(lambda: stage["c"].machine.positions == stage["a"].machine.positions)
    assert stage["c"].machine.state.digest() == stage["a"].machine.state.digest()
    stage.start("c", stage.stop("c"))
    assert stage["c"].machine.state.digest() == stage["a"].machine.state.digest()


def test_a_removed_group_is_gone_everywhere_and_begins_anew() -> None:
    stage = Stage()
    stage.join("a", "g", "one")
    stage.publish("a", "x")
    stage.step("b", RemoveGroup(request=RequestId(99), group="g", wall_us=99))
    stage.deliver()
    stage.tick(5)
    assert all(node.machine.state.find("g") is None for node in stage.nodes.values())
    stage.join("c", "g", "one")
    stage.tick(20)
    assert settle_all(stage, "c", "g") == ["x"]


def test_the_division_of_a_group_that_is_gone_is_forgotten_and_a_new_one_is_agreed_on() -> None:
    stage = Stage()
    for name in "ab":
        stage.join(name, "g", f"client {name}")
    stage.until(lambda: stage.is_divided("g", *"abc"))
    for name in "ab":
        stage.leave(name, "g", f"client {name}")
        stage.tick(4)
    assert stage["c"].machine.state.find("g") is None
    # One node knows it a little longer than the others.
    stage.step("c", Connected(group="g", members=1))
    stage.tick(100)
    stage.step("c", Connected(group="g", members=0))
    stage.tick(IDLE_TICKS - 50)
    assert [len(stage[name].machine.work_division.divisions) for name in "abc"] == [0, 0, 1]
    stage.join("a", "g", "client a", from_start=False)
    stage.publish("b", "after")
    stage.until(lambda: stage.is_divided("g", *"abc"))
    assert stage.texts("a", stage.take("a", "g")) == ["after"]
    stage.settle("a", "g", stage["a"].given)
    stage.leave("a", "g", "client a")
    stage.tick(IDLE_TICKS + 10)
    assert [stage[name].machine.work_division.in_force() for name in "abc"] == [(), (), ()]


def test_a_group_that_lapses_under_a_member_goes_on_where_it_was() -> None:
    """The last client elsewhere, which does not know of the one here, takes the group with it."""
    stage = Stage()
    stage.join("a", "g", "one")
    stage.tick(20)
    stage.publish("c", "x", "y")
    assert settle_all(stage, "a", "g") == ["x", "y"]
    stage.tick(3)
    stage.partition("b", "ac")
    stage.join("b", "g", "two")
    stage.publish("b", "z")
    stage.leave("a", "g", "one")
    stage.heal()
    stage.tick(5)
    removed_group = [e for _, effects in stage["b"].steps for e in effects if isinstance(e, GroupRemoved)]
    assert len(removed_group) == 1
    stage.step(
        "b",
        Subscribe(
            request=RequestId(99),
            group="g",
            client="two",
            filters=("#",),
            wall_us=99,
            saved_position=removed_group[0].saved_position,
        ),
    )
    stage.deliver()
    stage.tick(30)
    assert settle_all(stage, "b", "g") == ["z"]


@pytest.mark.parametrize("told_by", ["entry", "state"])
def test_a_group_that_lapses_while_its_members_here_are_away_says_where_it_was(told_by: str) -> None:
    stage = Stage(2)
    stage.join("b", "g", "durable", members=0)
    stage.publish("b", "x", "y")
    stage.partition("a", "b")
    removal = remove_group("g", Stamp(1000, "a"))
    body: Entries | Begin
    if told_by == "entry":
        entry = LogEntry(kind=EntryKind.CONTROL, count=0, payload=removal)
        body = Entries(origin=Origin("a", 1), first_index=1, base_offset=0, entries=(entry,))
    else:
        elsewhere = ControlState()
        elsewhere.apply(removal)
        body = Begin(origin=Origin("a", 1), begin=Position(1, 0), state=elsewhere.to_bytes({}))
    stage.step("b", PeerMessage(sender=ReplicaId("a"), body=body))
    (removed_group,) = [e for _, effects in stage["b"].steps for e in effects if isinstance(e, GroupRemoved)]
    again = Subscribe(
        request=RequestId(99),
        group="g",
        client="durable",
        filters=("#",),
        wall_us=2000,
        saved_position=removed_group.saved_position,
    )
    stage.step("b", again)
    group = stage["b"].machine.state.find("g")
    assert group is not None and group.low(Origin("b", 1)) == 0


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_only_the_state_of_a_node_told_that_is_gone_reaches_all_others(is_restarted: bool) -> None:
    """Of groups, clients and removals, not of marks alone: else nodes differ about them for ever. The one
    that was told restarts before it has said anything, or it does not."""
    stage = Stage()
    a, b, origin = stage.names[0], stage.names[1], Origin("a", 1)
    for group in ("g", "over"):
        stage.join(a, group, "one")
    stage.tick(3)
    stage.partition("a", "b")
    stage.partition("ab", "c")
    stage.join(b, "made", "two", from_start=False)
    stage.join(b, "g", "three")
    stage.step(b, RemoveGroup(request=RequestId(100), group="over", wall_us=100))
    disk = stage.stop("c")
    disk.lose()
    stage.start("c", disk)
    state = stage[b].machine.to_bytes()
    stage.step("c", PeerMessage(sender=b, body=Begin(origin=origin, begin=Position(1, 0), state=state)))
    if is_restarted:
        stage.start("c", stage.stop("c"))
    disk = stage.stop(b)
    disk.lose()
    stage.start(b, disk)
    stage.heal()
    stage.until(lambda: _is_equal(stage))
    known = stage[a].machine.state
    made, g = known.find("made"), known.find("g")
    assert made is not None and made.client_names() == ["two"]
    assert g is not None and g.client_names() == ["one", "three"]
    assert known.find("over") is None


def test_what_a_damaged_log_said_and_the_saved_state_knows_reaches_all_others() -> None:
    stage = Stage()
    stage.join("b", "g", "one")
    stage.partition("a", "bc")
    stage.join("a", "g", "two")
    disk = stage.stop("a")
    disk.state = stage.lives[0].machine.to_bytes()
    disk.logs[Origin("a", 1)].clear()
    disk.is_whole = False
    stage.start("a", disk)
    stage.heal()
    stage.until(lambda: _is_equal(stage))
    group = stage["b"].machine.state.find("g")
    assert group is not None and group.client_names() == ["one", "two"]


def _is_equal(stage: Stage) -> bool:
    machines = [node.machine for node in stage.nodes.values()]
    return all(
        machine.positions == machines[0].positions and machine.state.digest() == machines[0].state.digest()
        for machine in machines
    )


def test_groups_and_clients_beyond_the_bound_are_refused_and_what_stands_in_a_log_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leaderless_state, "LEADERLESS_GROUPS_MAX", 3)
    monkeypatch.setattr(leaderless_state, "LEADERLESS_CLIENTS_MAX", 2)

    def is_refused(group: str, client: str) -> bool:
        stage.join("a", group, client)
        said = [effect for _, effects in stage["a"].steps[-3:] for effect in effects]
        return any(isinstance(effect, Overloaded) for effect in said)

    stage = Stage(2)
    for number in range(10):
        # Those that are gone do not count.
        assert not is_refused(f"used once {number}", "c")
        stage.leave("a", f"used once {number}", "c")
    assert not any(is_refused(group, "c") for group in "ghi")
    assert is_refused("j", "c")
    assert not is_refused("g", "d")
    assert is_refused("g", "e")
    assert not is_refused("g", "d")
    stage.leave("a", "g", "d")
    assert not is_refused("g", "e")
    payloads = [make_group("k", FIRST_LIFE, ("#",), {})]
    payloads += [put_client("g", Stamp(0, ""), f"{number}", True, Stamp(9, "b")) for number in range(5)]
    entries = tuple(LogEntry(kind=EntryKind.CONTROL, count=0, payload=payload) for payload in payloads)
    body = Entries(origin=Origin("b", 1), first_index=1, base_offset=0, entries=entries)
    stage.step("a", PeerMessage(sender=ReplicaId("b"), body=body))
    assert stage["a"].machine.state.find("k") is not None


def test_a_client_that_left_elsewhere_is_out_although_its_joining_arrives_later() -> None:
    stage = Stage()
    stage.join("b", "g", "other")
    stage.tick(3)
    stage.partition("a", "bc")
    stage.join("a", "g", "one")
    stage.leave("b", "g", "one", is_last_out=False)
    stage.heal()
    stage.tick(20)
    for node in stage.nodes.values():
        group = node.machine.state.find("g")
        assert group is not None and group.client_names() == ["other"]


def test_nonsense_is_refused_and_a_stranger_is_not_heard() -> None:
    stage = Stage()

    class Nonsense:
        pass

    before = stage["a"].machine.to_bytes()
    with pytest.raises(RemoteError):
        stage["a"].machine.step(PeerMessage(sender=ReplicaId("b"), body=Nonsense()))  # type: ignore[arg-type]
    pulse = Pulse(
        boot=9,
        number=1,
        positions=((Origin("z", 1), stage["a"].machine.positions[Origin("a", 1)]),),
        hears=(),
        work_division=(),
    )
    assert stage["a"].machine.step(PeerMessage(sender=ReplicaId("z"), body=pulse)) == []
    assert stage["a"].machine.to_bytes() == before


# ----------------------------------------------------------------------------------------------- parts


def test_ranges_against_a_set() -> None:
    rng = random.Random(3)
    ranges, model = Ranges(), set[int]()
    for _ in range(2_000):
        start = rng.randrange(60)
        end = start + rng.randrange(8)
        if rng.random() < 0.6:
            ranges.add(start, end)
            model |= set(range(start, end))
        else:
            ranges.discard(start, end)
            model -= set(range(start, end))
        assert {x for a, b in ranges for x in range(a, b)} == model
        at = rng.randrange(60)
        assert (at in ranges) == (at in model)
        assert ranges.after(at) == next(x for x in range(at, 100) if x not in model)
        starts = [x for x in sorted(model) if x > at and x - 1 not in model]
        assert ranges.next_start(at) == min(starts, default=1 << 62)
        flat = [x for pair in ranges for x in pair]
        assert flat == sorted(set(flat)), "neither overlapping nor touching"


def test_a_state_does_not_depend_on_the_order_of_operations() -> None:
    a, b = Origin("a", 1), Origin("b", 1)
    first, life = Stamp(0, ""), Stamp(5, "b")
    operations = [
        make_group("g", first, ("x",), {a: Position(3, 3), b: Position(9, 9)}),
        make_group("g", first, ("y",), {a: Position(1, 4)}),
        put_client("g", first, "one", True, Stamp(2, "a")),
        put_client("g", first, "one", False, Stamp(3, "b")),
        mark("g", first, {a: Ranges([(4, 6)])}),
        mark("g", life, {a: Ranges([(7, 8)])}),
    ]
    digests = set()
    for order in itertools.permutations(operations):
        state = ControlState()
        for operation in order:
            state.apply(operation)
        digests.add(state.digest())
    assert len(digests) == 1


def test_the_hash_spreads_messages_over_nodes() -> None:
    counts = [0] * 3
    for offset in range(3_000):
        counts[place_of(Origin("a", 1), offset, 3)] += 1
    assert all(900 < count < 1_100 for count in counts)


# ------------------------------------------------------------------------------- names that are gone


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can reach: ten names that are gone are remembered."""
    for name, value in (
        ("LEADERLESS_GROUPS_MAX", 5),
        ("LEADERLESS_CLIENTS_MAX", 5),
        ("LEADERLESS_GONE_MAX", 10),
        ("_SLACK", 3),
    ):
        monkeypatch.setattr(leaderless_state, name, value)


def come_and_go(state: ControlState, count: int) -> None:
    for number in range(count):
        key = f"g{number}"
        life = state.life_of(key)
        state.apply(make_group(key, life, ("t",), {}))
        state.apply(put_client(key, life, "c", True, state.next_stamp("n1", 0)))
        state.apply(put_client(key, life, "c", False, state.next_stamp("n1", 0)))
        state.apply(remove_group(key, state.next_stamp("n1", 0)))


@pytest.mark.usefixtures("few")
def test_groups_that_went_first_are_forgotten_and_those_that_are_there_are_not() -> None:
    state = ControlState()
    state.apply(make_group("stays", FIRST_LIFE, ("t",), {}))
    come_and_go(state, 200)
    assert state.find("stays") is not None
    names = set(state.groups) - {"", "stays"}
    assert len(names) <= 5 + 10 + 3 and names >= {f"g{number}" for number in range(190, 200)}
    restored = ControlState()
    restored.restore(state.to_bytes({}), {})
    assert restored.digest() == state.digest()


@pytest.mark.usefixtures("few")
def test_a_group_of_a_forgotten_name_is_new_to_nodes_that_remember_it() -> None:
    """They had all that was removed before, and nothing since."""
    forgetful, remembering = ControlState(), ControlState()
    come_and_go(forgetful, 1)
    remembering.merge(forgetful.to_bytes({}))
    assert "g0" in remembering.groups
    come_and_go(forgetful, 200)
    assert "g0" not in forgetful.groups
    life = forgetful.life_of("g0")
    made = make_group("g0", life, ("t",), {})
    joined = put_client("g0", life, "c", True, forgetful.next_stamp("n1", 0))
    for state in (forgetful, remembering):
        state.apply(made)
        state.apply(joined)
        group = state.find("g0")
        assert group is not None and group.client_names() == ["c"]


@pytest.mark.usefixtures("few")
def test_clients_that_left_first_are_forgotten_and_those_that_are_in_are_not() -> None:
    state = ControlState()
    state.apply(make_group("g", FIRST_LIFE, ("t",), {}))
    state.apply(put_client("g", FIRST_LIFE, "stays", True, state.next_stamp("n1", 0)))
    for number in range(200):
        for is_in in (True, False):
            state.apply(put_client("g", FIRST_LIFE, f"c{number}", is_in, state.next_stamp("n1", 0)))
    group = state.find("g")
    assert group is not None and group.client_names() == ["stays"]
    assert len(group.clients) <= 1 + 5 + 10 + 3 and "c199" in group.clients
