"""Bounds by bytes: what few long topics, filters and names may hold in memory. Each refusal is counted."""

import pytest

from millrace.broker.limits_reached import LimitsReached
from millrace.broker.sessions import shares
from millrace.limits import SESSION_FILTER_BYTES_MAX
from millrace.reasons import Reason
from millrace.types import Version
from unit.node.house import House


def test_filters_of_many_levels_are_refused_before_they_fill_the_memory() -> None:
    house = House()
    client = house.connect("c")
    answers = []
    for number in range(600):
        filter = "/".join([f"{number}", *["x"] * 126])
        answers += client.subscribe(filter).reasons
    granted = sum(reason < 0x80 for reason in answers)
    assert 0 < granted < 600
    assert set(answers) == {Reason(2), Reason.QUOTA_EXCEEDED}
    session = house.broker.sessions["c"]
    assert session.filter_bytes <= SESSION_FILTER_BYTES_MAX
    assert house.broker.limits_reached.counts == {"session_filter_bytes": 600 - granted}
    client.unsubscribe(*session.subscriptions)
    assert (session.filter_bytes, house.broker.shares.total.filter_bytes) == (0, 0)
    assert client.subscribe("a").reasons == (Reason(2),)


def test_all_sessions_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "NODE_FILTER_BYTES_MAX", 1_000)
    house = House()
    reasons = [house.connect(f"c{n}").subscribe("a" * 400).reasons[0] for n in range(4)]
    assert reasons == [Reason(2), Reason(2), Reason.QUOTA_EXCEEDED, Reason.QUOTA_EXCEEDED]


def test_a_long_client_id_is_refused() -> None:
    house = House()
    client = house.open()
    client.connect("c" * 1_025, version=Version.MQTT_5)
    assert client.connack.reason is Reason.CLIENT_ID_NOT_VALID
    assert house.broker.limits_reached.counts == {"client_id_bytes": 1}


def test_news_are_told_once() -> None:
    reached = LimitsReached()
    assert reached.take_news() == {}
    for _ in range(3):
        reached.count("connections")
    reached.count("sessions")
    assert reached.take_news() == {"connections": 3, "sessions": 1}
    reached.count("sessions")
    assert reached.take_news() == {"sessions": 1}
    assert reached.counts == {"connections": 3, "sessions": 2}
