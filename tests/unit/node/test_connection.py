"""One client connection: input in pieces, errors, authentication, deadlines, a peer that does not read."""

from random import Random

import pytest

from millrace.broker.entries.sessions import Ended
from millrace.node.access.identity import Identity, Proof
from millrace.node.config import Mqtt
from millrace.reasons import Reason
from millrace.types import Message, Subscription, Version
from millrace.wire.mqtt.codec import encode, encode_publish
from millrace.wire.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Unsubscribe,
)
from unit.node.house import Client, House, Wire, will


def subscribe(*filters: str, qos: int = 1, packet_id: int = 1) -> Subscribe:
    return Subscribe(
        packet_id=packet_id, subscriptions=tuple(Subscription(filter=f, qos=qos) for f in filters)
    )


def conversation(version: Version) -> bytes:
    """A whole life: every packet that a client sends, small and large, some in runs."""
    packets: list[Packet] = [
        Connect(version=version, client_id="c", will=will("w", b"gone")),
        subscribe("a/#", "b", qos=2),
        *(Publish(message=Message(topic="a/1", payload=b"%d" % n)) for n in range(5)),
        *(Publish(message=Message(topic="a/2", payload=b"q1", qos=1), packet_id=n) for n in range(1, 5)),
        Publish(message=Message(topic="b", payload=b"x" * 20_000, qos=2), packet_id=9),
        Publish(message=Message(topic="b", payload=b"x" * 20_000, qos=2), packet_id=9, dup=True),
        Publish(message=Message(topic="b", payload=b"kept", qos=1, retain=True), packet_id=10),
        *(Puback(packet_id=n) for n in range(1, 5)),
        Pubrec(packet_id=5),
        Puback(packet_id=6),
        Unsubscribe(packet_id=11, filters=("b", "none")),
        Pingreq(),
        Publish(message=Message(topic="a/1", payload=b"last")),
        Disconnect(),
    ]
    return b"".join(encode(packet, version) for packet in packets)


def replies(data: bytes, cuts: list[int]) -> bytes:
    house = House()
    client = house.open()
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        client.send_bytes(data[start:end])
    assert client.is_closed
    return bytes(client.wire.taken)


class TestInput:
    @pytest.mark.parametrize("version", [Version.MQTT_3_1_1, Version.MQTT_5])
    def test_pieces_do_not_matter(self, version: Version) -> None:
        """Whole, byte by byte at the start, and cut at random: the same answers in the same order."""
        data = conversation(version)
        whole = sorted(split_packets(replies(data, []), version), key=repr)
        assert len(whole) > 20
        for seed in range(12):
            random = Random(seed)
            cuts = sorted(random.sample(range(1, len(data)), random.randint(1, 40)))
            if seed < 2:
                cuts = sorted({*range(1, 200), *cuts})
            assert sorted(split_packets(replies(data, cuts), version), key=repr) == whole, seed

    def test_a_large_packet_in_small_pieces_is_taken_whole(self) -> None:
        house = House()
        client = house.connect("c")
        client.subscribe("t", qos=0)
        payload = Random(1).randbytes(1_000_000)
        data = encode_publish(b"t", payload, 0x30, 0, b"\0")
        for start in range(0, len(data), 1448):
            client.send_bytes(data[start : start + 1448])
        assert client.payloads() == [payload]

    def test_one_write_for_everything_of_a_turn(self) -> None:
        house = House()
        subscriber, publisher = house.connect("s"), house.connect("p")
        subscriber.subscribe("#", qos=1)
        before = subscriber.wire.writes
        publisher.send(*(Publish(message=Message(topic=f"t/{n}", qos=1), packet_id=n) for n in range(1, 50)))
        assert subscriber.wire.writes == before + 1
        assert len(subscriber.messages()) == 49

    def test_a_packet_at_the_bound_is_taken_and_one_byte_more_is_not(self) -> None:
        house = House(packet_bytes_max=4096)
        for size, taken in ((4096 - 7, True), (4096 - 6, False)):
            client = house.connect("c")
            client.subscribe("t")
            client.send_bytes(encode_publish(b"t", b"x" * size, 0x30, 0, b"\0"))
            if taken:
                assert len(client.payloads()[0]) == size
            else:
                assert client.reason_of_close() is Reason.PACKET_TOO_LARGE

    def test_a_packet_that_will_be_too_large_is_refused_at_its_header(self) -> None:
        house = House(packet_bytes_max=4096)
        client = house.connect("c")
        client.send_bytes(b"\x30\xff\xff\xff\x7f")
        assert client.reason_of_close() is Reason.PACKET_TOO_LARGE

    def test_lengths_that_are_too_long_are_written_anew(self) -> None:
        """[MQTT-1.5.5-1]: what a lenient reader takes, a strict one must still be able to read."""
        house = House()
        subscriber, publisher = house.connect("s", v5=False), house.connect("p", v5=False)
        subscriber.subscribe("t", qos=0)
        for _ in range(3):
            publisher.send_bytes(b"\x30\x84\x00\x00\x01tx")
        assert bytes(subscriber.wire.taken) == b"\x30\x04\x00\x01tx" * 3


