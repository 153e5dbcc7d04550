"""What every replication protocol owes its driver: purity, determinism, order and bounds of effects, and
durability where it is declared. One suite for all machines; `machines.py` lists them."""

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.replication.machines import SUBJECTS, Subject
from conformance.replication.recording import Recording, RecordingView, ReplayedView
from millrace.errors import RemoteError
from millrace.replication.contract import (
    Effect,
    Event,
    InitialState,
    LogView,
    PeerBody,
    PeerMessage,
    Propose,
    Refused,
    RefusedReason,
    Replica,
    ReplicaId,
    Reply,
    RequestId,
    Tick,
)
from unit.replication.cluster import SMALL, Cluster

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(params=SUBJECTS, ids=lambda subject: subject.name)
def subject(request: pytest.FixtureRequest) -> Subject:
    chosen = request.param
    assert isinstance(chosen, Subject)
    return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One life of one replica, from its start to its crash."""

    name: ReplicaId
    state: InitialState
    view: RecordingView
    rng_seed: int
    recording: Recording


class RecordedCluster(Cluster):
    def __init__(self, subject: Subject, seed: int, is_view_eager: bool = True) -> None:
        self.runs: list[Run] = []
        self.rng_seed = 0

        def make(name: ReplicaId, state: InitialState, log: LogView, rng: random.Random) -> Replica:
            view = RecordingView(log)
            recording = Recording(subject.make(name, state, view, rng), state.applied)
            self.runs.append(
                Run(name=name, state=state, view=view, rng_seed=self.rng_seed, recording=recording)
            )
            return recording

        super().__init__(subject.replicas, seed, make_machine=make, is_view_eager=is_view_eager)

    def make_rng(self, name: ReplicaId) -> random.Random:
        self.rng_seed = self.rng.randrange(1 << 32)
        return random.Random(self.rng_seed)


class WatchedCluster(RecordedCluster):
    """Somebody looks at a replica before each of its steps."""

    looks = 0

    def step(self, name: ReplicaId, event: Event) -> list[Effect]:
        status = self.machine(name).status()
        self.machine(name).config_at(status.last)
        self.looks += 1
        return super().step(name, event)


def busy_run(subject: Subject, seed: int, is_view_eager: bool = True) -> RecordedCluster:
    """Work, lost and late messages, a slow disk, crashes, snapshots; healed at the end."""
    cluster = RecordedCluster(subject, seed, is_view_eager)
    cluster.drop_chance, cluster.duplicate_chance, cluster.delay_max, cluster.sync_max = 0.05, 0.1, 12, 15
    cluster.snapshot_every = 6
    rng = random.Random(seed)
    for turn in range(150):
        cluster.run(2)
        for name, node in cluster.nodes.items():
            if node.is_up and rng.random() < 0.3:
                cluster.propose(name, count=rng.randint(1, 3))
                cluster.read(name)
        if turn % 20 == 10:
            name = rng.choice(list(cluster.nodes))
            cluster.crash(name)
            cluster.run(rng.randint(1, 30))
            cluster.start(name)
    cluster.settle()
    return cluster


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_inputs_give_the_same_effects(subject: Subject, seed: int) -> None:
    runs = busy_run(subject, seed).runs
    assert len(runs) > 5, "restarts are part of it"
    for run in runs:
        machine = subject.make(run.name, run.state, ReplayedView(run.view), random.Random(run.rng_seed))
        for event, effects in run.recording.steps:
            assert machine.step(event) == effects


@pytest.mark.parametrize("is_view_eager", [True, False])
def test_effect_lists_keep_their_order_whatever_the_view_shows(subject: Subject, is_view_eager: bool) -> None:
    cluster = busy_run(subject, 3, is_view_eager)
    assert cluster.acknowledged > 20, "the run must have done something"


def test_looking_changes_nothing(subject: Subject) -> None:
    plain, watched = RecordedCluster(subject, 4), WatchedCluster(subject, 4)
    for cluster in (plain, watched):
        leader = cluster.elect()
        cluster.propose(leader, count=3)
        cluster.run(50)
    assert watched.looks > 100
    assert trace_hash(watched) == trace_hash(plain)


def trace_hash(cluster: RecordedCluster) -> str:
    digest = hashlib.sha256()
    for run in cluster.runs:
        for step in run.recording.steps:
            digest.update(repr((run.name, step)).encode())
    return digest.hexdigest()


def test_a_run_is_its_seed_in_every_process(subject: Subject) -> None:
    """No order of a set or of addresses in memory leaks into the effects."""
    code = (
        "from conformance.replication.machines import SUBJECTS\n"
        "from conformance.replication.test_contract import busy_run, trace_hash\n"
        f"subject = next(each for each in SUBJECTS if each.name == {subject.name!r})\n"
        "print(trace_hash(busy_run(subject, 5)))\n"
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


def test_a_stalled_disk_bounds_what_is_owed(subject: Subject) -> None:
    """However long the disk stalls, the writes that wait for it stay within the bound of the options."""
    cluster = RecordedCluster(subject, 6)
    leader = cluster.elect()
    for node in cluster.nodes.values():
        node.is_disk_stalled = True
    answers = []
    for _ in range(3 * SMALL.persists_pending_max):
        request = cluster.propose(leader)
        answers.append(cluster.replies[request])
        cluster.run(1)
    for run in cluster.runs:
        assert run.recording.writes_pending <= SMALL.persists_pending_max + 1
    refused = {answer.reason for answer in answers if isinstance(answer, Refused)}
    assert refused & {RefusedReason.OVERLOADED, RefusedReason.NOT_LEADER}
    cluster.settle()


def test_an_unbounded_flood_of_proposals_is_refused(subject: Subject) -> None:
    cluster = RecordedCluster(subject, 7)
    leader = cluster.elect()
    accepted = refused = 0
    for number in range(500):
        request = RequestId(10_000 + number)
        effects = cluster.machine(leader).step(Propose(request=request, payloads=(b"x" * 100,)))
        outcome = next(effect.outcome for effect in effects if isinstance(effect, Reply))
        refused += isinstance(outcome, Refused)
        accepted += not isinstance(outcome, Refused)
    assert 0 < accepted <= SMALL.uncommitted_entries_max
    assert refused > 400


class Nonsense(PeerBody):
    """A message of no protocol."""


def test_nonsense_closes_the_link_and_changes_nothing(subject: Subject) -> None:
    """Told by comparison with a twin that never heard it."""
    twins = [RecordedCluster(subject, 8), RecordedCluster(subject, 8)]
    for cluster in twins:
        cluster.elect()
    for name, node in twins[0].nodes.items():
        assert node.machine is not None
        before = node.machine.status()
        with pytest.raises(RemoteError):
            node.machine.step(PeerMessage(sender=ReplicaId("stranger"), body=Nonsense()))
        assert node.machine.status() == before
        ticks = [cluster.machine(name).step(Tick()) for cluster in twins]
        assert ticks[0] == ticks[1]


def test_what_was_committed_survives_a_crash_of_all(subject: Subject) -> None:
    """Power loss everywhere at a random moment, again and again; the cluster's checkers compare every entry
    that is applied afterwards with what was applied before."""
    if not subject.is_durable:
        pytest.skip("declares no durability")
    cluster = RecordedCluster(subject, 9)
    cluster.sync_max = 20
    for turn in range(8):
        leader = cluster.elect()
        for _ in range(5):
            cluster.propose(leader, count=2)
            cluster.run(1 + turn % 3)
        acknowledged = cluster.acknowledged_index
        for name in cluster.nodes:
            cluster.crash(name)
        for name in cluster.nodes:
            cluster.start(name)
        cluster.settle()
        assert min(node.applied_index for node in cluster.nodes.values()) >= acknowledged
    assert cluster.acknowledged >= 20
