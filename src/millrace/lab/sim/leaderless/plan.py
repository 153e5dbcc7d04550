"""What a seed makes of a leaderless stream: its size, its options, its weather and its faults."""

import random
from dataclasses import dataclass

from millrace.lab.sim.raft.plan import TICK_US
from millrace.lab.sim.surroundings.network import Weather
from millrace.replication.leaderless.machine import LeaderlessOptions
from millrace.replication.leaderless.messages import Level

FAULTS = ("crash", "split", "one way", "bridge", "storm", "pause", "lose disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderlessPlan:
    seed: int
    hosts: int
    level: Level
    has_disks: bool
    options: LeaderlessOptions
    drifts: tuple[float, ...]
    weather: Weather
    storm: Weather
    faults: tuple[str, ...]
    fault_gap_ticks: int
    fault_ticks_max: int
    ticks: int
    publishers: int
    think_us_max: int
    sync_us_max: int
    calm_latency_us_max: int
    """Of the calm part: slow links make sessions overlap, and are no fault."""
    move_ticks_max: int
    members_per_group: int
    ends_with_power_loss: bool


def make_leaderless_plan(seed: int) -> LeaderlessPlan:
    rng = random.Random(f"leaderless plan {seed}")
    hosts = rng.choice((1, 2, 3, 3, 3, 3, 4, 5))
    is_calm = rng.random() < 0.1
    has_disks = rng.random() < 0.7
    drift = rng.choice((0.0, 0.05, 0.3))
    silent_ticks = rng.choice((20, 30))
    chosen = tuple(kind for kind in FAULTS if rng.random() < 0.6) or ("crash", "split")
    return LeaderlessPlan(
        seed=seed,
        hosts=hosts,
        level=rng.choice((Level.LOCAL, Level.ONE, Level.MAJORITY, Level.MAJORITY, Level.ALL)),
        has_disks=has_disks,
        options=LeaderlessOptions(
            pulse_ticks=rng.choice((1, 2, 4)),
            silent_ticks=silent_ticks,
            closed_ticks=rng.choice((6, 12)),
            resend_ticks=rng.choice((6, 20)),
            pull_ticks=rng.choice((3, 6)),
            entries_bytes_max=rng.choice((30, 1_000, 100_000)),
            window_entries=rng.choice((2, 8, 256)),
            persists_pending_max=rng.choice((8, 256)),
            unacknowledged_bytes_max=rng.choice((200, 100_000)),
        ),
        drifts=tuple(1.0 + drift * (rng.random() - 0.4) for _ in range(hosts)),
        weather=Weather(
            drop_rate=0.0 if is_calm else rng.choice((0.0, 0.0, 0.02, 0.05)),
            double_rate=rng.choice((0.0, 0.02, 0.1)),
            latency_us_max=rng.choice((1_000, 10_000, 50_000)),
            in_order=rng.random() < 0.5,
        ),
        storm=Weather(
            drop_rate=rng.choice((0.1, 0.4)),
            double_rate=rng.choice((0.0, 0.3)),
            straggler_rate=rng.choice((0.05, 0.3)),
            straggler_us_max=rng.choice((200_000, 2_000_000)),
            latency_us_max=rng.choice((2_000, 60_000)),
            in_order=False,
        ),
        faults=() if is_calm else chosen,
        fault_gap_ticks=rng.choice((8, 16, 30)),
        fault_ticks_max=rng.choice((20, 60, 100)),
        ticks=rng.choice((150, 200, 300)),
        publishers=rng.randint(2, 3),
        think_us_max=rng.choice((300_000, 800_000, 2_000_000)),
        sync_us_max=rng.choice((300, 5_000, 40_000)),
        calm_latency_us_max=rng.choice((2_000, 60_000, silent_ticks * TICK_US // 8)),
        move_ticks_max=rng.choice((5, 12, 30)),
        members_per_group=rng.choice((1, 2, 3)),
        ends_with_power_loss=has_disks and rng.random() < 0.35,
    )
