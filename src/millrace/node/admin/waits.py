"""What somebody waits for at this node: every wait of more than a second has a sentence with its reason, in
`/readyz`, in the status, in the dashboard, and once among the events, which are lines of the log.

A wait is known by its subject and a mark. It lasts while both stay the same: a group that stores one block
after another, however slowly, is at work and not stuck.
"""

import asyncio
from collections.abc import Callable, Iterator

from millrace.broker.meta import state as meta
from millrace.node.admin.events import EventLog
from millrace.node.engine import Engine
from millrace.node.replicas.replication_group import ReplicationGroup

_WAIT_S_MIN = 1.0
_DISK = "disk: write"
# A subject that waits again and again is told of once in so long.
_TOLD_EVERY_S = 60.0

Wait = tuple[str, int, str]
"""Its subject, its mark, and the sentence."""


class Waits:
    """`look` is called about once a second."""

    def __init__(
        self,
        engine: Engine,
        events: EventLog,
        majority: Callable[[ReplicationGroup], str],
        not_stored: Callable[[ReplicationGroup], str],
    ) -> None:
        """`majority`: the sentence on a group that nobody leads; `not_stored`: on one that somebody leads,
        and that does not store what was published here."""
        self._engine = engine
        self._events = events
        self._majority = majority
        self._not_stored = not_stored
        # Subject -> mark, and since when.
        self._since_s: dict[str, tuple[int, float]] = {}
        self._told_s: dict[str, float] = {}
        self.sentences: tuple[str, ...] = ()
        """What waits now, groups by their numbers first."""

    def look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        before, self._since_s = self._since_s, {}
        found: list[str] = []
        for subject, mark, sentence in self._waiting():
            known = before.get(subject)
            since_s = known[1] if known is not None and known[0] == mark else now_s
            self._since_s[subject] = mark, since_s
            if now_s - since_s >= _WAIT_S_MIN:
                found.append(sentence)
                self._tell(subject, sentence, now_s)
        self.sentences = tuple(found)
        longest_s = self._engine.replicas.syncer.take_longest_s()
        if longest_s >= _WAIT_S_MIN:
            # The event loop may have stood still with it, and could not say so meanwhile.
            self._tell(_DISK, f"the disk of this node took {longest_s:.1f} s for one write", now_s)
        for subject in [one for one, at_s in self._told_s.items() if now_s - at_s >= _TOLD_EVERY_S]:
            del self._told_s[subject]

    def _tell(self, subject: str, text: str, now_s: float) -> None:
        if subject not in self._told_s:
            self._events.record("node", "warning", text)
        # While it lasts nothing more is said of it.
        self._told_s[subject] = now_s

    def _waiting(self) -> Iterator[Wait]:
        engine = self._engine
        for number, group in sorted(engine.replicas.groups.items()):
            subject = _subject(number)
            if not group.is_serving:
                yield f"{subject}: no leader", 0, f"{subject}: {self._majority(group)}"
            elif group.oldest_pending:
                text = f"{subject}: {self._not_stored(group)}"
                yield f"{subject}: not stored", group.oldest_pending, text
            if damages := group.replica_log.log.damages:
                text = f"{subject}: damaged parts are fetched from other nodes, and who reads them waits"
                yield f"{subject}: damaged", len(damages), text
        for number in engine.backfill.lacking():
            first = engine.replicas.groups[number].replica_log.log.first_offset
            text = f"shard {number}: messages before offset {first} are fetched from other nodes"
            yield f"shard {number}: before", 0, text
        for number, stream in sorted(engine.leaderless.streams.items()):
            if stream.oldest_unanswered:
                text = f"shard {number}: messages wait until as many nodes have them as `ack` says"
                yield f"shard {number}: ack", stream.oldest_unanswered, text
        for number in sorted(engine.edges.unavailable):
            text = f"shard {number}: its edge function cannot be run here; the log of the node says why"
            yield f"shard {number}: edge", 0, text
        syncer = engine.replicas.syncer
        if syncer.under_way and not syncer.is_full:
            text = "the disk of this node does not finish a write, and what needs it waits"
            yield _DISK, syncer.under_way, text
        if engine.space.is_refusing:
            yield "disk", 0, "the disk is full: what is published to logs is refused"


def _subject(number: int) -> str:
    if number == meta.META_GROUP:
        return "definitions"
    return "sessions" if number == meta.SESSION_GROUP else f"shard {number}"