def split_packets(data: bytes, version: Version) -> list[Packet]:
    house = House()
    reader = house.open()
    reader.version = version
    reader.wire.taken += data
    return reader.read()


# Each is illegal wherever it stands, in every version.
ILLEGAL = {
    "type 0": b"\x00\x00",
    "length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "PUBLISH with QoS 3": b"\x36\x05\x00\x01t\x00\x01",
    "PUBLISH QoS 0 with DUP": b"\x38\x03\x00\x01t",
    "PUBLISH with a wildcard": b"\x30\x03\x00\x01#",
    "PUBLISH with packet id 0": b"\x32\x05\x00\x01t\x00\x00",
    "PUBLISH without its topic": b"\x30\x01\x00",
    "PUBLISH with a topic that is not UTF-8": b"\x30\x04\x00\x02\xc3\x28",
    "PUBLISH with NUL in its topic": b"\x30\x03\x00\x01\x00",
    "SUBSCRIBE with wrong flags": b"\x80\x06\x00\x01\x00\x01t\x00",
    "SUBSCRIBE without a filter": b"\x82\x02\x00\x01",
    "SUBSCRIBE with packet id 0": b"\x82\x06\x00\x00\x00\x01t\x00",
    "UNSUBSCRIBE without a filter": b"\xa2\x02\x00\x01",
    "PUBREL with wrong flags": b"\x60\x02\x00\x01",
    "PUBACK cut short": b"\x40\x01\x00",
    "PINGREQ with a body": b"\xc0\x01\x00",
    "CONNACK from a client": b"\x20\x02\x00\x00",
    "SUBACK from a client": b"\x90\x03\x00\x01\x00",
    "PINGRESP from a client": b"\xd0\x00",
}


