"""The machines that must pass the conformance suite, and what each of them declares."""

import random
from dataclasses import dataclass

from millrace.replication.contract import InitialState, LogView, Replica, ReplicaId
from millrace.replication.pair.machine import PrimaryBackup
from millrace.replication.pair.options import PairOptions
from millrace.replication.raft.machine import Raft
from unit.replication.cluster import SMALL, MakeMachine


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    name: str
    make: MakeMachine
    is_durable: bool
    """What it committed survives a crash of every replica at once."""
    replicas: int = 3


def make_raft(name: ReplicaId, state: InitialState, log: LogView, rng: random.Random) -> Replica:
    return Raft(name, state=state, log=log, options=SMALL, rng=rng)


def make_pair(name: ReplicaId, state: InitialState, log: LogView, rng: random.Random) -> Replica:
    options = PairOptions(check_ticks=12, raft=SMALL)
    return PrimaryBackup(name, state=state, log=log, options=options, rng=rng)


SUBJECTS = (
    Subject(name="quorum", make=make_raft, is_durable=True),
    Subject(name="primary-backup", make=make_pair, is_durable=True, replicas=2),
)
