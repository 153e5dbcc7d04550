"""What time does: wills that are delayed, sessions that end, and the timers behind both."""

from itertools import islice

import pytest

from millrace.limits import SESSION_EXPIRY_S_NEVER
from millrace.reasons import Reason
from millrace.types import Message, Properties, Will
from millrace.wire.mqtt.packets import Pingreq, Publish
from unit.node.house import Client, House, will


def watched(house: House, filter: str = "w/#") -> Client:
    client = house.connect("watcher")
    client.subscribe(filter)
    return client


class TestWill:
    @pytest.mark.parametrize("v5", [False, True])
    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_published_when_the_connection_is_lost(self, v5: bool, qos: int) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", v5=v5, will=will("w/c", b"gone", qos=qos)).drop()
        (message,) = watcher.messages()
        assert (message.message.payload, message.message.qos) == (b"gone", qos)

    def test_not_published_after_a_goodbye_and_published_after_one_that_asks_for_it(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"1")).disconnect()
        assert watcher.read() == []
        house.connect("c", will=will("w/c", b"2")).disconnect(Reason.DISCONNECT_WITH_WILL)
        assert watcher.payloads() == [b"2"]

    def test_published_when_the_client_breaks_the_protocol_or_falls_silent(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"broken")).send_bytes(b"\x00\x00")
        assert watcher.payloads() == [b"broken"]
        house.connect("c", will=will("w/c", b"silent"), keep_alive_s=4)
        house.pass_s(6)
        assert watcher.read() == []
        house.pass_s(2)
        assert watcher.payloads() == [b"silent"]

    def test_retained_as_asked(self) -> None:
        house = House()
        house.connect("c", will=will("w/c", b"gone", retain=True)).drop()
        late = watched(house)
        assert [(m.message.payload, m.message.retain) for m in late.messages()] == [(b"gone", True)]

    def test_its_message_expiry_counts_from_its_publication(self) -> None:
        house = House()
        sleeper = house.connect("sleeper", resume=True)
        sleeper.subscribe("w/#")
        sleeper.drop()
        message = Message(topic="w/c", payload=b"gone", qos=1, properties=Properties(message_expiry_s=10))
        client = house.connect("c", will=Will(message=message))
        house.pass_s(60)
        client.drop()
        house.pass_s(4)
        (found,) = house.connect("sleeper", resume=True).messages()
        assert found.message.properties.message_expiry_s == 6

    def test_each_connection_has_its_own(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"first"), resume=True).disconnect()
        house.connect("c", resume=True).drop()
        assert watcher.read() == []

    def test_a_topic_beyond_the_limits_is_refused(self) -> None:
        """A will is a publish; what a PUBLISH may not do, it may not do either."""
        house = House(topic_levels_max=3, topic_bytes_max=64)
        for topic in ("a/b/c/d", "ü" * 40):
            client = house.open()
            client.connect("c", version=5, will=will(topic, b"", retain=True))
            assert client.connack.reason is Reason.TOPIC_NAME_INVALID
        client = house.connect("ok", will=will("a/b/c"))
        client.send(publish_of("ü" * 40))
        assert client.reason_of_close() is Reason.TOPIC_NAME_INVALID


def publish_of(topic: str) -> Publish:
    return Publish(message=Message(topic=topic))


class TestWillDelay:
    def test_published_after_the_delay(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"gone", delay_s=5), resume=True).drop()
        house.pass_s(4)
        assert watcher.read() == []
        house.pass_s(2)
        assert watcher.payloads() == [b"gone"]
        house.pass_s(100_000)
        assert watcher.read() == []

    def test_not_published_when_the_client_is_back_in_time(self) -> None:
        """[MQTT-3.1.3-9]."""
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"gone", delay_s=5), resume=True).drop()
        house.pass_s(4)
        house.connect("c", resume=True)
        house.pass_s(60)
        assert watcher.read() == []

    def test_published_when_the_session_ends_before(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"gone", delay_s=50), session_expiry_s=3).drop()
        house.pass_s(2)
        assert watcher.read() == []
        house.pass_s(2)
        assert watcher.payloads() == [b"gone"]
        house.pass_s(60)
        assert watcher.read() == []

    def test_published_at_once_when_the_client_comes_back_clean(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"gone", delay_s=50), resume=True).drop()
        house.connect("c")
        assert watcher.payloads() == [b"gone"]

    def test_without_a_session_to_wait_in_there_is_no_delay(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"gone", delay_s=50)).drop()
        assert watcher.payloads() == [b"gone"]