class TestIllegal:
    @pytest.mark.parametrize("v5", [False, True])
    @pytest.mark.parametrize("data", ILLEGAL.values(), ids=ILLEGAL.keys())
    def test_ends_this_connection_with_a_reason_and_touches_no_other(self, data: bytes, v5: bool) -> None:
        house = House()
        witness = house.connect("witness")
        witness.subscribe("#")
        client = house.connect("c", v5=v5, will=will("w", b"gone"))
        client.send_bytes(data)
        reason = client.reason_of_close()
        assert reason is None if not v5 else reason in (Reason.MALFORMED_PACKET, Reason.PROTOCOL_ERROR)
        assert witness.payloads() == [b"gone"]
        witness.ping()
        assert house.broker.connected == 1
        assert house.broker.stats.protocol_errors == 1

    @pytest.mark.parametrize("data", [*ILLEGAL.values(), encode(Pingreq(), 4), encode(subscribe("t"), 4)])
    def test_before_connect_ends_the_connection_without_a_word(self, data: bytes) -> None:
        """[MQTT-3.1.0-1]."""
        house = House()
        client = house.open()
        client.send_bytes(data)
        assert client.is_closed and not client.wire.taken

    def test_a_second_connect_ends_the_connection(self) -> None:
        """[MQTT-3.1.0-2]."""
        house = House()
        client = house.connect("c")
        client.send(Connect(version=Version.MQTT_5, client_id="c"))
        assert client.reason_of_close() is Reason.PROTOCOL_ERROR

    def test_nothing_after_the_error_is_looked_at(self) -> None:
        house = House()
        witness, client = house.connect("witness"), house.connect("c")
        witness.subscribe("#")
        publish = encode_publish(b"t", b"x", 0x30, 0, b"\0")
        client.send_bytes(publish + b"\x00\x00" + publish * 3)
        assert witness.payloads() == [b"x"]

    def test_what_was_answered_before_the_error_still_arrives(self) -> None:
        house = House()
        client = house.connect("c")
        client.send_bytes(encode(Pingreq(), 5) + b"\x00\x00")
        assert [type(packet) for packet in client.read()] == [Pingresp, Disconnect]

    def test_the_reason_is_left_out_where_the_client_has_no_room_for_it(self) -> None:
        """[MQTT-3.14.2-3], also for a connection whose session another one took over."""
        house = House()
        client = house.connect("c", packet_bytes_max=30)
        client.send_bytes(b"\x00\x00")
        assert len(client.wire.taken) <= 30
        assert client.read() == [Disconnect(reason=Reason.MALFORMED_PACKET)]
        old = house.connect("d", packet_bytes_max=30, resume=True)
        house.connect("d", resume=True)
        assert old.read() == [Disconnect(reason=Reason.SESSION_TAKEN_OVER)]

    def test_an_alias_that_was_never_set_ends_the_connection(self) -> None:
        house = House()
        client = house.connect("c")
        client.send_bytes(b"\x30\x06\x00\x00\x03\x23\x00\x01")
        assert client.is_closed
        other = house.connect("d")
        other.send_bytes(b"\x30\x07\x00\x01t\x03\x23\xff\xff")
        assert other.reason_of_close() is Reason.TOPIC_ALIAS_INVALID


class TestRandom:
    """No bytes may raise inside the broker, keep a session half open, or reach another client's stream."""

    @pytest.mark.parametrize("seed", range(4))
    def test_random_bytes_and_damaged_conversations(self, seed: int) -> None:
        random = Random(seed)
        house = House()
        witness = house.connect("witness")
        good = [conversation(version) for version in (Version.MQTT_3_1_1, Version.MQTT_5)]
        good = [data.replace(b"x" * 20_000, b"x" * 20) for data in good]
        for _ in range(250):
            client = house.open()
            data = bytearray(random.choice(good))
            for _ in range(random.randint(0, 3)):
                at = random.randrange(len(data))
                data[at : at + random.randint(0, 2)] = random.randbytes(random.randint(0, 2))
            if random.random() < 0.2:
                data = bytearray(random.randbytes(random.randint(1, 60)))
            cut = random.randint(0, len(data))
            for piece in (bytes(data[:cut]), bytes(data[cut:])):
                if client.wire.is_reading:
                    client.send_bytes(piece)
            client.wire.lose()
            house.turn()
        witness.ping()
        assert witness.read() == []
        assert house.broker.connected == 1 and list(house.door.connections) == [witness.connection]

    @pytest.mark.parametrize("seed", range(4))
    def test_random_packets_after_connect(self, seed: int) -> None:
        """Packets with a right head and any body, which go further than bytes without form."""
        random = Random(1000 + seed)
        house = House()
        witness = house.connect("witness")
        for _ in range(600):
            client = house.connect(
                f"c{random.randint(0, 20)}", v5=random.random() < 0.7, resume=random.random() < 0.5
            )
            for _ in range(10):
                if client.is_closed or not client.wire.is_reading:
                    break
                body = random.choice(
                    (
                        random.randbytes(random.randint(0, 12)),
                        b"\x00\x01t" + random.randbytes(3),
                        b"\x00\x01\x00\x01#\x02",
                    )
                )
                first = random.choice(
                    (0x30, 0x31, 0x32, 0x34, 0x3A, 0x40, 0x50, 0x62, 0x70, 0x82, 0xA2, 0xC0, 0xE0, 0xF0)
                )
                client.send_bytes(bytes((first, len(body))) + body)
            if random.random() < 0.7:
                client.wire.lose()
                house.turn()
        witness.ping()
        sessions = house.broker.sessions.values()
        assert house.broker.connected == sum(session.connection is not None for session in sessions)
        assert house.broker.subscription_count == sum(len(session.subscriptions) for session in sessions)


