"""Sessions whose state is written down: what is written for one life of a client is not done to the next."""

import pytest

from millrace.broker.entries.sessions import CursorsMoved, Opened, SavedCursor, WentAway
from millrace.broker.messages.intake import Intake
from millrace.broker.sessions.journal import ResumeConnection
from millrace.broker.sessions.session_store import SessionStore
from millrace.reasons import Reason
from millrace.types import Message, Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connack, Connect, Disconnect, Publish, Pubrec, Pubrel
from unit.node.house import Client, House, will
from unit.node.stand_ins import IntakesBy


def hello(client_id: str, **fields: object) -> bytes:
    return encode(Connect(version=Version.MQTT_5, client_id=client_id, **fields), 5)  # type: ignore[arg-type]


def begin(house: House, **fields: object) -> Client:
    """A CONNECT that the broker has read and whose record is not on disk yet."""
    client = house.open()
    client.version = Version.MQTT_5
    client.connection.data_received(hello("c", **fields))
    assert not client.wire.taken
    return client


CASES = {
    "a will, clean": {"will": will("w", b"gone")},
    "a will, not clean": {"will": will("w", b"gone"), "clean_start": False},
    "kept": {"session_expiry_s": 100, "clean_start": False},
    "kept, from a clean start": {"session_expiry_s": 100},
}


class TestSuccession:
    @pytest.mark.parametrize("second", CASES.values(), ids=CASES.keys())
    @pytest.mark.parametrize("first", CASES.values(), ids=CASES.keys())
    def test_the_old_connection_ends_while_the_new_one_is_written_down(
        self, first: dict[str, object], second: dict[str, object]
    ) -> None:
        """Both operations reach the disk together: the end of the one must not delete the other."""
        house = House(keeps_records=True)
        old = house.connect("c", **first)
        new = begin(house, **second)
        old.wire.lose()
        house.turn()
        assert isinstance(new.read()[0], Connack)
        record = house.store.records.get("c")
        assert record is not None and record.away_us is None
        new.ping()

    def test_it_takes_over_while_the_old_one_is_still_there(self) -> None:
        house = House(keeps_records=True)
        old = house.connect("c", will=will("w"))
        for _ in range(3):
            new = begin(house, will=will("w"))
            house.turn()
            assert old.is_closed and house.store.records["c"].away_us is None
            old = new
        old.disconnect()
        house.turn()
        assert not house.store.records and not house.broker.sessions

    def test_a_session_that_expires_meanwhile_is_taken_up_from_its_record(self) -> None:
        house = House(keeps_records=True)
        old = house.connect("c", session_expiry_s=5)
        old.subscribe("t")
        old.drop()
        new = begin(house, clean_start=False, session_expiry_s=5)
        house.now_ms += 10_000
        house.broker.tick(house.now_ms)
        house.turn()
        (answer,) = new.read()
        assert isinstance(answer, Connack)
        assert "c" in house.store.records
        new.ping()

    def test_a_session_that_is_kept_no_longer_leaves_no_record(self) -> None:
        """Taken up again by a connection with which it is to end: a restart must not find it."""
        house = House(keeps_records=True)
        house.connect("c", resume=True).drop()
        last = house.connect("c", clean_start=False)
        assert last.connack.session_present
        last.drop()
        house.turn()
        assert not house.broker.sessions and not house.store.records

    def test_a_client_that_goes_before_it_is_accepted_leaves_nothing(self) -> None:
        house = House(keeps_records=True)
        client = begin(house, will=will("w"))
        client.wire.lose()
        house.turn()
        assert not house.store.records and not house.broker.sessions and not house.broker.connected


