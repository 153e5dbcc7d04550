"""Whole nodes on a simulated loop, network and disk: clean runs, planted bugs, the same run in every process.

The runs here are chosen by what they do, not by their seeds, which mean something else after every change.
"""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from millrace.lab.sim.campaign import replay
from millrace.lab.sim.cluster.checks import Logs, check_received
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.ledger import Batch, Ledger, payload_of
from millrace.lab.sim.cluster.mqtt_clients import History, Sent
from millrace.lab.sim.cluster.plan import CHANGES, FAULTS, WORK, ClusterPlan, make_cluster_plan
from millrace.lab.sim.cluster.world import ClusterWorld, run_cluster_plan
from millrace.lab.sim.mutations import search
from millrace.lab.sim.planted.bug import planted
from millrace.lab.sim.planted.nodes import NODE_BUGS
from millrace.lab.sim.verdict import RunResult
from millrace.lab.sim.violation import Violation


def plan(nodes: int, *, seed: int = 1, **more: object) -> ClusterPlan:
    """A short run that does what is named and nothing else."""
    small = dataclasses.replace(
        make_cluster_plan(seed),
        nodes=nodes,
        spares=0,
        work=(),
        faults=(),
        changes=(),
        is_wandering=True,
        messages=20,
        fault_s=10,
        forming_fault_s=0,
        is_power_lost_at_end=False,
        segment_bytes=16_384,
        free_bytes_min=0,
    )
    return dataclasses.replace(small, **more)  # type: ignore[arg-type]


def run(one: ClusterPlan) -> RunResult:
    result = run_cluster_plan(one)
    assert result.is_clean, f"{result.rule}: {result.detail}; of {one}"
    assert result.operations > 0
    return result


def test_without_a_fault_everything_comes_exactly_once() -> None:
    run(plan(3, is_wandering=False, work=("shared", "wills", "retained", "groups", "short", "staging")))


@pytest.mark.parametrize(
    ("nodes", "work", "faults"),
    [
        (1, ("retained",), ("crash", "power loss", "power loss in a write", "full disk", "failing sync")),
        (2, ("groups",), ("crash", "split", "pause")),
        (3, ("wills",), ("crash", "broken connections", "clients cut off")),
        (3, ("shared",), ("stop", "one way", "slow disk")),
        (3, ("retained",), ("damage", "power loss")),
        (3, ("staging",), ("crash", "split", "power loss", "damage")),
        (5, (), ("crash", "split", "power loss of all")),
    ],
)
def test_what_was_promised_holds_under_faults(
    nodes: int, work: tuple[str, ...], faults: tuple[str, ...]
) -> None:
    """Everything acknowledged is in equal logs and came to whoever it was for, whatever happened."""
    result = run(plan(nodes, seed=2, work=work, faults=faults))
    assert result.faults > 0


def test_a_power_loss_of_everything_keeps_everything() -> None:
    run(
        plan(
            3,
            seed=3,
            work=("retained", "groups"),
            is_power_lost_at_end=True,
            forming_fault_s=2,
            faults=FAULTS,
        )
    )


@pytest.mark.parametrize("changes", [("join", "drain"), ("remove", "replace")])
def test_members_come_and_go_while_clients_work(changes: tuple[str, ...]) -> None:
    result = run(plan(3, seed=4, spares=1, changes=changes, fault_s=20, work=("short",)))
    assert result.faults > 0, "the operator changed something"


def test_a_node_that_was_away_for_long_gets_a_snapshot() -> None:
    """What it lacks is trimmed everywhere: it goes on from the state, and has the same from there on."""
    one = plan(3, is_wandering=False, work=("short",), messages=60, segment_bytes=2_048)
    world = ClusterWorld(one, None)
    *here, away = world.hosts
    for host in world.hosts:
        host.start()
    world.until(
        60, lambda: world.is_quiet() and all(w.is_ready() for w in world.work), "ready", world.describe
    )

    def first_index(host: Host) -> int:
        assert host.server is not None
        engine = host.server.engine
        (number,) = engine.definitions.table.streams["short"].shards
        return int(engine.shards[number].group.replica_log.log.first_index)

    away.is_wanted = False
    away.crash(is_power_loss=False)
    for work in world.work:
        work.begin()
    world.until(120, lambda: all(first_index(host) > 20 for host in here), "trimming", world.describe)
    away.start()
    world.until(
        60, lambda: all(w.is_answered() for w in world.work) and world.is_quiet(), "end", world.describe
    )
    assert first_index(away) > 20, "its log begins behind the snapshot"
    logs = Logs(world.members)
    for work in world.work:
        work.check(logs)
    world.end()


def test_streams_change_while_clients_publish() -> None:
    run(plan(3, seed=5, changes=("stream", "shards"), work=("groups",)))