class TestConnect:
    def test_no_more_clients_than_allowed(self) -> None:
        house = House(connections_max=2, sessions_max=3)
        for name in "ab":
            house.connect(name, resume=True)
        late = house.open()
        late.connect("c", version=5)
        assert late.connack.reason is Reason.QUOTA_EXCEEDED and late.is_closed
        assert house.broker.stats.clients_refused == 1

    def test_no_more_sessions_than_allowed_but_those_there_may_come_back(self) -> None:
        house = House(connections_max=2, sessions_max=2)
        for name in "ab":
            house.connect(name, resume=True).drop()
        late = house.open()
        late.connect("c", version=5)
        assert late.connack.reason is Reason.QUOTA_EXCEEDED
        assert house.connect("a", resume=True).connack.session_present

    def test_an_id_is_given_where_none_came_and_told(self) -> None:
        house = House()
        client = house.open()
        client.connect("", version=5)
        assigned = client.connack.assigned_client_id
        assert assigned is not None and assigned in house.broker.sessions
        old = house.open()
        old.connect("", version=4, clean_start=False)
        assert old.connack.reason is Reason.CLIENT_ID_NOT_VALID

    def test_a_long_id_is_refused(self) -> None:
        house = House(client_id_bytes_max=23)
        client = house.open()
        client.connect("ü" * 12, version=5)
        assert client.connack.reason is Reason.CLIENT_ID_NOT_VALID

    def test_retained_messages_may_be_off(self) -> None:
        house = House(settings=Mqtt(retain=False))
        client = house.connect("c")
        assert client.connack.retain_available is False
        client.send(Publish(message=Message(topic="t", payload=b"x", retain=True)))
        assert client.reason_of_close() is Reason.RETAIN_NOT_SUPPORTED
        other = house.open()
        other.connect("d", version=5, will=will("w", b"", retain=True))
        assert other.connack.reason is Reason.RETAIN_NOT_SUPPORTED


class TestDeadlines:
    def test_a_connect_that_trickles_in_is_not_waited_for(self) -> None:
        """Bytes that do not make a CONNECT buy no time."""
        house = House(connect_deadline_ms=10_000)
        client = house.open()
        data = encode(Connect(version=Version.MQTT_5, client_id="c" * 100), 5)
        for number in range(20):
            if client.is_closed:
                break
            client.send_bytes(data[number : number + 1])
            house.pass_s(1)
        assert client.is_closed and number <= 12

    def test_a_silent_connection_is_closed(self) -> None:
        house = House(connect_deadline_ms=10_000)
        client = house.open()
        house.pass_s(9)
        assert not client.is_closed
        house.pass_s(3)
        assert client.is_closed

    def test_after_connect_the_deadline_is_the_keep_alive(self) -> None:
        house = House(connect_deadline_ms=10_000)
        client = house.connect("c", keep_alive_s=60)
        house.pass_s(80)
        assert not client.is_closed

    def test_a_peer_that_does_not_take_its_last_bytes_is_cut_off(self) -> None:
        """Otherwise a closed connection would hold its buffer for as long as the peer likes."""
        house = House()
        client = house.connect("c")
        client.wire.stall()
        client.send_bytes(b"\x00\x00")
        assert client.is_closed and client.wire.held
        house.pass_s(3)
        assert not client.wire.is_aborted
        house.pass_s(5)
        assert client.wire.is_aborted
        assert client.connection not in house.door.connections

    def test_the_same_after_a_refusal_and_after_a_goodbye(self) -> None:
        house = House()
        refused, leaving = house.open(), house.connect("c")
        refused.wire.stall()
        refused.connect("x", version=5, username="u", password=b"wrong")
        leaving.wire.stall()
        leaving.send(subscribe("t"))
        leaving.send(Disconnect())
        house.pass_s(10)
        assert refused.wire.is_aborted and leaving.wire.is_gone
        assert not house.door.connections


