"""What a member of a shared group gives back to the others when it leaves or goes on at another node."""

from millrace.broker.groups.share_group import ShareGroup
from millrace.broker.messages.message import Segment
from millrace.broker.sessions.session import Session


def is_others_unless_noted(segment: Segment) -> bool:
    """Of a session that goes on at another node. The word that it has this QoS 2 message may be on its way:
    it comes too late, as the record is another's. Where nobody of the group is left here its log tells."""
    group = segment.group
    return isinstance(group, ShareGroup) and bool(group.members) and not segment.is_noted


def belongs_to_others(segment: Segment) -> bool:
    """Whether a member that leaves gives these messages back. A group that it left as the last one takes
    nothing any more: they stay with the session."""
    group = segment.group
    return (
        isinstance(group, ShareGroup) and bool(group.members) and (segment.qos == 1 or not segment.first_id)
    )


def is_left(session: Session, segment: Segment) -> bool:
    """Whether this is of a group that the session does not belong to any more."""
    return isinstance(segment.group, ShareGroup) and session not in segment.group.members
