"""Who is to run which pipeline: what the leader of the meta group proposes. No clock and no log in here.

An owner renews what it owns every `RENEW_S`, by an entry of the meta group. It stops its drivers when the
last renewal that it knows to be in the log was sent `LEASE_S` ago. The leader gives a pipeline to another
node when it has seen no renewal for `TAKEOVER_S` of its own time as leader: so the drivers of an owner that
merely cannot reach the others have been stopped by then. Where clocks or processes stand still meanwhile,
the epoch keeps the old driver from deciding anything (`broker/meta/pipelines.py`).
"""

from collections.abc import Collection, Iterator, Mapping

from millrace.broker.entries.meta import OwnPipeline
from millrace.broker.meta.members import Member
from millrace.broker.meta.pipelines import Pipeline, Pipelines

RENEW_S = 2.0
LEASE_S = 8.0
DRIVER_STOP_S = 5.0
"""How long a driver may take to stop before it is killed."""
TAKEOVER_S = 15.0
assert LEASE_S + DRIVER_STOP_S < TAKEOVER_S
assert 3 * RENEW_S < LEASE_S


class Ownership:
    """What the leader has seen of the owners. Another one begins with every time that this node leads."""

    def __init__(self) -> None:
        # Pipeline -> what the last renewal looked like, and since when.
        self._seen: dict[str, tuple[tuple[str, int, int], float]] = {}

    def review(
        self, pipelines: Pipelines, members: Mapping[str, Member], unheard: Collection[str], now_s: float
    ) -> Iterator[OwnPipeline]:
        """Entries that give a pipeline another owner. `unheard` are nodes that get nothing new."""
        able = {
            replica: member.name
            for replica, member in members.items()
            if member.runs_pipelines and not member.is_draining and replica not in unheard
        }
        for name, pipeline in list(pipelines.by_name.items()):
            if not pipeline.runs or not self._needs_owner(name, pipeline, pipelines, members, now_s):
                continue
            others = [(replica, called) for replica, called in able.items() if replica != pipeline.owner]
            chosen = pipelines.choose(pipeline, others)
            if chosen is not None:
                yield OwnPipeline(name, pipeline.epoch, chosen)
        for name in self._seen.keys() - pipelines.by_name.keys():
            del self._seen[name]

    def _needs_owner(
        self,
        name: str,
        pipeline: Pipeline,
        pipelines: Pipelines,
        members: Mapping[str, Member],
        now_s: float,
    ) -> bool:
        owner = members.get(pipeline.owner)
        if owner is None or not owner.runs_pipelines or owner.is_draining:
            return True
        if pipeline.spec.node not in ("", owner.name):
            return True
        news = pipeline.owner, pipeline.epoch, pipelines.renewals.get(pipeline.owner, 0)
        known, since_s = self._seen.get(name, (None, now_s))
        if known != news:
            self._seen[name] = news, now_s
            return False
        return now_s - since_s >= TAKEOVER_S
