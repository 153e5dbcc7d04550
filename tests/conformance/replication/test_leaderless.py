"""What every replication protocol owes its driver, asked of the leaderless machine: purity, determinism,
order and bounds of effects, and durability. Its events and effects are its own, so its cluster is too; the
promises are those of `test_contract.py`."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from millrace.errors import RemoteError
from millrace.lab.sim.leaderless.origin_disk import OriginDisk
from millrace.replication.contract import PeerBody, PeerMessage, ReplicaId, Tick
from millrace.replication.leaderless.machine import LeaderlessOptions
from millrace.replication.leaderless.messages import (
    Acknowledged,
    Given,
    Overloaded,
    PersistLog,
    Placed,
    Publish,
    Settle,
    Stored,
    Take,
)
from unit.replication.leaderless_stage import Stage

ROOT = Path(__file__).resolve().parents[3]
EFFECTS_PER_STEP_MAX = 2000


def busy_run(seed: int, *, is_watched: bool = False) -> Stage:
    """Work at every node, groups, partitions, slow disks, restarts; healed at the end."""
    stage = Stage(seed=seed)
    rng = random.Random(seed)
    for turn in range(120):
        name = rng.choice(list(stage.nodes))
        match rng.randrange(8):
            case 0 | 1 | 2:
                stage.publish(name, *(f"{turn}.{number}" for number in range(rng.randint(1, 3))))
            case 3:
                stage.join(name, rng.choice("gh"), f"client {name}")
            case 4:
                stage.step(name, Take(group="g", count=3))
                if stage[name].given:
                    stage.step(name, Settle(group="g", spans=stage[name].given))
                    stage.deliver()
            case 5:
                others = "".join(set("abc") - {name})
                stage.partition(name, others)
            case 6:
                stage.heal()
            case 7:
                node = stage[name]
                if node.is_stalled:
                    stage.unstall(name)
                elif rng.random() < 0.5:
                    node.is_stalled = True
                else:
                    stage.start(name, stage.stop(name))
        if is_watched:
            for watched in stage.nodes.values():
                watched.machine.to_bytes()
                assert watched.machine.positions
        stage.tick(rng.randint(0, 3))
    stage.heal()
    for name in list(stage.nodes):
        stage.unstall(name)
    stage.tick(60)
    return stage


def trace_hash(stage: Stage) -> str:
    digest = hashlib.sha256()
    for node in stage.lives:
        for step in node.steps:
            digest.update(repr((node.name, step)).encode())
    return digest.hexdigest()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_effect_lists_keep_their_order(seed: int) -> None:
    """One write at most, numbered one by one; what feeds clients never waits for it; each index is stored
    once and in order; every request is answered once."""
    stage = busy_run(seed)
    assert len(stage.lives) > 3, "restarts are part of it"
    for node in stage.lives:
        number = 0
        stored: dict[object, int] = {}
        answered: set[int] = set()
        for event, effects in node.steps:
            assert len(effects) <= EFFECTS_PER_STEP_MAX
            writes = [place for place, effect in enumerate(effects) if isinstance(effect, PersistLog)]
            assert len(writes) <= 1
            for place in writes:
                write = effects[place]
                assert isinstance(write, PersistLog)
                number += 1
                assert write.number == number
                waiting = effects[place + 1 :]
                kinds = (Stored, Placed, Acknowledged, Given, Overloaded)
                assert not any(isinstance(effect, kinds) for effect in waiting)
            for effect in effects:
                if isinstance(effect, Stored):
                    assert effect.index > stored.get(effect.origin, 0)
                    stored[effect.origin] = effect.index
                if isinstance(effect, Acknowledged):
                    assert effect.request not in answered, "answered twice"
                    answered.add(effect.request)
            if isinstance(event, Publish):
                assert sum(isinstance(effect, Placed | Overloaded) for effect in effects) == 1


def test_looking_changes_nothing() -> None:
    assert trace_hash(busy_run(4)) == trace_hash(busy_run(4, is_watched=True))


def test_a_run_is_its_seed_in_every_process() -> None:
    """No order of a set or of addresses in memory leaks into the effects."""
    code = (
        "from conformance.replication.test_leaderless import busy_run, trace_hash\n"
        "print(trace_hash(busy_run(5)))\n"
    )
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": path, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == 64


def test_a_stalled_disk_bounds_what_is_owed() -> None:
    options = LeaderlessOptions(persists_pending_max=8, pulse_ticks=1)
    stage = Stage(options=options)
    for node in stage.nodes.values():
        node.is_stalled = True
    for turn in range(40):
        for name in "abc":
            stage.publish(name, str(turn))
        stage.tick()
    for node in stage.nodes.values():
        assert node.machine.writes_pending <= 8
        refused = [e for _, effects in node.steps for e in effects if isinstance(e, Overloaded)]
        assert len(refused) >= 30
    for name in "abc":
        stage.unstall(name)
    stage.tick(30)
    assert len({str(node.machine.positions) for node in stage.nodes.values()}) == 1


class Nonsense(PeerBody):
    """A message of no protocol."""


def test_nonsense_closes_the_link_and_changes_nothing() -> None:
    """Told by comparison with a twin that never heard it."""
    twins = [Stage(seed=8), Stage(seed=8)]
    for name in "abc":
        machine = twins[0][name].machine
        before = machine.to_bytes()
        with pytest.raises(RemoteError):
            machine.step(PeerMessage(sender=ReplicaId("b" if name == "a" else "a"), body=Nonsense()))
        assert machine.to_bytes() == before
        ticks = [twin[name].machine.step(Tick()) for twin in twins]
        assert ticks[0] == ticks[1]


def test_what_was_acknowledged_survives_a_crash_of_all() -> None:
    """Power loss everywhere with writes under way, again and again."""
    stage = Stage()
    acknowledged: set[str] = set()
    for turn in range(6):
        requests = {}
        for name in "abc":
            text = f"{turn}.{name}"
            requests[name, stage.publish(name, text)] = text
        stage["b"].is_stalled = True
        for name in "abc":
            text = f"{turn}.{name}.late"
            requests[name, stage.publish(name, text)] = text
        stage.tick(2)
        acknowledged |= {text for (name, r), text in requests.items() if r in stage[name].acknowledged}
        disks: dict[str, OriginDisk] = {name: stage.stop(name) for name in "abc"}
        for name, disk in disks.items():
            stage.start(name, disk)
        stage.tick(20)
        for node in stage.nodes.values():
            held = {entry.payload.decode() for log in node.disk.logs.values() for entry in log}
            assert acknowledged <= held
    assert len(acknowledged) >= 18
