"""Clusters under load: a node that ends is reported; a real cluster comes up, is counted and goes."""

import shutil
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from millrace.lab.bench import clusters, generator, runner
from millrace.lab.bench.patterns import BY_NAME, CLUSTER_PATTERNS
from millrace.lab.bench.peers import PeerError
from millrace.local_cluster import PortBlock


def program(text: str) -> clusters.ClusterKind:
    """A cluster of one process in a few lines of Python that never has a leader."""

    def start(directory: Path, ports: PortBlock, stack: ExitStack) -> list[clusters.Node]:
        command = [sys.executable, "-c", text]
        return [clusters._launch(command, {}, directory / "said", ports.take(), ports.take(), stack)]

    return clusters.ClusterKind(name="program", version="1", start=start, find_leader=lambda nodes: None)


def test_a_node_that_ends_is_reported_with_its_last_words() -> None:
    dying = program("import sys; sys.exit('first line\\nno such thing')")
    with pytest.raises(PeerError, match="a node of program ended: no such thing"), clusters.running(dying):
        pass


def test_clusters_are_interleaved_and_jetstream_takes_both_patterns() -> None:
    measured = runner.subjects([3], ["c"], clusters.CLUSTER_PEERS)
    assert [str(s) for s in measured] == ["millrace (c) MQTT 3.1.1", "jetstream-sync", "jetstream"]
    steps = runner.plan(CLUSTER_PATTERNS, measured, rounds=2)
    assert [subject for pattern, subject in steps if pattern.name == "cluster-one"] == measured * 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the generator is built with gcc")
@pytest.mark.parametrize("name", ["millrace", "jetstream-sync"])
def test_three_nodes_take_durable_publishes(name: str) -> None:
    kind = clusters.this_cluster("python") if name == "millrace" else clusters.find_jetstream(name)
    if kind is None:
        pytest.skip("nats-server is not installed")
    subject = runner.Subject(broker=name, mqtt=3 if name == "millrace" else None)
    pattern = BY_NAME["cluster-window"]
    with clusters.running(kind) as running:
        assert len(running.pids()) == 3
        values = generator.build().run(
            (*subject.flags(), *pattern.flags), port=running.port, pids=running.pids(), seconds=0.5
        )
    assert values["delivered_s"] > 0 and values["lost"] == 0
    assert all(process.poll() is not None for process in (running.process, *running.others))
