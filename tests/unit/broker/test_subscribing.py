"""A packet with many filters: those that are common are added together, and no rule is passed over by it."""

from typing import Any

import pytest

from millrace.reasons import Reason
from millrace.types import RetainHandling, Subscription
from unit.node.house import House


def asked(*filters: str, **options: Any) -> list[Subscription]:
    return [Subscription(filter=filter, **options) for filter in filters]


def reasons(house: House, client: str, subscriptions: list[Subscription]) -> list[tuple[str, Reason, bool]]:
    results = house.broker.subscribe_all(house.broker.sessions[client], subscriptions)
    return [(one.filter, reason, is_new) for one, reason, is_new in results]


class TestManyAtOnce:
    def test_answers_come_in_the_order_of_the_filters_whatever_is_between_them(self) -> None:
        """A shared filter, one of a `$` topic, one that is there already and one that is asked for twice."""
        house = House()
        house.connect("c")
        assert reasons(house, "c", asked("old")) == [("old", Reason.SUCCESS, True)]
        filters = ("a", "old", "b/+", "$share/g/w", "$SYS/x", "a", "é", "c/#")
        found = reasons(house, "c", asked(*filters, qos=1))
        assert [filter for filter, _, _ in found] == list(filters)
        assert [is_new for _, _, is_new in found] == [True, False, True, True, True, False, True, True]
        assert {reason for _, reason, _ in found} == {Reason.GRANTED_QOS_1}
        assert set(house.broker.sessions["c"].subscriptions) == {*filters}

    def test_counts_and_weights_are_those_of_one_after_the_other(self) -> None:
        filters = ("a", "b/+", "c/d/#", "$share/g/w", "x" * 50)
        together, singly = House(), House()
        for house in (together, singly):
            house.connect("c")
        reasons(together, "c", asked(*filters))
        for filter in filters:
            reasons(singly, "c", asked(filter))
        one, other = together.broker.sessions["c"], singly.broker.sessions["c"]
        assert one.filter_bytes == other.filter_bytes > 0
        assert together.broker.subscription_count == singly.broker.subscription_count == len(filters)
        assert together.broker.shares.total.filter_bytes == singly.broker.shares.total.filter_bytes

    @pytest.mark.parametrize("there", [0, 1, 2, 3])
    def test_no_more_than_the_bound_however_many_there_are(self, there: int) -> None:
        house = House(subscriptions_max=3)
        house.connect("c")
        reasons(house, "c", asked(*(f"old/{number}" for number in range(there))))
        found = reasons(house, "c", asked(*(f"new/{number}" for number in range(5))))
        granted = [reason is Reason.SUCCESS for _, reason, _ in found]
        assert granted == [True] * (3 - there) + [False] * (2 + there)
        assert len(house.broker.sessions["c"].subscriptions) == 3

    def test_a_filter_with_too_many_levels_is_refused_and_those_behind_it_are_not(self) -> None:
        house = House(topic_levels_max=3)
        house.connect("c")
        found = reasons(house, "c", asked("a", "a/b/c/d", "b"))
        assert [reason for _, reason, _ in found] == [
            Reason.SUCCESS,
            Reason.TOPIC_FILTER_INVALID,
            Reason.SUCCESS,
        ]

    def test_options_are_shared_and_told_apart(self) -> None:
        house = House()
        for name in ("c", "d"):
            house.connect(name)
            reasons(house, name, asked("a", "b", qos=1) + asked("e", qos=1, no_local=True))
            reasons(house, name, asked("f", qos=1, retain_handling=RetainHandling.DO_NOT_SEND))
        own = house.broker.sessions["c"].subscriptions
        assert own["a"] is own["b"] is house.broker.sessions["d"].subscriptions["a"]
        assert own["e"].no_local and not own["a"].no_local
        assert own["f"].retain_handling is RetainHandling.DO_NOT_SEND