class TestRecords:
    def test_a_snapshot_gives_the_same_records(self) -> None:
        house = House(keeps_records=True)
        for number in range(3):
            client = house.connect(f"c{number}", resume=True, will=will("w", b"x", delay_s=3))
            client.subscribe("a/#", "b")
            client.send(Publish(message=Message(topic="z", qos=2), packet_id=4))
        copy = SessionStore.from_bytes(house.store.to_bytes())
        assert copy.to_bytes() == house.store.to_bytes()
        client.drop()
        house.turn()
        assert copy.to_bytes() != house.store.to_bytes()

    def test_qos_2_from_a_client_is_finished_across_a_reconnect(self) -> None:
        house = House(keeps_records=True)
        client = house.connect("c", resume=True)
        witness = house.connect("w")
        witness.subscribe("t")
        publish = Publish(message=Message(topic="t", payload=b"1", qos=2), packet_id=4)
        client.send(publish)
        assert client.read() == [Pubrec(packet_id=4)]
        client.drop()
        back = house.connect("c", resume=True)
        back.send(Publish(message=publish.message, packet_id=4, dup=True), Pubrel(packet_id=4))
        assert witness.payloads() == [b"1"]

    def test_qos_2_on_its_way_to_the_disk_is_stored_though_the_session_is_kept_no_longer(self) -> None:
        """Its id counts as received, so the client's repeat is answered without the message."""
        house = House(keeps_records=True)
        intake = Intake(16, False)
        house.broker.router.intakes = IntakesBy(lambda topic: intake)
        flush, stored = house.door.flush, []

        def cut() -> None:
            arrivals, intake.arrivals, house.broker.inbound.waiting = intake.arrivals, [], []
            stored.extend(arrival.run.data[-1:] for arrival in arrivals if arrival.run is not None)
            flush()

        house.door.flush = cut  # type: ignore[method-assign]
        client = house.connect("c", resume=True)
        client.connection.data_received(
            encode(Publish(message=Message(topic="t", payload=b"x", qos=2), packet_id=5), 5)
        )
        client.wire.lose()
        house.connect("c", clean_start=False)
        assert stored == [b"x"]

    def test_the_expiry_given_with_disconnect_is_written_down(self) -> None:
        house = House(keeps_records=True)
        house.connect("c", session_expiry_s=10).disconnect(session_expiry_s=3600)
        assert house.store.records["c"].expiry_s == 3600

    def test_the_second_subscription_begins_where_the_logs_end_by_then(self) -> None:
        """One position serves all subscriptions of a session: after a crash the second would be sent what
        was there before it [rule 9]."""
        house = House(keeps_records=True)
        house.broker.log_ends[16] = 100
        client = house.connect("c", resume=True)
        client.subscribe("rare", qos=1)
        house.broker.log_ends[16] = 1_000
        client.subscribe("busy", qos=1)
        assert house.store.records["c"].cursors == {16: SavedCursor(1_000)}

    def test_who_has_unsubscribed_from_everything_wants_nothing_of_the_logs(self) -> None:
        house = House(keeps_records=True)
        house.broker.log_ends[16] = 100
        client = house.connect("c", resume=True)
        client.subscribe("t", qos=1)
        client.unsubscribe("t")
        assert house.store.records["c"].cursors == {}
        house.broker.log_ends[16] = 1_000
        client.subscribe("t", qos=1)
        assert house.store.records["c"].cursors == {16: SavedCursor(1_000)}


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES.keys())
def test_of_two_connections_in_one_turn_the_second_stays_with_its_record(fields: dict[str, object]) -> None:
    house = House(keeps_records=True)
    first, second = begin(house, **fields), begin(house, **fields)
    house.turn()
    assert first.is_closed and second.take(Connack)[0].reason is Reason.SUCCESS
    second.subscribe("t")
    assert list(house.store.records["c"].subscriptions) == ["t"]


class TestGoodbye:
    """Nobody waits for the word that a client is away, so it takes no write of its own [rule 39]."""

    def leave(self, house: House, client: Client) -> None:
        client.connection.data_received(encode(Disconnect(), client.version))

    def test_it_is_written_with_the_next_operation(self) -> None:
        house = House(keeps_records=True)
        self.leave(house, house.connect("c", session_expiry_s=100, clean_start=False))
        journal = house.broker.journal
        assert not journal.is_due and not house.broker.has_work
        assert [type(operation) for operation in journal.operations] == [WentAway]
        begin(house, session_expiry_s=100, clean_start=False)
        assert journal.is_due and [type(one) for one in journal.operations] == [WentAway, Opened]

    def test_it_is_written_with_the_next_checkpoint(self) -> None:
        house = House(keeps_records=True)
        self.leave(house, house.connect("c", session_expiry_s=100, clean_start=False))
        house.broker.checkpoint()
        assert house.broker.journal.is_due and house.broker.has_work

    def test_whoever_adds_nothing_does_not_wait_for_it(self) -> None:
        house = House(keeps_records=True)
        self.leave(house, house.connect("c", session_expiry_s=100, clean_start=False))
        assert not house.broker.journal.after(ResumeConnection(None, None))

    def test_one_that_takes_back_a_will_is_written_at_once(self) -> None:
        """Else a crash within the next moment would publish it."""
        house = House(keeps_records=True)
        self.leave(house, house.connect("c", session_expiry_s=100, clean_start=False, will=will("w")))
        assert house.broker.journal.is_due

    def test_cursors_that_moved_are_written_at_once(self) -> None:
        """A client that goes on at another node is not sent again what it acknowledged [rule 8]."""
        house = House(keeps_records=True)
        client = house.connect("c", session_expiry_s=100, clean_start=False)
        session = house.broker.sessions["c"]
        house.broker.log_ends[16] = 1_000
        session.add_cursors((16,))
        house.broker.touched[session] = None
        self.leave(house, client)
        assert house.broker.journal.is_due
        assert [type(one) for one in house.broker.journal.operations] == [CursorsMoved, WentAway]
