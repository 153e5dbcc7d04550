"""Messages that no log holds move with their session: packed, carried as JSON, sent again as they were."""

import pytest

from millrace.broker.messages.intake import Arrival, Intake
from millrace.broker.messages.message import Run, Segment
from millrace.broker.sessions.unfinished import pack, put_back, received_unlogged, unfinished, unpack
from millrace.limits import UNFINISHED_BYTES_MAX
from millrace.types import Message, Properties
from millrace.wire.mqtt.codec import encode_properties, encode_publish
from millrace.wire.mqtt.packets import Publish, Pubrel
from unit.node.house import House
from unit.node.stand_ins import IntakesBy

NOW_MS = 1_000_000


def run(text: str, qos: int = 1) -> Run:
    return Run(encode_publish(b"t", text.encode(), 0x30 | qos << 1, 1, b""), 1, qos, False)


def carried(segments: list[Segment]) -> list[Segment]:
    packed, left_out = pack(segments, NOW_MS)
    assert left_out == 0
    return unpack(packed, NOW_MS)


def test_a_segment_comes_back_as_it_was() -> None:
    segment = Segment(run("payload", 2), 1, 2, True, b"\x0b\x07", 42)
    (back,) = carried([segment])
    assert (back.first_id, back.count, back.qos, back.retain, back.extra) == (42, 1, 2, True, b"\x0b\x07")
    assert back.packets(NOW_MS) == segment.packets(NOW_MS)


def test_half_of_a_run_moves_as_what_is_left_of_it() -> None:
    whole = run("one")
    both = Run(whole.data + run("two").data, 2, 1, False)
    segment = Segment(both, 2, 1, False, b"", 7)
    segment.drop(1)
    (back,) = carried([segment])
    assert (back.first_id, back.count) == (8, 1)
    assert back.packets(NOW_MS) == run("two").data


def test_an_expired_message_stays_behind_and_time_left_moves() -> None:
    gone = run("gone")
    gone.expires_ms = NOW_MS
    packet = encode_publish(b"t", b"left", 0x32, 1, encode_properties(Properties(message_expiry_s=9)))
    left = Run(packet, 1, 1, True, False, NOW_MS + 5_000)
    (back,) = carried([Segment(gone, 1, 1, False, b""), Segment(left, 1, 1, False, b"")])
    assert back.run.expires_ms == NOW_MS + 5_000


def test_more_than_the_bound_is_left_behind_and_counted() -> None:
    large = Run(encode_publish(b"t", bytes(UNFINISHED_BYTES_MAX // 2), 0x32, 1, b""), 1, 1, False)
    packed, left_out = pack([Segment(large, 1, 1, False, b"") for _ in range(3)], NOW_MS)
    assert (len(packed), left_out) == (1, 2)


def test_what_was_not_packed_here_is_refused() -> None:
    packed, _ = pack([Segment(run("x"), 1, 1, False, b"")], NOW_MS)
    with pytest.raises((ValueError, IndexError)):
        unpack([packed[0]._replace(messages=5)], NOW_MS)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_goes_on_at_another_house_under_the_ids_it_knows(qos: int) -> None:
    """Two sent and not acknowledged, one acknowledged: at the other house the two come again, marked as
    sent before, and a message published there gets an id of its own."""
    old, new = House(), House()
    client = old.connect("roamer", session_expiry_s=100)
    client.subscribe("t", qos=qos)
    publisher = old.connect("publisher")
    for text in (b"1", b"2", b"3"):
        publisher.publish("t", text, qos=qos)
    sent = client.take(Publish)
    client.acknowledge(sent[0])
    session = old.broker.sessions["roamer"]
    moved = carried(unfinished(session))

    again = new.connect("roamer", session_expiry_s=100)
    again.subscribe("t", qos=qos)
    arrived = new.broker.sessions["roamer"]
    assert put_back(arrived, moved) == []
    new.broker.resume(arrived, new.now_ms)
    new.connect("publisher").publish("t", b"4", qos=qos)
    got = again.take(Publish)
    assert [packet.message.payload for packet in got] == [b"2", b"3", b"4"]
    assert [packet.packet_id for packet in got[:2]] == [packet.packet_id for packet in sent[1:]]
    assert [packet.dup for packet in got] == [True, True, False]
    assert got[2].packet_id not in {packet.packet_id for packet in got[:2]}


def test_ids_of_messages_on_their_way_to_a_log_stay_behind() -> None:
    """Whether they get there is open, and the record says so or does not: at the other node they would pass
    for stored when they come again. Those of routed messages are known nowhere else."""
    house = House(keeps_records=True)
    intake = Intake(16, False)
    # One that is there already: nobody waits for this log.
    intake.arrivals = [Arrival(None, house.broker.router.route("u"), 0, None, None, b"")]
    house.broker.router.intakes = IntakesBy(lambda topic: intake if topic == "logged" else None)
    client = house.connect("roamer", resume=True)
    for packet_id, topic in ((1, "routed"), (2, "logged")):
        client.send(Publish(message=Message(topic=topic, payload=b"", qos=2), packet_id=packet_id))
    session = house.broker.sessions["roamer"]
    assert session.received == {1, 2}
    assert received_unlogged(session) == [1]
    # An id that was released and used again is judged by its new message.
    client.send(Pubrel(packet_id=2))
    client.send(Publish(message=Message(topic="routed", payload=b"", qos=2), packet_id=2))
    assert received_unlogged(session) == [1, 2]