class TestAuthentication:
    def test_what_follows_connect_waits_for_the_answer(self) -> None:
        house = House()
        house.decides_later = True
        witness = house.open()
        witness.send(Connect(version=Version.MQTT_5, client_id="w"))
        house.undecided.pop()(True)
        house.turn()
        witness.version = Version.MQTT_5
        witness.subscribe("#")
        client = house.open()
        client.version = Version.MQTT_5
        publish = Publish(message=Message(topic="t", payload=b"early", qos=1), packet_id=1)
        client.send(Connect(version=Version.MQTT_5, client_id="c"), publish, publish)
        assert not client.wire.taken and not client.wire.is_reading
        assert witness.messages() == []
        house.undecided.pop()(True)
        house.turn()
        assert [type(packet) for packet in client.read()] == [Connack, Puback, Puback]
        assert len(witness.messages()) == 2
        assert client.wire.is_reading

    def test_a_refusal_says_so_and_drops_what_followed(self) -> None:
        house = House()
        witness = house.connect("w")
        witness.subscribe("#")
        client = house.open()
        client.version = Version.MQTT_5
        client.send(
            Connect(version=Version.MQTT_5, client_id="c", username="u", password=b"wrong"),
            Publish(message=Message(topic="t")),
        )
        (answer,) = client.read()
        assert isinstance(answer, Connack) and answer.reason is Reason.BAD_USER_OR_PASSWORD
        assert client.is_closed and witness.read() == []

    def test_an_answer_for_a_client_that_is_gone_changes_nothing(self) -> None:
        house = House()
        house.decides_later = True
        client = house.open()
        client.send(Connect(version=Version.MQTT_5, client_id="c"))
        client.drop()
        house.undecided.pop()(True)
        house.turn()
        assert house.broker.sessions == {} and house.broker.connected == 0

    def test_a_client_that_hangs_up_is_noticed_and_its_login_given_up(self) -> None:
        """Reading goes on while the password is checked: a loop that does not read sees no end either."""
        house = House()
        house.decides_later = True
        client = house.open()
        client.send(Connect(version=Version.MQTT_5, client_id="c", username="ann", password=b"x"))
        assert client.wire.is_reading
        waiting = Waiting()
        client.wire.protocol.login = waiting
        client.drop()
        assert waiting.is_cancelled

    def test_a_login_for_which_there_is_no_room_is_told_so(self) -> None:
        for version, code in ((Version.MQTT_5, Reason.SERVER_BUSY), (Version.MQTT_3_1_1, None)):
            house = House()
            house.decides_later = True
            client = house.open()
            client.version = version
            client.send(Connect(version=version, client_id="c", username="ann", password=b"x"))
            house.undecided.pop()(False, is_busy=True)  # type: ignore[call-arg]
            house.turn()
            (answer,) = client.read()
            assert isinstance(answer, Connack) and answer.reason >= Reason.UNSPECIFIED
            assert code is None or answer.reason is code

    def test_a_refusal_of_a_client_that_hung_up_is_no_error_of_anybody(self) -> None:
        """It may be refused because another one takes its place, in the midst of what that one sends."""

        class Gone(Wire):
            def can_write_eof(self) -> bool:
                return True

            def write_eof(self) -> None:
                raise OSError(107, "Transport endpoint is not connected")

        house = House()
        house.decides_later = True
        client = house.open()
        client.send(Connect(version=Version.MQTT_5, client_id="c", username="ann", password=b"x"))
        gone = Gone(1_000)
        client.wire.protocol.transport = gone
        house.undecided.pop()(False)
        assert gone.is_closing

    def test_rules_that_change_while_a_record_is_written_hold_from_the_beginning(self) -> None:
        house = House(keeps_records=True)
        client = house.open()
        client.version = Version.MQTT_5
        client.wire.protocol.data_received(
            encode(Connect(version=Version.MQTT_5, client_id="c", session_expiry_s=9), Version.MQTT_5)
        )
        house.broker.reload(house.broker.rules.successor((), has_users=True))
        house.turn()
        assert house.broker.sessions["c"].principal.generation == house.broker.rules.generation
        client.send(Publish(message=Message(topic="t", payload=b"x", qos=1), packet_id=1))
        assert [p.reason for p in client.read() if isinstance(p, Puback)] == [Reason.NOT_AUTHORIZED]