def test_plans_cover_every_size_work_fault_and_change() -> None:
    plans = [make_cluster_plan(seed) for seed in range(300)]
    assert {one.nodes for one in plans} == {1, 2, 3, 5}
    assert 0.05 < sum(one.is_calm for one in plans) / len(plans) < 0.25
    assert set(WORK) == {name for one in plans for name in one.work}
    assert set(CHANGES) == {name for one in plans for name in one.changes}
    assert set(FAULTS) <= {name for one in plans for name in one.faults}


# --------------------------------------------------------------------------------------- planted bugs

# Each shows in a run without a fault.
CHEAP = {
    "will_fired_twice": "wills",
    "retained_at_one_node": "retained",
    "fan_out_before_commit": "short",
    "settled_half_way": "staging",
}


@pytest.mark.parametrize("name", CHEAP)
def test_a_bug_planted_in_the_nodes_is_caught(name: str) -> None:
    one = plan(3, is_wandering=False, work=(CHEAP[name],))
    with planted(NODE_BUGS, frozenset({name})):
        assert not run_cluster_plan(one).is_clean, f"{name} was not noticed"
    assert run_cluster_plan(one).is_clean, "without the bug the run is clean"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NODE_BUGS if name not in CHEAP])
def test_every_bug_planted_in_the_nodes_is_caught(name: str) -> None:
    caught = search(name, mode="cluster")
    assert caught.is_caught, f"{name} survived {caught.seeds} seeds"


def test_a_message_doubled_lost_or_out_of_order_is_seen() -> None:
    history = History()
    for number in range(3):
        sent = Sent("p", number, "q2/p", 2, is_acknowledged=True)
        history.sent[b"%d" % number] = sent
    for received, rule in (
        ([b"0", b"1", b"1", b"2"], "exactly once"),
        ([b"0", b"2"], "delivery"),
        ([b"1", b"0", b"2"], "order"),
    ):
        history.received["d"] = received
        with pytest.raises(Violation) as caught:
            check_received(history, "d", "q2/#", 2)
        assert caught.value.rule == rule
    history.received["d"] = [b"0", b"1", b"2"]
    check_received(history, "d", "q2/#", 2)


BATCH: Batch = ("w", 3)


def rows(attempt: str, count: int, batch: Batch = BATCH) -> list[bytes]:
    return [payload_of(batch, attempt, number, 0) for number in range(count)]


@pytest.mark.parametrize(
    ("visible", "rule"),
    [
        ({1: [*rows("a", 2), *rows("a", 1)]}, "staged once"),
        ({1: rows("a", 2), 2: rows("a", 2)}, "staged once"),
        ({1: rows("a", 1)}, "staged whole"),
        ({}, "staged whole"),
        ({1: rows("a", 2), 2: rows("b", 2)}, "staged winners"),
        ({1: rows("lost", 2)}, "staged winners"),
        ({1: [*rows("a", 2), *rows("early", 1, ("w", 2))]}, "staged order"),
    ],
)
def test_staged_rows_doubled_lost_or_of_a_loser_are_seen(visible: dict[int, list[bytes]], rule: str) -> None:
    ledger = Ledger()
    for attempt in ("a", "b"):
        ledger.wish(BATCH, {attempt: rows(attempt, 2)})
    ledger.wish(("w", 2), {"early": rows("early", 1, ("w", 2))})
    ledger.answered(BATCH, is_repeat=False, last=-1)
    for winner in ("a", "b"):
        ledger.check({1: rows(winner, 2)}, is_whole=True)
    with pytest.raises(Violation) as caught:
        ledger.check(visible, is_whole=True)
    assert caught.value.rule == rule


def test_a_batch_that_is_decided_again_is_seen() -> None:
    ledger = Ledger()
    ledger.answered(BATCH, is_repeat=True, last=3)
    ledger.answered(BATCH, is_repeat=False, last=2)
    for batch in (BATCH, ("w", 2)):
        with pytest.raises(Violation, match="decided again"):
            ledger.answered(batch, is_repeat=False, last=ledger.last_decided("w"))


# ---------------------------------------------------------------------------------------- determinism

_HASHES = """
import json
from millrace.lab.sim.campaign import replay
print(json.dumps([replay(seed, frozenset(), mode="cluster").trace_hash for seed in (4, 7)]))
"""


def hashes(hash_seed: str) -> list[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", _HASHES]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    ours, theirs = hashes("1"), hashes("4242")
    assert ours == theirs
    assert len(set(ours)) == len(ours), "different seeds give different traces"


def test_a_trace_tells_what_nodes_and_clients_did() -> None:
    lines: list[str] = []
    replay(7, frozenset(), lines.append, mode="cluster")
    assert any("n1        * serves" in line for line in lines)
    assert any("is acknowledged" in line for line in lines)
    assert any("d2" in line and "received" in line for line in lines)
