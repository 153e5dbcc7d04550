"""The way from one configuration of a group to another, one change at a time."""

from millrace.replication.contract import ChangeKind, ReplicaId, Status


def next_change(
    status: Status, voters: tuple[str, ...], learners: tuple[str, ...]
) -> tuple[ChangeKind, ReplicaId] | None:
    """As leader: one step from the present configuration toward this one. None where there is none that this
    leader can make now; it does not remove or demote itself."""
    config = status.config
    caught_up = {peer.replica for peer in status.peers if peer.is_caught_up}
    silent = {peer.replica for peer in status.peers if not peer.is_active}
    for name in (*voters, *learners):
        if name not in config.members:
            return ChangeKind.ADD_LEARNER, ReplicaId(name)
    for replica in config.learners:
        if replica in voters and replica in caught_up:
            # One more voter beside a dead one would need one more that answers, and that might be the
            # newcomer, which is just starting. Without the dead one nobody more is needed than before.
            for dead in config.voters:
                if dead in silent and dead not in voters:
                    return (ChangeKind.DEMOTE if dead in learners else ChangeKind.REMOVE), dead
            return ChangeKind.PROMOTE, replica
    if not set(voters) <= set(config.voters):
        # Nobody leaves before those who take over are there.
        return None
    leaving = [replica for replica in config.members if replica not in voters and replica not in learners]
    demoted = [replica for replica in config.voters if replica in learners]
    for kind, some in ((ChangeKind.REMOVE, leaving), (ChangeKind.DEMOTE, demoted)):
        for replica in some:
            if replica != status.replica and (replica in silent or _is_dispensable(status, replica)):
                return kind, replica
    return None


def _is_dispensable(status: Status, replica: ReplicaId) -> bool:
    """Whether the voters that stay are a majority of themselves without those that are away or behind: one
    may have lost what it had, and with the vote of this replica there is one to spare."""
    staying = [voter for voter in status.config.voters if voter != replica]
    whole = {peer.replica for peer in status.peers if peer.is_active and peer.is_caught_up} | {status.replica}
    return replica not in status.config.voters or 2 * len(whole.intersection(staying)) > len(staying)
