"""Who is primary and who is backup of each primary-backup shard: a part of the meta group's state.

A record changes only against the version it was decided on, so that of two decisions made from the same state
one is void: "the backup is out of sync" and "the backup takes over" cannot both happen [rule 23].
"""

import msgspec
from msgspec.structs import replace

from millrace.errors import LocalError

PAIRS_TOPIC = "$SYS/pairs"
"""Where a node says of which shards it is primary, and under which epochs."""
QUORUM_MEMBERS = 3
"""A meta group of fewer cannot decide while one of a pair is away."""


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    epoch: int
    primary: str
    backup: str | None
    is_in_sync: bool
    """The backup holds whatever was acknowledged."""
    is_seized: bool = False
    """Recorded while nobody could record a change of it had one of the two been away: it may say "in sync" of
    a backup that was left behind since, and is no permission to take over."""
    check_interval_ms: int = 0
    """Of both nodes as long as the shard lives, whatever becomes of its stream: a lease by one interval is
    none to a node that promises by another. 0: as the stream says."""


class Pairs(msgspec.Struct):
    by_shard: dict[int, Pair] = {}

    def found(
        self, shard: int, replicas: tuple[str, ...], *, is_seized: bool = False, check_interval_ms: int = 0
    ) -> None:
        """A new shard: its logs are empty, so its backup lacks nothing."""
        backup = replicas[1] if len(replicas) > 1 else None
        primary = replicas[0] if replicas else ""
        self.by_shard[shard] = Pair(
            version=1,
            epoch=0,
            primary=primary,
            backup=backup,
            is_in_sync=True,
            is_seized=is_seized,
            check_interval_ms=check_interval_ms,
        )

    def forget(self, shard: int) -> None:
        self.by_shard.pop(shard, None)

    def report(self, shard: int, after: int, wanted: Pair, *, is_seized: bool) -> None:
        """What one of the two asks to record. LocalError says why not; then nothing has changed."""
        known = self._known(shard, after)
        if wanted.primary not in (known.primary, known.backup) or wanted.epoch < known.epoch:
            raise LocalError(f"shard {shard}: {wanted.primary} cannot be primary of epoch {wanted.epoch}")
        is_takeover = wanted.primary != known.primary
        if is_takeover and not is_seized and (known.is_seized or not known.is_in_sync):
            raise LocalError(f"shard {shard}: the backup is out of sync and cannot take over")
        if is_takeover and wanted.epoch == known.epoch:
            raise LocalError(f"shard {shard}: a takeover needs another epoch")
        other = known.primary if is_takeover else known.backup
        self.by_shard[shard] = replace(
            known,
            version=after + 1,
            epoch=wanted.epoch,
            primary=wanted.primary,
            backup=other,
            is_in_sync=wanted.is_in_sync and not is_takeover,
            is_seized=is_seized,
        )

    def replace_backup(self, shard: int, after: int, backup: str | None) -> None:
        """Another node is to be the backup; it has nothing yet."""
        known = self._known(shard, after)
        if backup == known.primary:
            raise LocalError(f"shard {shard}: the primary cannot be its own backup")
        self.by_shard[shard] = replace(known, version=after + 1, backup=backup, is_in_sync=False)

    def _known(self, shard: int, after: int) -> Pair:
        known = self.by_shard.get(shard)
        if known is None or known.version != after:
            raise LocalError(f"shard {shard}: the record of its pair has changed meanwhile")
        return known
