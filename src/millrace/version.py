"""The version of Millrace, and what its nodes understand of each other, said once.

A *level* counts what nodes say to each other and keep in their logs. A release that adds something which the
release before cannot read, or would keep in another form, raises it by one and names it as a `Feature`. Nodes
of neighbouring levels work together, so that a cluster can be upgraded one node at a time. The level of a
cluster is the lowest of its members; it only rises, and a feature is used from its level on
(`broker/meta/members.py`). How the files of a data directory look has a version of its own there
(`storage/directory.py`).
"""

from enum import IntEnum

__version__ = "0.1.0"

LEVEL = 4
"""What this release understands."""
LEVEL_MIN = LEVEL - 1
"""Of the oldest nodes that it works with."""
LEVEL_UNSAID = 3
"""Of a member whose node does not say it: level 4 was the first to be said."""


class Feature(IntEnum):
    """What nodes do only once all members understand it, by the level that brought it."""

    UNANSWERED_IN_RECORDS = 4
    """Records of sessions name what was sent and not answered. An older node would read such a record, and
    keep it without: copies of one state would differ."""
    HELD_GROUPS = 4
    """A node that takes a shared group over says that sessions held it all the while. An older node would not
    read that, and count what waited for the group as forgotten."""
    PIPELINES = 4
    """The meta group keeps pipelines. An older node cannot read entries on them, and would pass them over."""


assert all(feature <= LEVEL for feature in Feature), "what this release brings, it understands"
