"""Whole nodes on a simulated loop, network and disk: clean runs, and the same run in every process."""

import json
import os
import subprocess
import sys

import pytest

from millrace.sim.campaign import replay
from millrace.sim.cluster_checks import check_received
from millrace.sim.cluster_world import run_cluster_seed
from millrace.sim.mqtt_clients import History, Sent
from millrace.sim.violation import Violation

# Small ones; between them one node and three, no fault and many, and a power loss of everything.
SEEDS = (1, 2, 6, 7, 8, 10)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cluster_keeps_its_promises(seed: int) -> None:
    """Everything acknowledged is in equal logs and came to whoever subscribed, whatever happened."""
    result = run_cluster_seed(seed)
    assert result.is_clean, (
        f"{result.rule}: {result.detail}; replay with: millrace sim --mode cluster --seed {seed} --trace"
    )
    assert result.operations > 0


def test_acknowledging_before_the_disk_has_it_is_caught() -> None:
    """A planted bug: without syncs a power loss takes what was acknowledged."""
    found = [run_cluster_seed(seed, sync="never").rule for seed in (7, 11, 8)]
    assert any(found), "nodes that never sync survived every power loss"


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


_HASHES = """
import json
from millrace.sim.campaign import replay
print(json.dumps([replay(seed, frozenset(), mode="cluster").trace_hash for seed in (6, 7, 8)]))
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
    replay(6, frozenset(), lines.append, mode="cluster")
    assert any("n1        * serves" in line for line in lines)
    assert any("is acknowledged" in line for line in lines)
    assert any("d2" in line and "received" in line for line in lines)
