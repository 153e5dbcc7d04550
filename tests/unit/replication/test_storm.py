"""Whatever happens to a group, the checkers of `Cluster` stay silent and a healed group makes progress."""

import pytest

from unit.replication.storm import Storm


@pytest.mark.parametrize("base", range(0, 60, 10))
def test_no_seed_breaks_a_promise_and_every_healed_group_goes_on(base: int) -> None:
    done = [Storm(seed).run() for seed in range(base, base + 10)]
    assert sum(cluster.acknowledged for cluster in done) > 100, "the storm must let work through"
    assert sum(cluster.reads_done for cluster in done) > 50
