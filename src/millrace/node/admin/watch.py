"""Notices what changed at this node since the last look, and records it as events.

A look costs a few comparisons for each group, member and stream, twice a second. Nothing calls in here:
what is watched does not know it.
"""

from typing import Any

from millrace.broker.stats import Stats
from millrace.node.admin.events import EventLog, Kind, Severity
from millrace.node.admin.overview import names_of
from millrace.node.cluster.cluster import keeps
from millrace.node.engine import Engine
from millrace.node.replicas.replication_group import ReplicationGroup

LOOK_S = 0.5

# Counters of the broker that tell of refusals and losses, and what they count.
_REFUSALS: dict[str, tuple[Kind, str]] = {
    "denied": ("access", "messages or subscriptions were refused by the access rules"),
    "sockets_refused": ("limit", "connections were refused: there are no more descriptors"),
    "dropped_queue": ("limit", "messages were dropped: the queues of their clients are full"),
    "dropped_too_large": ("limit", "messages were not sent: they are larger than their clients take"),
}


class Watch:
    """`look` is called again and again once the node serves; the first look records nothing but what it
    is."""

    def __init__(self, engine: Engine, stats: Stats, events: EventLog, node: str) -> None:
        self._engine = engine
        self._stats = stats
        self._counted: dict[str, int] = {}
        self._events = events
        self._node = node
        self._roles: dict[int, tuple[str, int, str | None]] | None = None
        # Each group as it was looked at, and how often its role had changed by then.
        self._looked: dict[int, tuple[ReplicationGroup, int]] = {}
        self._members: dict[str, Any] | None = None
        self._names: dict[str, str] = {}
        self._states: dict[str, str] = {}
        self._links: set[str] | None = None
        self._streams: dict[str, Any] | None = None
        self._groups: dict[str, Any] | None = None
        self._is_full = False
        self._repairing = 0

    def look(self) -> None:
        self._events.flush()
        self._names.update(names_of(self._engine))
        self._look_at_roles()
        self._look_at_members()
        self._look_at_links()
        self._look_at_definitions()
        self._look_at_storage()
        self._look_at_refusals()

    def _name(self, replica: str) -> str:
        return self._names.get(replica, replica[:8])

    # ---------------------------------------------------------------------------------- elections

    def _look_at_roles(self) -> None:
        engine = self._engine
        looked = {number: (group, group.role_changes) for number, group in engine.replicas.groups.items()}
        if looked == self._looked:
            return
        self._looked = looked
        now: dict[int, tuple[str, int, str | None]] = {}
        for number, (group, _) in looked.items():
            status = group.status()
            leader = None if status.leader is None else self._name(status.leader)
            now[number] = (str(status.role), int(status.term), leader)
        before, self._roles = self._roles, now
        if before is None:
            return
        shards = engine.definitions.state.shards()
        for number, (role, term, leader) in now.items():
            old_role, old_term, old_leader = before.get(number, ("", 0, None))
            if (role, term, leader) == (old_role, old_term, old_leader) or number not in before:
                continue
            what = keeps(number, shards)
            fields: dict[str, Any] = {"group": number, "term": term, "role": role, "leader": leader}
            if leader is None:
                text = f"group {number} ({what}) has no leader that {self._node} knows"
                self._events.record("election", "warning", text, **fields)
            elif leader == self._node and (leader, term) != (old_leader, old_term):
                # Told by the one who leads: the others would say the same.
                text = f"{leader} leads group {number} ({what}) in term {term}"
                self._events.record("election", "info", text, **fields)
            elif old_leader == self._node:
                text = f"{self._node} leads group {number} ({what}) no longer, {leader} does"
                self._events.record("election", "info", text, **fields)

    # ------------------------------------------------------------------------------------ members

    def _look_at_members(self) -> None:
        members = dict(self._engine.definitions.state.members.members)
        before, self._members = self._members, members
        rows = self._engine.cluster.states()
        states, self._states = self._states, rows
        if before is None:
            return
        for replica in members.keys() - before.keys():
            name = self._name(replica)
            self._events.record("join", "info", f"{name} joined the cluster", member=name, replica=replica)
        for replica in before.keys() - members.keys():
            name = before[replica].name
            text = f"{name} was removed from the cluster"
            self._events.record("leave", "warning", text, member=name, replica=replica)
        for replica, state in rows.items():
            old = states.get(replica, state)
            if state != old:
                self._tell_state(self._name(replica), old, state)

    def _tell_state(self, name: str, old: str, state: str) -> None:
        severity: Severity = "info"
        if state in ("suspect", "unreachable"):
            severity = "warning" if state == "suspect" else "error"
            text = f"{name} is {state}: {self._node} does not hear it"
        elif old in ("suspect", "unreachable"):
            text = f"{name} is back"
        else:
            text = f"{name} is being drained" if state == "draining" else f"{name} takes part again"
        self._events.record("node", severity, text, member=name, state=state)

    def _look_at_links(self) -> None:
        links = self._engine.replicas.links
        heard = {peer for peer in links.peers() if links.is_heard(peer)} if links is not None else set()
        before, self._links = self._links, heard
        if before is None:
            return
        for peer in sorted(heard - before):
            text = f"the link between {self._node} and {self._name(peer)} is up"
            self._events.record("link", "info", text, to=self._name(peer))
        for peer in sorted(before - heard):
            text = f"the link between {self._node} and {self._name(peer)} is down"
            self._events.record("link", "warning", text, to=self._name(peer))

    # -------------------------------------------------------------------------------- definitions

    def _look_at_definitions(self) -> None:
        """Every node sees them; the leader of their group records them, so that each is told once."""
        engine = self._engine
        streams = {name: stream.spec for name, stream in engine.definitions.table.streams.items()}
        groups = {name: group.spec for name, group in engine.groups.by_name.items()}
        before, self._streams = self._streams, streams
        groups_before, self._groups = self._groups, groups
        if before is None or groups_before is None or not engine.definitions.is_leader:
            return
        self._compare("stream", before, streams)
        self._compare("group", groups_before, groups)

    def _compare(self, kind: Any, before: dict[str, Any], now: dict[str, Any]) -> None:
        for name in sorted(now.keys() | before.keys()):
            if name not in before:
                what = "was made"
            elif name not in now:
                what = "was deleted"
            elif now[name] != before[name]:
                what = "was changed"
            else:
                continue
            self._events.record(kind, "info", f"{kind} {name!r} {what}", name=name)

    # ------------------------------------------------------------------------------------ storage

    def _look_at_storage(self) -> None:
        groups = self._engine.replicas.groups.values()
        is_full = self._engine.space.is_refusing
        repairing = sum(1 for group in groups if group.replica_log.log.damages)
        if is_full != self._is_full:
            self._is_full = is_full
            if is_full:
                text = f"the disk of {self._node} is full: publishing to logs is refused"
                self._events.record("storage", "error", text)
            else:
                self._events.record("storage", "info", f"there is room on the disk of {self._node} again")
        if repairing != self._repairing:
            more = repairing > self._repairing
            self._repairing = repairing
            if more:
                text = f"{self._node} fetches damaged parts of {repairing} logs from other nodes"
                self._events.record("storage", "warning", text, damaged=repairing)
            else:
                text = f"{self._node} repaired damage; {repairing} logs are left"
                self._events.record("storage", "info", text, damaged=repairing)

    # ----------------------------------------------------------------------------------- refusals

    def _look_at_refusals(self) -> None:
        for name, (kind, what) in _REFUSALS.items():
            count = getattr(self._stats, name)
            more = count - self._counted.get(name, 0)
            self._counted[name] = count
            if more > 0:
                self._events.record(kind, "warning", f"{more} {what}", count=more, counter=name)
