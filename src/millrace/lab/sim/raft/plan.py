"""What a seed decides before the world starts: sizes, numbers of the protocol, kinds and rate of faults.

Small numbers on purpose: a window of two appends, snapshots every dozen entries and pieces of 32 bytes
reach within a second what a real cluster meets in a year. About one seed in eight is calm (no fault at all),
because a quiet cluster must also be right, and because a bug that faults would hide shows there.
"""

import random
from dataclasses import dataclass

from millrace.lab.sim.surroundings.network import Weather
from millrace.replication.raft.options import RaftOptions

TICK_US = 50_000

NETWORK_FAULTS = (
    "split",
    "one way",
    "bridge",
    "isolate leader",
    "deafen leader",
    "storm",
    "strand tail",
    "late answers",
    "left behind",
)
PROCESS_FAULTS = ("crash", "crash leader", "crash at point", "pause", "pause leader", "power loss", "drift")
DISK_FAULTS = ("fsync error", "full", "stall", "stall leader", "damage", "wipe")
MEMBERSHIP = ("add learner", "promote", "demote", "remove", "remove leader", "transfer")
EXAMS = (
    "none",
    "returning follower",
    "deaf leader",
    "mute leader",
    "stalled leader",
    "dead leader",
    "rest",
    "transfer",
    "new member",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    seed: int
    voters: int
    spares: int
    options: RaftOptions
    drifts: tuple[float, ...]
    """Length of a tick by slot, relative to the nominal one."""
    weather: Weather
    storm: Weather
    faults: tuple[str, ...]
    """Kinds of faults and membership changes this run draws from, repeated by weight."""
    fault_gap_ticks: int
    fault_ticks_max: int
    clients: int
    read_rate: float
    batch_operations_max: int
    batch_payloads_max: int
    think_us_max: int
    lost_reply_rate: float
    operations_max: int
    ticks_max: int
    snapshot_every_entries: int
    keep_entries: int
    snapshot_us_max: int
    apply_lag_us_max: int
    sync_us_max: int
    slow_sync_rate: float
    shows_written: bool
    cold_rate: float
    exam: str
    ends_with_power_loss: bool

    @property
    def is_calm(self) -> bool:
        return not self.faults


def make_plan(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    voters = rng.choice((1, 2, 3, 3, 3, 3, 4, 5, 5))
    spares = rng.choice((0, 1, 1, 2))
    is_calm = rng.random() < 0.12
    slots = voters + spares
    drift = rng.choice((0.0, 0.05, 0.3, 0.6))
    snapshot_every = rng.choice((6, 12, 25, 60, 10_000))
    return Plan(
        seed=seed,
        voters=voters,
        spares=spares,
        options=_options(rng),
        drifts=tuple(1.0 + drift * (rng.random() - 0.4) for _ in range(slots)),
        weather=_weather(rng, is_calm=is_calm),
        storm=Weather(
            drop_rate=rng.choice((0.05, 0.2, 0.4)),
            double_rate=rng.choice((0.0, 0.1, 0.3)),
            straggler_rate=rng.choice((0.05, 0.3)),
            straggler_us_max=rng.choice((200_000, 2_000_000)),
            latency_us_max=rng.choice((2_000, 60_000)),
            in_order=False,
        ),
        faults=() if is_calm else _faults(rng),
        fault_gap_ticks=rng.choice((4, 8, 16, 30)),
        fault_ticks_max=rng.choice((15, 40, 80)),
        clients=rng.randint(2, 5),
        read_rate=rng.choice((0.1, 0.3, 0.5)),
        batch_operations_max=rng.choice((8, 16, 24)),
        batch_payloads_max=rng.choice((1, 2, 4)),
        think_us_max=rng.choice((50_000, 300_000, 800_000)),
        lost_reply_rate=rng.choice((0.0, 0.02, 0.1)),
        operations_max=2_500,
        ticks_max=rng.choice((200, 300, 400)),
        snapshot_every_entries=snapshot_every,
        keep_entries=rng.choice((0, 0, 3, 10)),
        snapshot_us_max=rng.choice((1_000, 100_000)),
        apply_lag_us_max=rng.choice((0, 0, 0, 20_000, 200_000)),
        sync_us_max=rng.choice((300, 2_000, 20_000)),
        slow_sync_rate=rng.choice((0.0, 0.0, 0.05)),
        shows_written=rng.random() < 0.5,
        cold_rate=rng.choice((0.0, 0.0, 0.1)),
        exam=rng.choice(EXAMS),
        ends_with_power_loss=rng.random() < 0.35,
    )


def _options(rng: random.Random) -> RaftOptions:
    heartbeat = rng.choice((1, 2, 3))
    election = rng.randint(max(8, 3 * heartbeat), 12)
    append_bytes = rng.choice((40, 200, 10_000))
    return RaftOptions(
        heartbeat_ticks=heartbeat,
        election_ticks=election,
        disk_stall_ticks=rng.choice((election, 3 * election)),
        append_bytes_max=append_bytes,
        append_entries_max=rng.choice((1, 4, 64)),
        inflight_messages_max=rng.choice((1, 2, 8, 64)),
        inflight_bytes_max=append_bytes * rng.choice((1, 8)),
        uncommitted_bytes_max=rng.choice((400, 100_000)),
        uncommitted_entries_max=rng.choice((12, 500)),
        persists_pending_max=rng.choice((4, 32, 256)),
        reads_pending_max=rng.choice((2, 64)),
        chunk_bytes_max=rng.choice((16, 64, 4_096)),
        chunks_inflight_max=rng.choice((1, 3)),
        caught_up_entries_max=rng.choice((1, 8, 64)),
        first_election_ticks=rng.choice((1, 4)),
        rest_ticks=rng.choice((1, 5, 30)),
    )


def _weather(rng: random.Random, *, is_calm: bool) -> Weather:
    if is_calm:
        return Weather(latency_us_max=rng.choice((500, 5_000)))
    return Weather(
        drop_rate=rng.choice((0.0, 0.0, 0.01, 0.05)),
        double_rate=rng.choice((0.0, 0.01, 0.05)),
        straggler_rate=rng.choice((0.0, 0.0, 0.02)),
        straggler_us_max=rng.choice((100_000, 1_000_000)),
        latency_us_max=rng.choice((1_000, 10_000, 50_000)),
        in_order=rng.random() < 0.5,
    )


def _faults(rng: random.Random) -> tuple[str, ...]:
    """Each family is in or out, and inside a family some kinds: runs with few kinds go deeper."""
    chosen: list[str] = []
    for family, chance in (
        (NETWORK_FAULTS, 0.75),
        (PROCESS_FAULTS, 0.75),
        (DISK_FAULTS, 0.5),
        (MEMBERSHIP, 0.6),
    ):
        if rng.random() < chance:
            share = rng.choice((0.4, 1.0))
            chosen += [kind for kind in family if rng.random() < share]
    return tuple(chosen) or ("crash leader", "split")
