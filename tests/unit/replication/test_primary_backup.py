"""The machine of a primary-backup pair where the stories in `tests/scenarios/pairs` are not close enough."""

from millrace.replication.contract import ReplicaId
from unit.replication.pair_stage import CHECK_TICKS, PairStage

N1, N2 = ReplicaId("n1"), ReplicaId("n2")


def test_a_backup_may_follow_on_a_primary_that_falls_within_its_first_check_interval() -> None:
    """What was asked before the primary had begun is answered by nobody, so it is asked again at once."""
    stage = PairStage(has_authority=False)
    stage.tick([N2])
    stage.mail.clear()
    stage.rounds(CHECK_TICKS - 1)
    stage.propose(N1)
    stage.quiet()
    assert stage.machine(N2).status().commit == stage.machine(N1).status().commit == 2
    stage.crash(N1)
    stage.tick([N2], 8 * CHECK_TICKS)
    stage.quiet()
    assert stage.machine(N2).status().serving