class Waiting:
    is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Riddle:
    """An authentication method: two questions, then the name."""

    def __init__(self, peer: object) -> None:
        self.steps = 0

    def step(self, client_id: str, data: bytes | None) -> tuple[bool | None, bytes | None, Identity | None]:
        self.steps += 1
        if data == b"wrong":
            return False, None, None
        if self.steps < 3:
            return None, b"question %d" % self.steps, None
        return True, b"welcome", Identity(username="sphinx", proof=Proof.PASSWORD)


def riddle(data: bytes | None = b"first") -> Connect:
    return Connect(
        version=Version.MQTT_5, client_id="c", authentication_method="riddle", authentication_data=data
    )


def auth(data: bytes, reason: Reason = Reason.CONTINUE_AUTHENTICATION, method: str = "riddle") -> Auth:
    return Auth(reason=reason, authentication_method=method, authentication_data=data)


class TestEnhancedAuthentication:
    def open(self) -> tuple[House, Client]:
        house = House(methods={"riddle": Riddle})
        client = house.open()
        client.version = Version.MQTT_5
        return house, client

    def test_the_exchange_ends_in_a_connack_with_the_last_word(self) -> None:
        _, client = self.open()
        client.send(riddle())
        client.send(auth(b"second"))
        questions = [packet.authentication_data for packet in client.take(Auth)]
        client.send(auth(b"third"))
        (answer,) = client.read()
        assert questions == [b"question 1", b"question 2"]
        assert isinstance(answer, Connack)
        assert (answer.reason, answer.authentication_data) == (Reason.SUCCESS, b"welcome")
        assert client.connection.username == "sphinx"
        client.ping()

    def test_a_wrong_answer_ends_it(self) -> None:
        house, client = self.open()
        client.send(riddle(b"wrong"))
        assert client.take(Connack)[0].reason is Reason.NOT_AUTHORIZED
        assert client.is_closed and not house.broker.sessions

    def test_an_unknown_method_is_refused(self) -> None:
        house = House()
        client = house.open()
        client.version = Version.MQTT_5
        client.send(riddle())
        assert client.take(Connack)[0].reason is Reason.BAD_AUTHENTICATION_METHOD

    @pytest.mark.parametrize(
        "packet",
        [
            Publish(message=Message(topic="t")),
            subscribe("t"),
            Pingreq(),
            Connect(version=Version.MQTT_5, client_id="c"),
            auth(b"", method="other"),
            auth(b"", reason=Reason.REAUTHENTICATE),
            auth(b"", reason=Reason.SUCCESS),
        ],
        ids=lambda packet: type(packet).__name__,
    )
    def test_anything_else_meanwhile_ends_the_connection(self, packet: Packet) -> None:
        """[MQTT-3.1.2-30]: nothing but AUTH and DISCONNECT before CONNACK."""
        house, client = self.open()
        client.send(riddle())
        client.send(packet)
        assert client.is_closed and not house.broker.sessions
        assert not any(answer.reason is Reason.SUCCESS for answer in client.take(Connack))

    def test_again_on_a_live_connection(self) -> None:
        _, client = self.open()
        client.send(riddle())
        client.send(auth(b"second"))
        client.send(auth(b"third"))
        client.read()
        client.send(auth(b"again", reason=Reason.REAUTHENTICATE))
        client.send(auth(b"second"))
        client.send(auth(b"third"))
        assert [packet.reason for packet in client.take(Auth)][-1] is Reason.SUCCESS
        client.send(auth(b"wrong", reason=Reason.REAUTHENTICATE))
        assert client.reason_of_close() is Reason.NOT_AUTHORIZED

    def test_auth_on_a_connection_without_a_method_ends_it(self) -> None:
        house = House(methods={"riddle": Riddle})
        client = house.connect("c")
        client.send(auth(b"", reason=Reason.REAUTHENTICATE))
        assert client.reason_of_close() is Reason.PROTOCOL_ERROR


