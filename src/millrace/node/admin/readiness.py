"""Whether this node can serve, and what it waits for otherwise, in a sentence that says whom to look
after."""

import asyncio
from typing import Any

from millrace.broker.meta import state as meta
from millrace.node.admin.events import EventLog
from millrace.node.admin.waits import Waits
from millrace.node.engine import Engine
from millrace.node.replicas.replication_group import ReplicationGroup

# An election is no reason to send clients elsewhere.
_PATIENCE_S = 3.0


class Readiness:
    """`waits_for` is empty while the node serves. `look` is called about four times a second."""

    def __init__(self, engine: Engine, events: EventLog) -> None:
        self._engine = engine
        self.waits = Waits(engine, events, self._majority, self._not_stored)
        """What somebody waits for here, also where the node serves."""
        self._unserved_since_s: dict[int, float] = {}
        self.is_started = False
        """Whether the node has begun to serve; set by it."""

    def look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        groups = self._engine.replicas.groups
        for number in (meta.META_GROUP, meta.SESSION_GROUP):
            if number not in groups or groups[number].is_serving:
                self._unserved_since_s.pop(number, None)
            else:
                self._unserved_since_s.setdefault(number, now_s)

    @property
    def is_removed(self) -> bool:
        return self._engine.cluster.removal.is_removed

    @property
    def is_serving(self) -> bool:
        """Whether requests are answered here at all."""
        return self.is_started and not self.is_removed

    @property
    def waits_for(self) -> str:
        if why := self._engine.cluster.removal.why:
            return why
        return self._after_start() if self.is_started else self._before_start()

    def answer(self) -> dict[str, Any]:
        """What a node that serves says: what its clients may wait for meanwhile."""
        is_settled = self._engine.cluster.is_settled() and not self._engine.backfill.lacking()
        return {"status": "ok", "waits": list(self.waits.sentences), "is_settled": is_settled}

    def _before_start(self) -> str:
        engine = self._engine
        for _, group in sorted(engine.replicas.groups.items()):
            if not group.is_serving:
                return engine.cluster.joining or self._majority(group)
        return engine.cluster.joining or "opening its logs"

    def _after_start(self) -> str:
        engine = self._engine
        members = engine.definitions.state.members.members
        mine = members.get(engine.replicas.replica)
        if mine is not None and mine.is_draining:
            undo = f"millrace node drain {mine.name} --undo"
            return f"this node is being drained; let it take part again with: {undo}"
        now_s = asyncio.get_running_loop().time()
        for number, since_s in sorted(self._unserved_since_s.items()):
            group = engine.replicas.groups.get(number)
            if group is not None and now_s - since_s >= _PATIENCE_S:
                return self._majority(group)
        return ""

    def _majority(self, group: ReplicationGroup) -> str:
        text = f"waiting for a majority of the nodes that keep group {group.number}"
        silent = self._silent(group)
        return f"{text}: {silent}" if silent else text

    def _not_stored(self, group: ReplicationGroup) -> str:
        """Why what was published here is not stored, as far as this node can tell."""
        leader = group.status().leader
        if leader is None or leader == group.replica:
            why = self._silent(group) or "the disks or the links of the nodes that keep it are slow"
            return f"what was published is not stored at as many nodes as it needs: {why}"
        links = self._engine.replicas.links
        is_heard = links is None or links.is_heard(leader)
        text = f"what was sent to its leader {self._name(leader)} is not stored yet"
        return text if is_heard else f"{text}: {self._name(leader)} does not answer"

    def _silent(self, group: ReplicationGroup) -> str:
        """Which of the others whose votes count do not answer; empty if all do."""
        links = self._engine.replicas.links
        voters = [voter for voter in group.status().config.voters if voter != group.replica]
        silent = [voter for voter in voters if links is None or not links.is_heard(voter)]
        names = ", ".join(sorted(map(self._name, silent)))
        return f"{names} {'does' if len(silent) == 1 else 'do'} not answer" if silent else ""

    def _name(self, replica: str) -> str:
        member = self._engine.definitions.state.members.members.get(replica)
        return member.name if member is not None else self._engine.cluster.address_of(replica) or replica[:8]
