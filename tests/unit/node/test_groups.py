"""When a durable group goes by itself."""

from millrace.broker.consumer import Consumers, Cursor
from millrace.node.groups import GROUP_EXPIRY_US, is_idle

NOW_US = 10 * GROUP_EXPIRY_US


def asked(age_us: int) -> Cursor:
    return Cursor(0, used_us=NOW_US - age_us)


def test_a_group_is_idle_when_nobody_asked_in_any_shard_for_seven_days() -> None:
    assert is_idle([asked(GROUP_EXPIRY_US + 1), asked(GROUP_EXPIRY_US + 2)], NOW_US)
    assert not is_idle([asked(GROUP_EXPIRY_US + 1), asked(0)], NOW_US)
    assert not is_idle([asked(GROUP_EXPIRY_US)], NOW_US)


def test_a_group_without_a_cursor_was_only_just_made() -> None:
    assert not is_idle([], NOW_US)


def test_asking_an_empty_group_counts() -> None:
    consumers = Consumers()
    consumers.apply({"now_us": 1, "do": [["create", 1, 0, [0, 10]]]})
    consumers.apply({"now_us": NOW_US, "do": [["touch", 1]]})
    assert not is_idle(list(consumers.cursors.values()), NOW_US + GROUP_EXPIRY_US)
