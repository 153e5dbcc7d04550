"""A node that was removed from the cluster learns of it, and members tell it [rule 36].

Its own log of the meta group may never say so: the others stop sending to it as soon as the removal is
committed, and while it was cut off it heard nothing at all. Therefore every member remembers who was removed
and tells a removed node that has a link with it. Where a group still counts on the vote of the removed node,
the two stay linked; otherwise they part for good."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millrace.errors import ConfigError
from millrace.node.peers.messages import Removed
from millrace.node.replicas.replicas import Replicas
from millrace.node.streams.definitions import Definitions

_WHY = (
    "this node was removed from the cluster; its clients are sent to other nodes. Stop it; to bring it back, "
    "start it with an empty directory and --join"
)


class Removal:
    """`is_removed` never becomes false again: a replica that was removed does not come back."""

    def __init__(self, replicas: Replicas, definitions: Definitions) -> None:
        self._replicas = replicas
        self._definitions = definitions
        self.is_removed = False
        self._told: tuple[str, ...] = ()
        self.on_removed: Callable[[], None] = _nobody_to_tell
        """Called once, when this node learns that it was removed. Set by the node."""
        self._released = asyncio.Event()
        self.released_by: set[str] = set()
        """Members that need no link to this node any more."""
        replicas.messenger.on((Removed,), self._on_removed)

    @property
    def why(self) -> str:
        """For people: why this node does not serve; empty for a member."""
        return _WHY if self.is_removed else ""

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Where clients find the other nodes, by MQTT."""
        return self._told or self._others()

    def _others(self) -> tuple[str, ...]:
        mine = self._replicas.replica
        members = self._definitions.state.members.members
        return tuple(member.mqtt for replica, member in members.items() if member.mqtt and replica != mine)

    async def unless_released(self, starting: Coroutine[Any, Any, None]) -> None:
        """Do what makes this node serve. ConfigError where it was removed meanwhile or before: it would wait
        for leaders of whom it will not hear. One whose vote is still needed goes on: the others may need it
        to let it go."""
        tasks = asyncio.ensure_future(starting), asyncio.ensure_future(self._released.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise ConfigError(self.why)
            tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def look(self, counted: set[str]) -> None:
        """Learn from the state of the meta group here whether this node was removed; tell others that were.
        `counted` are the nodes on whose votes the groups here count."""
        members = self._definitions.state.members
        if self._replicas.replica in members.removed:
            self._learn(())
        links = self._replicas.links
        if links is None or self.is_removed:
            return
        for replica in links.peers():
            if replica in members.removed:
                mine = members.members[self._replicas.replica].mqtt
                elsewhere = (*((mine,) if mine else ()), *self._others())
                self._replicas.messenger.send(replica, Removed(elsewhere, replica in counted))

    def _on_removed(self, replica: str, number: int, told: Removed) -> None:
        self._learn(told.elsewhere)
        if told.is_needed:
            self.released_by.discard(replica)
        else:
            self.released_by.add(replica)
            self._released.set()

    def _learn(self, told: tuple[str, ...]) -> None:
        self._told = self._told or told
        if not self.is_removed:
            self.is_removed = True
            self.on_removed()


def _nobody_to_tell() -> None:
    """A node without clients."""