SMALL = {"output_buffer_bytes_max": 65_536, "packet_bytes_max": 8_192, "queued_bytes_max": 65_536}


class TestPeerThatDoesNotRead:
    def flooded(self, qos: int) -> tuple[House, Client, Client, Client]:
        house = House(**SMALL)
        deaf, witness, publisher = house.connect("deaf"), house.connect("witness"), house.connect("p")
        for client in (deaf, witness):
            client.subscribe("t", qos=qos)
        deaf.wire.stall()
        for number in range(200):
            publisher.publish("t", b"%04d" % number + b"x" * 2_000, qos=qos)
        return house, deaf, witness, publisher

    def test_qos_0_is_dropped_and_counted_for_it_alone(self) -> None:
        house, deaf, witness, _ = self.flooded(0)
        assert len(witness.messages()) == 200
        assert len(deaf.wire.held) < 65_536 + 8_192
        assert house.broker.sessions["deaf"].dropped == house.broker.stats.dropped_qos0 > 100
        deaf.wire.flow()
        house.turn()
        numbers = [int(payload[:4]) for payload in deaf.payloads()]
        assert numbers == list(range(len(numbers))), "what it got is whole and in order"

    def test_qos_1_waits_bounded_and_goes_on_in_order(self) -> None:
        house, deaf, witness, publisher = self.flooded(1)
        assert len(witness.messages()) == 200
        session = house.broker.sessions["deaf"]
        assert len(deaf.wire.held) < 65_536 + 8_192 and session.queued_bytes <= 65_536
        deaf.wire.flow()
        house.turn()
        numbers = [int(payload[:4]) for payload in deaf.payloads()]
        assert numbers == list(range(len(numbers))) and len(numbers) + session.dropped == 200
        publisher.publish("t", b"9999", qos=1)
        assert deaf.payloads() == [b"9999"]

    def test_it_is_not_read_while_it_does_not_read(self) -> None:
        """A publisher that leaves its acknowledgements lying must not make the broker keep them all."""
        house = House(**SMALL)
        client = house.connect("c", v5=False)
        chunk = b"".join(encode_publish(b"t", b"", 0x32, n, b"") for n in range(1, 5_001))
        client.wire.stall()
        chunks = 0
        while client.wire.is_reading:
            client.send_bytes(chunk)
            chunks += 1
            assert chunks < 100
        assert len(client.wire.held) < 65_536 + 4 * 5_000
        client.wire.flow()
        house.turn()
        assert client.wire.is_reading
        assert len(client.take(Puback)) == chunks * 5_000

    def test_a_waiting_peer_that_falls_silent_is_closed_and_cut_off(self) -> None:
        house, deaf, _, _ = self.flooded(0)
        house.connect("deaf", keep_alive_s=5).wire.stall()
        house.pass_s(30)
        assert deaf.wire.is_aborted
        assert house.broker.sessions.keys() == {"witness", "p"}


