"""What one seed chooses for a run of whole nodes: sizes, work, faults and what the operator does meanwhile.

A calm run has no fault, nobody wanders and nothing is changed: there every message must come exactly once,
also where faults allow it to come again. The other runs take a part of everything, so that a failing seed has
few suspects.
"""

import random
from dataclasses import dataclass
from typing import Literal

FAULTS = (
    "crash",
    "power loss",
    "power loss in a write",
    "power loss of all",
    "stop",
    "pause",
    "slow disk",
    "full disk",
    "failing sync",
    "broken connections",
    "clients cut off",
)
FAULTS_BETWEEN_NODES = ("split", "one way")
FAULTS_OF_THREE = ("damage", "lost tail")
"""What needs two others that are whole."""
BRIDGE = "bridge"
"""Two nodes do not reach each other, and others reach both."""
CLOCK = "clock"
"""The clock of a node is set hours ahead or back."""
CHANGES = ("stream", "shards", "join", "remove", "drain", "replace")
WORK = ("shared", "wills", "retained", "groups", "short", "staging")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    seed: int
    sync: Literal["always", "never"]
    """`never` is a planted bug."""
    nodes: int
    spares: int
    """Hosts that may join later."""
    work: tuple[str, ...]
    """Besides publishers and subscribers."""
    faults: tuple[str, ...]
    changes: tuple[str, ...]
    is_wandering: bool
    """Whether clients leave their node now and then."""
    messages: int
    """Of each publisher."""
    fault_s: int
    forming_fault_s: int
    is_power_lost_at_end: bool
    segment_bytes: int
    """Small ones make retention, repair and snapshots part of a short run."""
    free_bytes_min: int
    replace_after_s: int = 600
    """How long a node is away before others get its replicas."""
    rows_at_once: int = 1_000
    """Rows of a state that one step of a snapshot takes: few make a short run change it between the steps."""
    gathers_always: bool = False
    """Whether publishers that do not wait for their answers wait for each other."""

    @property
    def has_moving_topics(self) -> bool:
        """Whether topics go from one stream to another."""
        return "stream" in self.changes

    @property
    def is_calm(self) -> bool:
        return not self.faults and not self.changes and not self.is_wandering


# Shorter than many faults last.
_REPLACE_AFTER_S = 6


def make_cluster_plan(seed: int) -> ClusterPlan:
    rng = random.Random(f"{seed} plan")
    nodes = rng.choice((1, 2, 3, 3, 3, 3, 3, 5))
    is_calm = rng.random() < 0.12
    faults = list(FAULTS)
    changes = ["stream", "shards"]
    if nodes > 1:
        faults += [*FAULTS_BETWEEN_NODES, *FAULTS_BETWEEN_NODES]
        changes += ["join", "drain"]
    if nodes > 2:
        faults += FAULTS_OF_THREE
        changes += ["remove", "replace"]
    # The last is drawn by itself, so that the plans of all other seeds stay what they are.
    work = [name for name in WORK[:-1] if rng.random() < 0.35]
    if random.Random(f"{seed} staging").random() < 0.35:
        work.append(WORK[-1])
    chosen = () if is_calm or rng.random() < 0.4 else tuple(rng.sample(changes, rng.randint(1, 2)))
    sampled = () if is_calm else tuple(rng.sample(faults, rng.randint(1, len(faults))))
    # Beside the others, so that the plans of all other seeds stay what they are.
    is_bridged = seed % 4 == 3 and nodes > 2 and not is_calm
    besides: tuple[str, ...] = (BRIDGE, BRIDGE) if is_bridged else ()
    if seed % 4 == 2 and not is_calm:
        besides = (CLOCK,)
    return ClusterPlan(
        seed=seed,
        sync="always",
        nodes=nodes,
        spares=1 if nodes > 1 else 0,
        work=tuple(work),
        faults=(*sampled, *besides),
        changes=chosen,
        is_wandering=not is_calm,
        messages=rng.choice((20, 60, 120)),
        fault_s=rng.randint(10, 40),
        forming_fault_s=0 if is_calm else rng.choice((0, 0, 0, 2, 8)),
        is_power_lost_at_end=rng.random() < 0.4,
        segment_bytes=rng.choice((4_096, 16_384, 1 << 20)),
        free_bytes_min=rng.choice((0, 1 << 20)),
        replace_after_s=_REPLACE_AFTER_S if seed % 4 == 3 else 600,
        rows_at_once=random.Random(f"{seed} rows").choice((1, 2, 5)),
        gathers_always=random.Random(f"{seed} gathering").random() < 0.5,
    )