class TestTakeover:
    """The same client id again: the old connection ends, with reason where the version has one."""

    @pytest.mark.parametrize("v5", [False, True])
    def test_the_old_connection_is_told_and_closed(self, v5: bool) -> None:
        house = House()
        old = house.connect("c", v5=v5)
        house.connect("c")
        assert old.reason_of_close() is (Reason.SESSION_TAKEN_OVER if v5 else None)
        assert house.broker.connected == 1

    def test_a_will_without_delay_is_published(self) -> None:
        """[MQTT-3.1.4-3]."""
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"gone"), resume=True)
        house.connect("c", resume=True)
        assert watcher.payloads() == [b"gone"]

    def test_a_delayed_will_is_not(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"gone", delay_s=1), resume=True)
        house.connect("c", resume=True)
        house.pass_s(5)
        assert watcher.read() == []

    def test_a_delayed_will_is_when_the_new_one_starts_clean(self) -> None:
        house = House()
        watcher = watched(house)
        house.connect("c", will=will("w/c", b"gone", delay_s=1), resume=True)
        house.connect("c")
        assert watcher.payloads() == [b"gone"]

    def test_messages_move_to_the_new_connection(self) -> None:
        house = House()
        old = house.connect("c", resume=True)
        old.subscribe("t")
        house.connect("p").publish("t", b"x", qos=1)
        new = house.connect("c", resume=True)
        assert new.connack.session_present
        assert new.payloads() == [b"x"]
        house.connect("p").publish("t", b"y", qos=1)
        assert new.payloads() == [b"y"]

    def test_the_end_of_the_old_connection_does_not_touch_the_session(self) -> None:
        house = House()
        old = house.connect("c", resume=True)
        new = house.connect("c", resume=True)
        old.wire.lose()
        house.pass_s(1)
        assert house.broker.sessions["c"].connection is new.connection
        new.ping()

    def test_its_own_will_reaches_the_session_that_takes_over(self) -> None:
        house = House()
        old = house.connect("c", will=will("w/c", b"gone", qos=1), resume=True)
        old.subscribe("w/#")
        assert house.connect("c", resume=True).payloads() == [b"gone"]


class TestSessionExpiry:
    def test_a_session_ends_when_its_time_is_up_and_not_before(self) -> None:
        house = House()
        client = house.connect("c", session_expiry_s=10)
        client.subscribe("t", "$share/g/t")
        client.drop()
        house.pass_s(9)
        assert "c" in house.broker.sessions
        house.pass_s(2)
        assert "c" not in house.broker.sessions
        assert house.broker.subscription_count == 0
        assert not house.broker.router.index.match("t")

    def test_coming_back_stops_the_clock(self) -> None:
        house = House()
        house.connect("c", session_expiry_s=10).drop()
        house.pass_s(9)
        client = house.connect("c", clean_start=False, session_expiry_s=10)
        house.pass_s(30)
        assert client.connack.session_present and "c" in house.broker.sessions
        client.drop()
        house.pass_s(9)
        assert "c" in house.broker.sessions

    def test_a_goodbye_may_change_it(self) -> None:
        house = House()
        house.connect("c", session_expiry_s=10).disconnect(session_expiry_s=100)
        house.pass_s(50)
        assert "c" in house.broker.sessions
        house.connect("c", clean_start=False, session_expiry_s=10).disconnect(session_expiry_s=0)
        assert "c" not in house.broker.sessions

    def test_a_goodbye_may_not_give_a_time_to_a_session_that_had_none(self) -> None:
        house = House()
        client = house.connect("c", will=will("w/c"))
        client.disconnect(session_expiry_s=5)
        assert client.reason_of_close() is Reason.PROTOCOL_ERROR
        assert "c" not in house.broker.sessions

    def test_the_limit_of_the_broker_is_told(self) -> None:
        house = House(session_expiry_s_max=60)
        client = house.connect("c", session_expiry_s=SESSION_EXPIRY_S_NEVER)
        assert client.connack.session_expiry_s == 60
        client.drop()
        house.pass_s(61)
        assert "c" not in house.broker.sessions

    def test_never_means_never(self) -> None:
        house = House(session_expiry_s_max=SESSION_EXPIRY_S_NEVER)
        house.connect("c", session_expiry_s=SESSION_EXPIRY_S_NEVER).drop()
        assert house.broker.tick(house.now_ms + 10**12) is None
        assert "c" in house.broker.sessions


