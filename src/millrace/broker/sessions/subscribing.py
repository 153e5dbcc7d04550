"""Subscriptions of which nothing special is to be said, many at a time: a packet may ask for a thousand."""

from collections.abc import Sequence
from typing import Any

from millrace.broker.sessions.session import Session
from millrace.broker.topics.subscription_index import LEVEL_BYTES, SubscriptionIndex
from millrace.limits import Limits
from millrace.reasons import Reason
from millrace.types import Subscription

Subscribed = list[tuple[Subscription, Reason, bool]]
"""Subscriptions that were asked for, what became of each, and whether it is new."""

# By QoS; a look-up by value costs an enumeration more than all the rest of an answer.
QOS_GRANTED = (Reason.SUCCESS, Reason.GRANTED_QOS_1, Reason.GRANTED_QOS_2)


def add_plain(
    session: Session,
    subscriptions: Sequence[Subscription],
    index: SubscriptionIndex[Session, Any],
    limits: Limits,
    room: tuple[int, int],
) -> tuple[Subscribed, int]:
    """Add the first of these, as far as they are new to the session, not shared and not of `$` topics, and
    within all bounds: `room` is how many there may be, and their weight. The session may have any topic. The
    caller counts and weighs them, and sees to the others."""
    count_left, bytes_left = room
    known, bytes_max, levels_max = session.subscriptions, limits.topic_bytes_max, limits.topic_levels_max
    results: Subscribed = []
    total = 0
    for asked in subscriptions[:count_left]:
        filter = asked.filter
        if filter[0] == "$" or filter in known or not filter.isascii():
            break
        size, levels = len(filter), filter.count("/")
        # Its `weight_of`.
        total += size + LEVEL_BYTES * (levels + 1)
        if total > bytes_left or size > bytes_max or levels >= levels_max:
            total -= size + LEVEL_BYTES * (levels + 1)
            break
        holder = session.holder(asked)
        known[filter] = holder.options
        is_added = index.add(filter, holder)
        assert is_added, "the index has what sessions have"
        results.append((asked, QOS_GRANTED[asked.qos], True))
    return results, total