class TestFairness:
    def test_a_chunk_of_subscribes_is_handled_one_by_one_between_the_turns_of_others(self) -> None:
        """A SUBSCRIBE costs what is kept here, not what it takes to ask: others are served between two."""
        house = House()
        greedy, other = house.connect("greedy"), house.connect("other")
        turns: list[int] = []
        flush = house.door.flush

        def counted() -> None:
            flush()
            turns.append(len(house.broker.sessions["greedy"].subscriptions))

        house.door.flush = counted  # type: ignore[method-assign]
        greedy.send(*(subscribe(f"a/{n}", packet_id=n) for n in range(1, 21)), Pingreq())
        assert turns == sorted(turns) and len(turns) >= 20
        answers = greedy.read()
        assert [type(packet) for packet in answers] == [Suback] * 20 + [Pingresp]
        assert [packet.packet_id for packet in answers[:20]] == list(range(1, 21))  # type: ignore[union-attr]
        assert greedy.wire.is_reading
        other.ping()

    def test_one_that_waits_for_the_logs_is_not_read_because_it_reads_again(self) -> None:
        """What it sends would be kept in memory until they catch up."""
        house = House()
        client = house.connect("c")
        client.connection._park()
        house.broker.inbound.uncommitted_bytes = 1 << 30
        client.connection._block()
        client.connection._unblock()
        assert not client.wire.is_reading
        house.broker.inbound.uncommitted_bytes = 0
        client.connection.unpark()
        assert client.wire.is_reading

    def test_a_client_that_leaves_in_between_is_forgotten(self) -> None:
        house = House()
        greedy = house.connect("greedy", resume=True)
        data = b"".join(encode(subscribe(f"a/{n}", packet_id=n), 5) for n in range(1, 21))
        greedy.connection.data_received(data)
        greedy.wire.lose()
        house.turn()
        assert len(house.broker.sessions["greedy"].subscriptions) <= 2
        back = house.connect("greedy", resume=True)
        back.ping()

    def test_what_arrives_meanwhile_keeps_its_place(self) -> None:
        house = House()
        client = house.connect("c")
        client.connection.data_received(
            encode(subscribe("a"), 5) + encode(subscribe("b", packet_id=2), 5)[:5]
        )
        client.connection.data_received(encode(subscribe("b", packet_id=2), 5)[5:])
        client.connection.data_received(encode(Pingreq(), 5))
        house.turn()
        assert [type(packet) for packet in client.read()] == [Suback, Suback, Pingresp]


class TestLogsBehind:
    """[rule 1]: for QoS 1 and 2 beyond a bound the socket is not read."""

    def test_one_turn_takes_a_bounded_number_of_messages(self) -> None:
        house = House()
        greedy, other = house.connect("greedy", v5=False), house.connect("other")
        greedy.publish("t", b"", qos=1)
        chunk = b"".join(encode_publish(b"t", b"", 0x32, n, b"") for n in range(1, 12_001))
        greedy.connection.data_received(chunk)
        assert not greedy.wire.is_reading
        greedy.connection.data_received(chunk)
        other.connection.data_received(encode(Pingreq(), 5))
        house.door.flush()
        assert other.wire.taken == b"\xd0\x00"
        house.turn()
        assert greedy.wire.is_reading
        assert len(greedy.take(Puback)) == 24_000

    def test_a_publisher_is_not_read_while_the_log_is_behind(self) -> None:
        house = House()
        publisher, reader = house.connect("p", keep_alive_s=5), house.connect("r", keep_alive_s=0)
        reader.subscribe("t")
        publish = Publish(message=Message(topic="t", payload=b"x", qos=1), packet_id=1)
        house.broker.inbound.uncommitted_bytes += 1 << 30
        publisher.send(publish)
        assert not publisher.wire.is_reading
        # It was read before the loop heard that it should not be.
        publisher.connection.data_received(encode(publish, 5))
        reader.ping()
        house.pass_s(60)
        assert not publisher.is_closed, "it was us who did not listen"
        assert len(publisher.take(Puback)) == 1
        house.broker.inbound.uncommitted_bytes -= 1 << 30
        house.pass_s(1)
        assert publisher.wire.is_reading
        assert len(publisher.take(Puback)) == 1
        house.pass_s(6)
        assert not publisher.is_closed
        house.pass_s(6)
        assert publisher.reason_of_close() is Reason.KEEP_ALIVE_TIMEOUT

    def test_what_is_published_at_qos_0_goes_on(self) -> None:
        house = House()
        publisher, reader = house.connect("p"), house.connect("r")
        reader.subscribe("t")
        house.broker.inbound.uncommitted_bytes += 1 << 30
        for _ in range(3):
            publisher.publish("t", b"x")
        assert reader.payloads() == [b"x"] * 3


def test_a_clean_session_does_not_wait_for_the_records_of_others() -> None:
    """[rule 7]. Where the majority is out of reach they are not written, perhaps for long."""
    house = House(keeps_records=True)
    client = house.connect("clean")
    house.broker.journal.add(Ended("another", 1))
    for packet_id, filter in ((1, "a"), (2, "$share/g/a")):
        client.connection.data_received(encode(subscribe(filter, packet_id=packet_id), client.version))
        house.door.flush()
        assert [packet.packet_id for packet in client.take(Suback)] == [packet_id]
