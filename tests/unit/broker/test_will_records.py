"""A will is published under a token, and its record keeps it until it is stored."""

import pytest

from millrace.broker.entries.sessions import (
    Adopted,
    Ended,
    Opened,
    Operation,
    SavedWill,
    SessionBatch,
    WentAway,
    WillStored,
)
from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.sessions.session_store import SessionStore
from millrace.limits import DISPLACED_WILLS_MAX
from millrace.reasons import Reason
from millrace.types import Message, Version, Will
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connect
from unit.node.house import House
from unit.node.stand_ins import IntakesBy

LAST_WORD = Will(message=Message(topic="w", payload=b"x", qos=1))
WILL = SavedWill("w", b"", 1, True, False, 0, None)


def apply(store: SessionStore, *operations: Operation) -> None:
    store.apply(SessionBatch("n1", list(operations)))


def opened(expiry_s: int) -> tuple[SessionStore, int]:
    store = SessionStore()
    apply(store, Opened("a", False, None, expiry_s, WILL, "n1"))
    return store, store.records["a"].epoch


def test_a_session_that_ends_with_a_will_on_its_way_ends_when_it_is_stored() -> None:
    store, epoch = opened(0)
    apply(store, Ended("a", epoch, WILL))
    assert store.records["a"].will == WILL, "whoever looks after it now fires it again, under the same token"
    apply(store, WillStored("a", epoch))
    assert store.records == {}


def test_a_durable_session_loses_its_will_and_nothing_else_when_it_is_stored() -> None:
    store, epoch = opened(60)
    apply(store, WentAway("a", epoch, time_us=5, expiry_s=60, will=WILL), WillStored("a", epoch))
    assert store.records["a"].will is None
    assert store.records["a"].away_us == 5


def test_the_will_of_a_later_connection_stays() -> None:
    store, epoch = opened(60)
    apply(store, Opened("a", False, None, 60, WILL, "n1"), WillStored("a", epoch))
    assert store.records["a"].will == WILL


def house_with_a_log() -> tuple[House, Intake]:
    house = House(keeps_records=True)
    intake = Intake(16, False)
    # One that is there already: nobody waits for this log, it is looked at by hand.
    intake.arrivals = [Arrival(None, house.broker.router.route("u"), 0, None, None, b"")]
    house.broker.router.intakes = IntakesBy(lambda topic: intake)
    return house, intake


@pytest.mark.parametrize("resume", [False, True])
def test_a_retained_will_at_qos_0_is_logged_as_a_value(resume: bool) -> None:
    """Its stream captures what is acknowledged; a value to retain is logged at any QoS [rule 6]."""
    house, intake = house_with_a_log()
    will = Will(message=Message(topic="w", payload=b"x", qos=0, retain=True))
    house.connect("a", resume=resume, will=will).drop()
    note = intake.arrivals[-1]
    assert note.topic == "w" and note.is_retained_only
    assert house.broker.retained.get("w") is not None and house.broker.retained.logged("w") is None


def test_a_lost_client_s_will_has_the_token_of_its_connection_until_it_is_stored() -> None:
    house, intake = house_with_a_log()
    client = house.connect("a", resume=True, will=LAST_WORD)
    epoch = house.store.records["a"].epoch
    client.drop()
    arrival = intake.arrivals[-1]
    assert (arrival.producer, arrival.sequence, arrival.is_doubtful) == (b"will/a", epoch, True)
    assert house.store.records["a"].will is not None
    house.broker.inbound.committed([arrival], 16, 7, 0)
    house.is_awake = True
    house.turn()
    assert house.store.records["a"].will is None


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_will_that_its_log_could_not_take_is_fired_again_until_it_is_stored(is_kept: bool) -> None:
    """The disk was full: nobody else would fire it before the next start of the node."""
    house, intake = house_with_a_log()
    house.connect("a", resume=is_kept, will=LAST_WORD).drop()
    for _ in range(3):
        first = intake.arrivals.pop()
        house.broker.inbound.refused([first], Reason.QUOTA_EXCEEDED)
        house.pass_s(2)
        assert len(intake.arrivals) == 2
        again = intake.arrivals[-1]
        assert again.run is not None and again.is_doubtful
        assert (again.producer, again.sequence) == (first.producer, first.sequence)
    house.broker.inbound.committed([again], 16, 7, 0)
    intake.arrivals.pop()
    house.is_awake = True
    house.pass_s(2)
    assert len(intake.arrivals) == 1
    assert [record.will for record in house.store.records.values()] == [None] * is_kept


