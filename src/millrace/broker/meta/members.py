"""Who belongs to the cluster, and which of its nodes keep which group: a part of the meta group's state.

A member is a replica id with a name and addresses. A group's assignment names the nodes that should keep it;
its *founders* are those it began with, which all open it with the same first configuration, while a node
that is assigned later opens it empty and is added by the group's leader. The state here is what is wanted;
what is, is the configuration in each group's own log.

Membership never shrinks by itself [A6]: a node that is gone is reported, and removed only by
a command.
"""

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from millrace.errors import LocalError
from millrace.limits import MEMBERS_MAX, REMOVED_MEMBERS_MAX
from millrace.version import LEVEL_UNSAID, Feature


class Member(msgspec.Struct, frozen=True, kw_only=True):
    replica: str
    name: str
    peer: str
    mqtt: str = ""
    http: str = ""
    host: str = ""
    """The machine that it runs on, where others run on it as well; empty: a machine of its own."""
    runs_pipelines: bool = False
    """Its own configuration lets it run the code of pipelines."""
    level: int = LEVEL_UNSAID
    """What its node understands."""
    is_draining: bool = False
    """Keeps what it has to until others have it; gets nothing new and leads nothing it can hand over."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    replicas: tuple[str, ...]
    founders: tuple[str, ...]


class Members(msgspec.Struct):
    cluster: str = ""
    """Random, made with the cluster; empty before."""
    members: dict[str, Member] = {}
    """By replica id."""
    assignments: dict[int, Assignment] = {}
    """By the number of the group."""
    removed: tuple[str, ...] = ()
    """Replicas that were members once, in the order in which they were removed. None of them comes back: a
    node that joins again has an empty directory and another replica id."""

    level: int = LEVEL_UNSAID
    """The lowest of the members, as high as it ever was: what all understand, and may be in the logs."""

    def understand(self, feature: Feature) -> bool:
        """Whether all members do, and whoever may join."""
        return self.level >= feature

    # ----------------------------------------------------------------------------------- commands

    def init(self, cluster: str, member: Member, groups: tuple[int, ...]) -> None:
        """The first node makes the cluster and keeps every group that exists from the start."""
        if self.cluster:
            raise LocalError("the cluster exists already")
        self.cluster = cluster
        self.members[member.replica] = member
        self._agree()
        for group in groups:
            self.found(group, (member.replica,))

    def put(self, member: Member) -> None:
        """A node joins or has moved. A name belongs to one node: the same name with an empty directory is a
        new voter that replaces the old [rule 19]."""
        if not self.cluster:
            raise LocalError("there is no cluster yet")
        if member.replica in self.removed:
            raise LocalError(
                f"node {member.name} was removed from the cluster; it can join again with an empty directory"
            )
        reason = self.unfit(member)
        if reason:
            raise LocalError(reason)
        for other in list(self.members.values()):
            if other.name == member.name and other.replica != member.replica:
                self.remove(other.replica)
        if member.replica not in self.members and len(self.members) >= MEMBERS_MAX:
            raise LocalError(f"a cluster has at most {MEMBERS_MAX} nodes")
        known = self.members.get(member.replica)
        is_draining = known is not None and known.is_draining
        self.members[member.replica] = replace(member, is_draining=is_draining)
        self._agree()

    def unfit(self, member: Member) -> str:
        """Why a node of this level cannot be a member now; empty where it can."""
        if member.level < self.level:
            return (
                f"node {member.name} is too old: it understands level {member.level}, and the cluster uses "
                f"level {self.level}. Start the release that the other nodes run"
            )
        for other in self.members.values():
            is_other = other.replica != member.replica and other.name != member.name
            if is_other and other.level < member.level - 1:
                return (
                    f"node {member.name} is too new: it understands level {member.level}, and node "
                    f"{other.name} level {other.level}. Upgrade all nodes to the release between first"
                )
        return ""

    def _agree(self) -> None:
        self.level = max(self.level, min(member.level for member in self.members.values()))

    def drain(self, replica: str, is_draining: bool) -> None:
        self.members[replica] = replace(self._known(replica), is_draining=is_draining)

    def remove(self, replica: str) -> None:
        self._known(replica)
        if len(self.members) == 1:
            raise LocalError("the last node stays")
        del self.members[replica]
        self._agree()
        self.removed = (*self.removed, replica)[-REMOVED_MEMBERS_MAX:]
        for group, assignment in list(self.assignments.items()):
            if replica in assignment.replicas:
                left = tuple(r for r in assignment.replicas if r != replica)
                self.assignments[group] = replace(assignment, replicas=left)

    def found(self, group: int, founders: tuple[str, ...]) -> None:
        """A new group begins on these nodes."""
        self.assignments[group] = Assignment(replicas=founders, founders=founders)

    def place(self, group: int, replicas: tuple[str, ...]) -> None:
        """A group is to be kept by these nodes from now on."""
        assignment = self.assignments.get(group)
        if assignment is None:
            raise LocalError(f"there is no group {group}")
        if not replicas or not set(replicas) <= self.members.keys():
            raise LocalError(f"group {group} can only be kept by nodes of the cluster")
        self.assignments[group] = replace(assignment, replicas=replicas)

    def forget(self, group: int) -> None:
        self.assignments.pop(group, None)

    def _known(self, replica: str) -> Member:
        member = self.members.get(replica)
        if member is None:
            raise LocalError(f"there is no node {replica!r} in the cluster")
        return member

    # ---------------------------------------------------------------------------------- placement

    def by_name(self, name: str) -> Member:
        for member in self.members.values():
            if name in (member.name, member.replica):
                return member
        raise LocalError(f"there is no node {name!r}; there are: {', '.join(sorted(self.names()))}")

    def names(self) -> list[str]:
        return [member.name for member in self.members.values()]

    def choose(self, count: int, keep: tuple[str, ...] = (), away: Collection[str] = ()) -> tuple[str, ...]:
        """Nodes for a group of `count` replicas: those it has, then those that keep the fewest groups, and
        nobody who is `away`. No two of them share a machine, which may be lost as a whole. Only a new group
        (nothing to keep) that finds too few begins with nodes that are away as well, as long as the others
        are a majority of it and it can work without them."""
        able = [r for r, member in self.members.items() if not member.is_draining]
        chosen: dict[str, str] = {}
        """By machine."""
        self._add([r for r in keep if r in able], count, chosen)
        if len(chosen) in (count, len(able)):
            # Asked again and again for every group: whom to prefer costs a look at all of them.
            return tuple(sorted(chosen.values()))
        load = dict.fromkeys(self.members, 0)
        for assignment in self.assignments.values():
            for replica in assignment.replicas:
                if replica in load:
                    load[replica] += 1
        free = sorted(able, key=lambda r: (load[r], r))
        self._add([r for r in free if r not in away], count, chosen)
        if not keep and len(chosen) < count:
            self._add(free, min(count, 2 * len(chosen) - 1) if chosen else count, chosen)
        return tuple(sorted(chosen.values()))

    def _add(self, candidates: Iterable[str], most: int, chosen: dict[str, str]) -> None:
        """Candidates in their order, one of a machine, until there are so many."""
        for replica in candidates:
            if len(chosen) < most:
                chosen.setdefault(self.host_of(replica), replica)

    def host_of(self, replica: str) -> str:
        """The machine of a node; a node without a label is a machine of its own."""
        return self.members[replica].host or replica

    def hosts(self) -> set[str]:
        return {self.host_of(replica) for replica in self.members}

    def leaders(self, absent: Collection[str] = ()) -> dict[int, str]:
        """The node that should lead each group, so that all lead about as many: the same at every node that
        knows the same. Nodes that drain or are absent lead nothing."""
        load = dict.fromkeys(self.members, 0)
        wanted: dict[int, str] = {}
        for group, assignment in sorted(self.assignments.items()):
            fit = [
                replica
                for replica in assignment.replicas
                if replica in load and replica not in absent and not self.members[replica].is_draining
            ]
            if fit:
                chosen = wanted[group] = min(fit, key=lambda replica: (load[replica], replica))
                load[chosen] += 1
        return wanted
