"""Which nodes keep which group: what the leader of the meta group decides as nodes come, go and stay away.

Replicas grow toward their target as nodes join [rule 22]. A node that was silent for longer than
`cluster.replace_after_s` loses the replicas that it keeps to nodes that are heard. It stays a member, and
gets replicas again where some are lacking. Nothing is decided on the side of a partition that is a minority,
for a change of the meta group needs its majority. A group never gets fewer replicas than it has, and none is
moved while the group could not decide about it, or off the primary of a pair, which may be the only one that
has everything."""

from collections.abc import Iterator, Mapping

from millrace.broker.entries.meta import PlaceGroup
from millrace.broker.meta import state as meta
from millrace.broker.meta.members import Assignment
from millrace.broker.streams.stream import Stream
from millrace.node.cluster.silence import Silence
from millrace.node.replicas.replicas import Replicas
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.streams.definitions import Definitions
from millrace.types import Index

_META_VOTERS = 5
_SESSION_VOTERS = 3
_PAIR_REPLICAS = 2


class Placement:
    """Decisions of the leader of the meta group, and what they lack at the moment, in words."""

    def __init__(
        self, replicas: Replicas, definitions: Definitions, silence: Silence, replace_after_s: int
    ) -> None:
        self._replicas = replicas
        self._definitions = definitions
        self._silence = silence
        self._replace_after_s = replace_after_s
        # Who should keep each group, and the definitions for which that was found out.
        self._found: dict[int, tuple[str, ...]] = {}
        self._found_for: tuple[ReplicationGroup, Index] | None = None

    async def place(self) -> None:
        """As leader of the meta group: put every group where it belongs."""
        found, assignments = self._all_wanted(), self._definitions.state.members.assignments
        if all(not wanted or set(wanted) == set(assignments[n].replicas) for n, wanted in found.items()):
            return
        # Each choice counts for the next one, so they are made anew, one after the other.
        shards = self._definitions.state.shards()
        for number, assignment in list(self._definitions.state.members.assignments.items()):
            wanted = self._wanted(number, assignment, shards)
            if wanted and set(wanted) != set(assignment.replicas):
                await self._definitions.command(PlaceGroup(number, wanted))

    def is_settled(self) -> bool:
        """Whether every group is kept by the nodes that should keep it."""
        members = self._definitions.state.members
        for number, wanted in self._all_wanted().items():
            group = self._replicas.groups.get(number)
            if group is None:
                return False
            config = group.config
            if set(config.voters) != set(wanted) or set(config.members) != set(members.members):
                return False
        return True

    def _all_wanted(self) -> dict[int, tuple[str, ...]]:
        """Who should keep each group. It is asked for several times a second, and the same as long as the
        definitions are and everybody is heard."""
        group, is_calm = self._definitions.group, not self._silence.since_s
        if not is_calm or self._found_for != (group, group.applied):
            shards = self._definitions.state.shards()
            assignments = self._definitions.state.members.assignments
            self._found = {n: self._wanted(n, assignment, shards) for n, assignment in assignments.items()}
            self._found_for = (group, group.applied) if is_calm else None
        return self._found

    def _wanted(self, number: int, assignment: Assignment, shards: Mapping[int, Stream]) -> tuple[str, ...]:
        members, silent = self._definitions.state.members, self._silence.unreachable()
        target = self._target(number, shards)
        kept = self._without_lost(number, assignment.replicas)
        wanted = members.choose(target, kept, silent)
        if len(kept) < len(assignment.replicas) and len(wanted) < len(assignment.replicas):
            # Too few others are there to take over from those who are lost.
            return members.choose(target, assignment.replicas, silent)
        return wanted

    def _without_lost(self, number: int, replicas: tuple[str, ...]) -> tuple[str, ...]:
        """Those of a group's nodes that keep their replica, though some are silent."""
        silence, after_s = self._silence, self._replace_after_s
        lost = {r for r in replicas if after_s and silence.silent_s(r) >= after_s}
        pair = self._definitions.state.pairs.by_shard.get(number)
        if pair is not None:
            # What a primary took alone is nowhere else.
            lost.discard(pair.primary)
        group = self._replicas.groups.get(number)
        if not lost or group is None:
            return replicas
        voters = group.config.voters
        silent = sum(voter in silence.since_s for voter in voters)
        if pair is None and 2 * silent >= len(voters):
            return replicas
        return tuple(r for r in replicas if r not in lost)

    def _target(self, number: int, shards: Mapping[int, Stream]) -> int:
        if number == meta.META_GROUP:
            return _META_VOTERS
        if number == meta.SESSION_GROUP:
            return _SESSION_VOTERS
        if number in self._definitions.state.pairs.by_shard:
            return _PAIR_REPLICAS
        stream = shards.get(number)
        return stream.spec.replicas if stream is not None else 1

    def degraded(self, stream: Stream) -> Iterator[str]:
        """For people: what the shards of a stream lack because nodes do not answer."""
        members, shards = self._definitions.state.members, self._definitions.state.shards()
        for number in (*stream.sealed, *stream.shards):
            assignment = members.assignments.get(number)
            if assignment is None:
                continue
            replicas = assignment.replicas
            silent = [members.members[r].name for r in replicas if r in self._silence.since_s]
            if silent:
                up = len(replicas) - len(silent)
                names = ", ".join(sorted(silent))
                says = f"shard {number}: {up} of {len(replicas)} replicas are up, {names} "
                yield says + f"{'does' if len(silent) == 1 else 'do'} not answer"
            lacking = min(self._target(number, shards), len(members.hosts())) - len(replicas)
            if lacking > 0 and self._silence.since_s.keys() & members.members.keys():
                yield f"shard {number}: {lacking} more to be kept once all nodes are there"
