"""Retention: what a shard's log may forget, decided by its leader as an entry of the log [rule 18].

Two steps. An entry `trim` moves the offset at which the log begins, for every reader at once. A segment that
lies below it goes once a snapshot covers it, because until then a restart needs its entries; the files are
removed by whoever writes the log, one segment at a time. Whole segments only, and never the one that is being
written: so segments are smaller where the policy is small beside their usual size, or end early by age.

The groups without messages, the meta group and that of the sessions, are their state: of their logs only what
came since a snapshot is kept.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from millrace.broker.entries.shard import Marker
from millrace.broker.streams.stream import Retention as Policy
from millrace.errors import StorageError
from millrace.storage.log import SEGMENT_BYTES, SegmentInfo

if TYPE_CHECKING:
    from millrace.node.replicas.replication_group import ReplicationGroup
    from millrace.node.shards.shard import Shard

log = logging.getLogger("millrace.retention")

# In so many segments at least a stream keeps what its policy lets it keep.
_PARTS = 4
# Below this a segment is not worth its files, however little the policy keeps.
_SHARE_BYTES_MIN = 64 * 1024
# A log that stays as it is is looked at this often all the same.
_LOOK_US_MAX = 60_000_000
# Of a group without messages so much is applied again by a restart, at most.
_STATE_SEGMENT_BYTES = 8 * 1024 * 1024


def trim_offset(segments: Sequence[SegmentInfo], policy: Policy, now_us: int) -> int:
    """The offset below which the policy lets everything go."""
    offset = int(segments[0].first_offset)
    total = sum(segment.size_bytes for segment in segments)
    active = segments[-1]
    for segment in segments:
        is_old = bool(policy.age_s) and segment.last_time_us < now_us - policy.age_s * 1_000_000
        left = total - segment.size_bytes
        # One from before the policy, or with one very large message, does not take all with it.
        is_enough = left >= policy.bytes_max // 2
        is_much = bool(policy.bytes_max) and total > policy.bytes_max and is_enough and segment is not active
        if not is_old and not is_much:
            break
        total = left
        offset = int(segment.next_offset)
    return offset


def kept_from(offset: int, hard_offset: int, held_offset: int | None) -> int:
    """Where the log begins if the policy lets go of everything below `offset`, and of what is below
    `hard_offset` whoever holds it [rule 18]."""
    return offset if held_offset is None else max(hard_offset, min(offset, held_offset))


def unwanted(segments: Sequence[SegmentInfo], start_offset: int) -> list[SegmentInfo]:
    """The oldest segments that may go, where the messages below `start_offset` may.

    A log loses its beginning with messages that it lost, or while it holds none: from then on a replica with
    an empty disk begins from the newest snapshot, and fetches every message before that. A beginning without
    messages, such as what writers staged and released later, is no reason for it."""
    *older, active = segments
    if active.next_offset <= max(start_offset, segments[0].first_offset):
        return older
    return list(takewhile(lambda segment: 0 < start_offset >= segment.next_offset, older))


def segment_share(policy: Policy) -> int:
    """The size at which a segment ends, so that the policy can be kept with whole segments."""
    return max(policy.bytes_max // _PARTS, _SHARE_BYTES_MIN) if policy.bytes_max else SEGMENT_BYTES


def is_to_end(active: SegmentInfo, policy: Policy, now_us: int, start_offset: int) -> bool:
    """Whether the segment that is being written should get no further entry: it covers its share of the time
    that the policy keeps, or all that it holds may go. One that holds no message stays."""
    if active.next_offset == active.first_offset:
        return False
    age_us = (now_us - active.first_time_us) * _PARTS
    is_old = bool(policy.age_s) and age_us > policy.age_s * 1_000_000
    return is_old or start_offset >= active.next_offset


class Retention:
    def __init__(
        self,
        shards: "Mapping[int, Shard]",
        wall_us: Callable[[], int],
        held_from: "Callable[[Shard], int | None]",
        state_groups: "Callable[[], list[ReplicationGroup]]",
    ) -> None:
        """`held_from`: the first offset that somebody holds. `state_groups`: those without messages."""
        self._shards = shards
        self._wall_us = wall_us
        self._held_from = held_from
        self._state_groups = state_groups
        # Of shards of which nothing could go: how they were then, and until when that stays so.
        self._quiet: dict[int, tuple[object, ...]] = {}
        self._until_us: dict[int, int] = {}

    @staticmethod
    def set_share(shard: "Shard") -> None:
        """Also when a shard is opened: much can come before the first tick."""
        shard.group.replica_log.log.segment_share = segment_share(shard.stream.spec.retention)

    def tick(self) -> None:
        """Called about once a second."""
        now_us = self._wall_us()
        for number, shard in list(self._shards.items()):
            scene = _scene(shard)
            if self._quiet.get(number) == scene and now_us < self._until_us[number]:
                continue
            self._quiet.pop(number, None)
            try:
                if not self._tick(shard):
                    self._quiet[number] = scene
                    self._until_us[number] = _next_us(shard, now_us)
            except StorageError as error:
                log.error("shard %d cannot be trimmed: %s", shard.number, error)
        for group in self._state_groups():
            try:
                _keep_state(group)
            except StorageError as error:
                log.error("the log of group %d cannot be trimmed: %s", group.number, error)

    def _tick(self, shard: "Shard") -> bool:
        """Whether something goes, or may go soon."""
        replica_log, group = shard.group.replica_log, shard.group
        segments = replica_log.log.segments()
        is_leader = group.is_leader
        active, policy = segments[-1], shard.stream.spec.retention
        self.set_share(shard)
        if is_to_end(active, policy, self._wall_us(), shard.start_offset):
            replica_log.log.ends_segment = True
            if is_leader and shard.start_offset >= active.next_offset:
                # The next one begins with the next write; this is one.
                shard.propose_entries([Marker()])
        offset = trim_offset(segments, policy, self._wall_us())
        is_due = is_leader and offset > shard.first_offset
        if is_due:
            hard_offset = trim_offset(segments, policy.hard, self._wall_us())
            held_offset = self._held_from(shard)
            if held_offset is not None and held_offset < hard_offset:
                log.warning(
                    "shard %d of %s: a group is at %d and loses what is below %d",
                    *(shard.number, shard.stream.spec.name, held_offset, hard_offset),
                )
            offset = kept_from(offset, hard_offset, held_offset)
        if is_leader and offset > shard.first_offset:
            log.info("shard %d of %s: below %d goes", shard.number, shard.stream.spec.name, offset)
            shard.trim(offset)
            return True
        older = [] if replica_log.is_filling else unwanted(segments, shard.start_offset)
        older = list(takewhile(lambda segment: not shard.staging.holds(segment.last_index), older))
        if _let_go(group, older) and is_leader:
            # The files go with the next write; this is one.
            shard.propose_entries([Marker()])
        # What is due and stays is held by somebody.
        return is_due or bool(older) or replica_log.log.ends_segment


def _scene(shard: "Shard") -> tuple[object, ...]:
    """All but the time that decides what may go of a log, while there is nothing that somebody holds."""
    log = shard.group.replica_log.log
    policy = shard.stream.spec.retention
    return log, log.last_index, log.first_index, shard.start_offset, shard.group.is_leader, policy


def _next_us(shard: "Shard", now_us: int) -> int:
    """When time alone may change what is decided of a log that stays as it is."""
    segments = shard.group.replica_log.log.segments()
    latest_us = now_us + _LOOK_US_MAX
    age_us = shard.stream.spec.retention.age_s * 1_000_000
    if not age_us or segments[0].first_offset == segments[-1].next_offset:
        return latest_us
    first_us, last_us = segments[-1].first_time_us, segments[0].last_time_us
    return min(latest_us, first_us + age_us // _PARTS, last_us + age_us)


def _keep_state(group: "ReplicationGroup") -> None:
    *older, active = group.replica_log.log.segments()
    if active.size_bytes > _STATE_SEGMENT_BYTES:
        group.replica_log.log.ends_segment = True
    _let_go(group, older)


def _let_go(group: "ReplicationGroup", segments: Sequence[SegmentInfo]) -> bool:
    """Let the oldest segments of a log go, once a snapshot covers them; True: with the next write."""
    if not segments:
        return False
    replica_log, last = group.replica_log, segments[-1].last_index
    snapshot = replica_log.snapshot()
    if snapshot is None or snapshot.index < last:
        group.begin_snapshot()
    elif replica_log.trim_to < last:
        replica_log.trim_to = last
        return True
    return False
