"""A cluster of whole nodes in which nothing happens by itself: what a test does is all there is."""

import dataclasses

from millrace.lab.sim.cluster.plan import ClusterPlan, make_cluster_plan


def calm_plan(nodes: int = 3, seed: int = 1) -> ClusterPlan:
    return dataclasses.replace(
        make_cluster_plan(seed),
        nodes=nodes,
        spares=0,
        work=(),
        faults=(),
        changes=(),
        forming_fault_s=0,
        free_bytes_min=0,
    )
