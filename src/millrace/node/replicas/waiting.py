"""Waiting for replication groups: for a leader, for a majority that comes back, for all that was proposed."""

import asyncio
import logging

from millrace.errors import StorageError
from millrace.node.replicas.replication_group import ReplicationGroup

log = logging.getLogger("millrace.group")

_SERVING_TIMEOUT_S = 30.0
_PATIENCE_S = 5.0


async def serving(group: ReplicationGroup) -> None:
    """Wait until somebody leads the group; StorageError after a while."""
    try:
        await asyncio.wait_for(group.serving.wait(), _SERVING_TIMEOUT_S)
    except TimeoutError:
        raise StorageError(
            f"group {group.number} has no leader after {_SERVING_TIMEOUT_S:.0f} s: is a majority up?"
        ) from None


async def served(group: ReplicationGroup) -> None:
    """Wait until somebody leads the group. Nodes that were all down come back one after the other: the first
    ones wait for the others as long as it takes, and say so."""
    while not group.serving.is_set():
        try:
            await asyncio.wait_for(group.serving.wait(), _PATIENCE_S)
        except TimeoutError:
            log.warning("waiting for a majority of the nodes that keep group %d", group.number)


async def applied(group: ReplicationGroup, is_full: bool) -> None:
    """Wait a moment until everything that was proposed is applied; not on a full disk, where it never is."""
    for _ in range(100):
        status = group.status()
        if status.applied == status.last or is_full or not group.is_serving:
            return
        await asyncio.sleep(0.01)