class TestTimers:
    def test_clients_that_come_and_go_leave_no_pile_of_timers(self) -> None:
        """A timer of an earlier life is due in a week; there must not be one for each reconnect since."""
        house = House()
        for _ in range(2_000):
            house.connect("c", resume=True, will=will("w", delay_s=1000)).drop()
        assert len(house.broker._timers) < 200

    def test_those_still_needed_are_kept(self) -> None:
        house = House()
        watcher = watched(house)
        for number in range(300):
            house.connect(f"s{number}", session_expiry_s=100, will=will(f"w/{number}", delay_s=50)).drop()
        for _ in range(2_000):
            house.connect("c", resume=True).drop()
        house.pass_s(51)
        assert len(watcher.messages()) == 300
        house.pass_s(50)
        assert len(house.broker.sessions) == 2

    def test_a_fault_at_one_end_leaves_the_others_due(self) -> None:
        house = House()
        for number in range(3):
            house.connect(f"s{number}", session_expiry_s=10).drop()
        ended = list(islice(house.broker._timers.due(house.now_ms + 10_000), 1))
        assert len(ended) == 1
        house.pass_s(11)
        left = [ended[0][0].client_id]
        assert list(house.broker.sessions) == left, "of whom the first look told in vain"

    @pytest.mark.parametrize(("expiry_s", "is_rounded"), [(3_599, False), (3_600, True), (86_400, True)])
    def test_long_expiries_end_together_and_never_early(self, expiry_s: int, is_rounded: bool) -> None:
        house = House()
        for number in range(5):
            house.connect(f"s{number}", session_expiry_s=expiry_s).drop()
            house.now_ms += 7
        first_ms = house.now_ms - 35 + expiry_s * 1000
        ends = {session.ends_ms for session in house.broker.sessions.values()}
        assert len(ends) <= 2 if is_rounded else len(ends) == 5
        assert all(first_ms <= end_ms <= house.now_ms + (expiry_s + 1) * 1000 for end_ms in ends if end_ms)

    def test_one_that_is_back_does_not_end(self) -> None:
        house = House()
        house.connect("c", session_expiry_s=100).drop()
        house.pass_s(99)
        client = house.connect("c", clean_start=False, session_expiry_s=100)
        house.pass_s(50)
        assert "c" in house.broker.sessions
        client.drop()
        house.pass_s(99)
        assert "c" in house.broker.sessions
        house.pass_s(2)
        assert "c" not in house.broker.sessions


class TestKeepAlive:
    def test_any_bytes_count_as_being_there(self) -> None:
        house = House()
        client = house.connect("c", keep_alive_s=10)
        for _ in range(10):
            house.pass_s(14)
            client.send(Pingreq())
        assert not client.is_closed
        house.pass_s(17)
        assert client.reason_of_close() is Reason.KEEP_ALIVE_TIMEOUT

    def test_zero_is_for_ever(self) -> None:
        house = House()
        client = house.connect("c", keep_alive_s=0)
        house.pass_s(3_000)
        assert not client.is_closed


def test_subscriptions_of_one_session_are_bounded() -> None:
    house = House(subscriptions_max=3)
    client = house.connect("c")
    answer = client.subscribe("a", "b", "c", "d")
    assert [reason.value for reason in answer.reasons] == [2, 2, 2, Reason.QUOTA_EXCEEDED]
    assert client.subscribe("a").reasons == (Reason.GRANTED_QOS_2,)
