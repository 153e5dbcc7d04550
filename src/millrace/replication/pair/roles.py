"""The roles of a replica of a pair, and which may follow which."""

from enum import Enum


class PairRole(Enum):
    BACKUP = "backup"
    """Also a replica that belongs to no pair and only looks on."""
    PRIMARY = "primary"


TRANSITIONS: dict[PairRole, frozenset[PairRole]] = {
    PairRole.BACKUP: frozenset({PairRole.BACKUP, PairRole.PRIMARY}),
    PairRole.PRIMARY: frozenset({PairRole.BACKUP}),
}
"""A primary that needs another epoch is a backup in between."""
