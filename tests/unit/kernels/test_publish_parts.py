"""The parts of a packet are found where the codec finds them."""

from hypothesis import given
from hypothesis import strategies as st

from millrace.kernels import publish
from millrace.kernels.pure import varint
from millrace.types import Message, Properties, Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Publish

MESSAGES = st.builds(
    lambda topic, payload, qos, expiry: Message(
        topic=topic, payload=payload, qos=qos, properties=Properties(message_expiry_s=expiry)
    ),
    st.text(alphabet="ab/é", min_size=1, max_size=200),
    st.binary(max_size=300),
    st.integers(0, 2),
    st.none() | st.integers(0, 2**32 - 1),
)


@given(messages=st.lists(MESSAGES, min_size=1, max_size=5), is_v5=st.booleans())
def test_topic_payload_and_bounds_of_every_packet(messages: list[Message], is_v5: bool) -> None:
    version = Version.MQTT_5 if is_v5 else Version.MQTT_3_1_1
    packets = [encode(Publish(message=m, packet_id=7 if m.qos else None), version) for m in messages]
    run = b"".join(packets)
    bounds = list(publish.packet_bounds(run))
    assert [run[start:end] for start, end in bounds] == packets
    for (start, end), message in zip(bounds, messages, strict=True):
        packet = run[start:end]
        assert publish.topic_of(run, start).decode() == message.topic
        assert packet[publish.payload_start(packet, is_v5) :] == message.payload
        body = publish.body_start(packet)
        assert publish.head(packet[0], len(packet) - body) + packet[body:] == packet


@given(value=st.integers(0, 268_435_455), before=st.binary(max_size=3))
def test_a_variable_byte_integer_is_read_as_it_was_written(value: int, before: bytes) -> None:
    data = before + varint(value) + b"\xff"
    assert publish.after_varint(data, len(before)) == (value, len(data) - 1)
