"""Who has been silent, and since when. What follows from it concerns sessions and work, never membership."""

import asyncio
from collections.abc import Callable, Iterable

from millrace.node.replicas.replicas import Replicas

# Silence after which a member is no longer suspect but unreachable, and others look after its sessions.
_UNREACHABLE_S = 5.0


class Silence:
    """The nodes that this one does not hear."""

    def __init__(self, replicas: Replicas, watched: Callable[[], Iterable[str]]) -> None:
        self._replicas = replicas
        self._watched = watched
        self.since_s: dict[str, float] = {}
        """Since when each silent node was not heard."""

    def look(self) -> set[str]:
        """Ask the links who is there; returns those that are unreachable by now."""
        now_s = asyncio.get_running_loop().time()
        links = self._replicas.links
        watched = dict.fromkeys(self._watched())
        for replica in self.since_s.keys() - watched.keys():
            del self.since_s[replica]
        for replica in watched:
            if replica == self._replicas.replica or (links is not None and links.is_heard(replica)):
                self.since_s.pop(replica, None)
            else:
                self.since_s.setdefault(replica, now_s)
        return self.unreachable()

    def unreachable(self) -> set[str]:
        """Members that have been silent for so long that nobody waits for them."""
        now_s = asyncio.get_running_loop().time()
        return {r for r, since_s in self.since_s.items() if now_s - since_s >= _UNREACHABLE_S}

    def silent_s(self, replica: str) -> float:
        """How long this node has not heard that one."""
        since_s = self.since_s.get(replica)
        return 0.0 if since_s is None else asyncio.get_running_loop().time() - since_s

    def word_for(self, replica: str) -> str | None:
        """How a silent node is called; None for one that is heard."""
        if replica not in self.since_s:
            return None
        return "suspect" if self.silent_s(replica) < _UNREACHABLE_S else "unreachable"
