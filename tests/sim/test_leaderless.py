"""Whole runs of the leaderless simulation: clean without a bug, caught with one, the same each time."""

import random
from dataclasses import replace
from typing import Any

import pytest

from millrace.lab.sim.campaign import replay
from millrace.lab.sim.leaderless.plan import make_leaderless_plan
from millrace.lab.sim.leaderless.world import LeaderlessWorld, run_leaderless_seed
from millrace.lab.sim.mutations import search
from millrace.lab.sim.planted.leaderless import LEADERLESS_BUGS
from millrace.lab.sim.violation import Violation
from millrace.replication.leaderless.messages import Acknowledged, Level

BATCH = 5
BATCHES = 6
# Each breaks another promise, and each shows within a few seeds, the last one within more of them.
CHEAP = (
    "ack_before_level",
    "vector_rewound",
    "mark_lost",
    "in_flight_not_handed_over",
    "removal_below_one_mark",
    "incarnation_reused",
    "alone_before_heard",
    "returned_unasked",
    pytest.param("lease_ignored", marks=pytest.mark.long),
)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_seeds_are_clean(batch: int) -> None:
    """No promise is broken, and every run published, delivered and acknowledged something."""
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        result = run_leaderless_seed(seed)
        assert result.is_clean, (
            f"{result.rule}: {result.detail}; replay: millrace sim --mode leaderless --seed {seed} --trace"
        )
        assert result.operations > 0
        assert result.reads > 0


@pytest.mark.parametrize("name", CHEAP)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = search(name, seeds_max=100, mode="leaderless")
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LEADERLESS_BUGS if name not in (*CHEAP, "lease_ignored")])
def test_every_planted_bug_is_caught(name: str) -> None:
    caught = search(name, mode="leaderless")
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


def test_a_run_is_its_seed() -> None:
    hashes = {replay(4, frozenset(), mode="leaderless").trace_hash for _ in range(2)}
    assert len(hashes) == 1
    assert replay(5, frozenset(), mode="leaderless").trace_hash not in hashes


@pytest.mark.parametrize("is_in_order", [True, False])
def test_a_client_is_where_it_asked_last_to_be(is_in_order: bool) -> None:
    """A client that goes out at one node while another's disk is still busy with its coming in is out, in
    whatever order it hears the two answers; a node that had it otherwise would be caught."""
    world = LeaderlessWorld(replace(make_leaderless_plan(0), hosts=2, drifts=(1.0, 1.0)), None)
    for host in world.host_list:
        world.restart(host)
    one, other = world.host_list
    consumer = world.make_consumer("churn.0", "churn", random.Random(0), from_start=True)
    answers: dict[str, Any] = {}
    arrival_number = world.checks.asks("churn", consumer.name)
    one.subscribe(consumer, lambda answer: answers.__setitem__("in", answer))
    world.clock.run(world.clock.now_us + 1, None)
    went = world.checks.asks("churn", consumer.name)
    other.unsubscribe(consumer, lambda answer: answers.__setitem__("out", answer))
    world.require("both are answered, and known everywhere", lambda: len(answers) == 2 and _is_equal(world))
    assert all(isinstance(answer, Acknowledged) for answer in answers.values())

    told = [(arrival_number, True, answers["in"]), (went, False, answers["out"])]
    for asked, is_in, answer in told if is_in_order else reversed(told):
        world.checks.told("churn", consumer.name, asked, is_in, answer)
    world.checks.at_the_end()

    world.checks.told("churn", consumer.name, went, True, answers["out"])
    with pytest.raises(Violation, match=r"churn\.0 in churn: False"):
        world.checks.at_the_end()


def test_where_a_group_begins_is_demanded_until_the_last_disk_that_has_it_is_lost() -> None:
    """Its maker's disk is lost while the other node, which knows the group, is down. A member comes back to
    the maker, which makes it again behind a message: that is left out once the other disk is gone too."""
    plan = replace(make_leaderless_plan(0), hosts=2, drifts=(1.0, 1.0), has_disks=True, level=Level.LOCAL)
    world = LeaderlessWorld(plan, None)
    for host in world.host_list:
        world.restart(host)
    maker, other = world.host_list
    world.add_late_group("late", maker)
    world.require("both know the group", lambda: other.find_group("late") is not None)
    other.crash("fault")
    world.lose_disk(maker)
    world.restart(maker)
    maker.publish(((1, b"x"),), lambda answer: None)
    world.run_ticks(2)
    world.consumers[0].connect(maker)
    world.require("it is made again", lambda: maker.find_group("late") is not None)

    with pytest.raises(Violation, match=r"late never saw 0 of Origin\(node='n0', incarnation=2\)"):
        world.checks.at_the_end()
    world.lose_disk(other)
    world.checks.at_the_end()


def test_a_group_that_was_refused_begins_where_it_is_made() -> None:
    """A node whose disk is behind refuses a member, and so makes no group. The member asks again, as one of a
    node does, and the group begins behind what came meanwhile: only what comes after that is demanded."""
    plan = make_leaderless_plan(0)
    plan = replace(plan, hosts=1, drifts=(1.0,), has_disks=True, level=Level.LOCAL, sync_us_max=1_000)
    world = LeaderlessWorld(replace(plan, options=replace(plan.options, persists_pending_max=1)), None)
    (host,) = world.host_list
    world.restart(host)
    host.publish(((1, b"before"),), lambda answer: None)
    world.add_late_group("late", host)
    assert host.machine is not None
    assert host.machine.writes_pending == 1, "the group was made, and not refused"
    world.require("it is made", lambda: host.find_group("late") is not None)
    world.consumers[0].leave()
    world.checks.at_the_end()

    host.publish(((1, b"after"),), lambda answer: None)
    world.run_ticks(2)
    with pytest.raises(Violation, match="late never saw 1 of"):
        world.checks.at_the_end()


def test_where_a_group_begins_is_not_demanded_of_a_node_that_fell_before_it_had_said_yes() -> None:
    """The member moved to another node, which knew of no group and made it too, behind a message."""
    plan = replace(make_leaderless_plan(0), hosts=2, drifts=(1.0, 1.0), has_disks=True, level=Level.LOCAL)
    world = LeaderlessWorld(replace(plan, sync_us_max=1_000), None)
    for host in world.host_list:
        world.restart(host)
    world.network.split(["n0"], ["n1"])
    maker, other = world.host_list
    world.add_late_group("late", maker)
    maker.pause()
    (consumer,) = world.consumers
    consumer.leave()
    other.publish(((1, b"x"),), lambda answer: None)
    world.run_ticks(2)
    consumer.connect(other)
    world.require("it is made", lambda: other.find_group("late") is not None)
    consumer.leave()
    maker.crash("fault")
    assert maker.find_group("late") is None, "the disk had it"
    world.network.heal()
    world.restart(maker)
    world.require("both have everything", world.checks.is_converged)
    world.checks.at_the_end()


def _is_equal(world: LeaderlessWorld) -> bool:
    return world.checks.is_converged() and all(
        host.machine is not None and host.machine.state.find("churn") for host in world.host_list
    )