def test_a_refused_will_is_forgotten_when_its_client_is_back() -> None:
    house, intake = house_with_a_log()
    house.connect("a", resume=True, will=LAST_WORD).drop()
    house.broker.inbound.refused([intake.arrivals.pop()], Reason.QUOTA_EXCEEDED)
    house.connect("a", resume=True)
    house.pass_s(2)
    assert len(intake.arrivals) == 1


def displaced(store: SessionStore) -> list[tuple[int, str]]:
    return [(one.epoch, one.owner) for one in store.displaced_wills("a")]


def test_the_record_keeps_a_will_that_the_next_connection_displaces_until_it_is_stored() -> None:
    """Only the node that had the connection would publish it, and that may fall."""
    store, epoch = opened(0)
    apply(store, Opened("a", True, None, 0, None, "n2"))
    assert displaced(store) == [(epoch, "n1")] and store.owners == {"n1": 1, "n2": 1}
    again = SessionStore.from_bytes(store.to_bytes())
    assert displaced(again) == [(epoch, "n1")] and again.owners == store.owners
    apply(store, Adopted("n1", "n3", 5))
    assert displaced(store) == [(epoch, "n3")] and store.owners == {"n3": 1, "n2": 1}
    apply(store, WillStored("a", epoch))
    assert displaced(store) == [] and store.owners == {"n2": 1} and not store.displaced


@pytest.mark.parametrize(
    ("delay_s", "is_clean", "is_due"), [(0, False, True), (9, False, False), (9, True, True)]
)
def test_a_will_is_displaced_unless_its_session_goes_on_within_the_delay(
    delay_s: int, is_clean: bool, is_due: bool
) -> None:
    store = SessionStore()
    will = SavedWill("w", b"", 1, True, False, delay_s, None)
    apply(store, Opened("a", False, None, 60, will, "n1"), Opened("a", is_clean, None, 60, None, "n2"))
    assert bool(displaced(store)) is is_due


def test_displaced_wills_of_a_client_are_bounded() -> None:
    store, _ = opened(0)
    for _ in range(DISPLACED_WILLS_MAX + 3):
        apply(store, Opened("a", True, None, 0, WILL, "n1"))
    assert len(displaced(store)) == DISPLACED_WILLS_MAX
    assert store.owners == {"n1": DISPLACED_WILLS_MAX + 1}
    assert displaced(store)[-1][0] == store.records["a"].epoch - 1


def test_a_will_that_was_displaced_is_done_when_its_log_has_it() -> None:
    house, intake = house_with_a_log()
    house.connect("a", resume=True, will=LAST_WORD)
    epoch = house.store.records["a"].epoch
    # The next connection is gone by the time at which its record is written: it is not told anything.
    second = house.open()
    packet = Connect(client_id="a", version=Version.MQTT_5, clean_start=False, session_expiry_s=60)
    second.connection.data_received(encode(packet, Version.MQTT_5))
    second.wire.lose()
    house.turn()
    assert displaced(house.store) == [(epoch, "")]
    arrival = intake.arrivals[-1]
    assert (arrival.producer, arrival.sequence) == (b"will/a", epoch)
    house.broker.inbound.committed([arrival], 16, 7, 0)
    house.is_awake = True
    house.turn()
    assert displaced(house.store) == []
