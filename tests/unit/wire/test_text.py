"""The text protocol as a translation: lines to packets, packets to lines, whatever the pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.limits import TEXT_OPEN_MAX
from millrace.reasons import Reason
from millrace.types import Message, Version
from millrace.wire.mqtt.codec import decode, encode, split
from millrace.wire.mqtt.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from millrace.wire.text import LineTooLong, Translator


def packets(data: bytes) -> list[Packet]:
    found: list[Packet] = []
    pos = 0
    while (at := split(data, pos)) is not None:
        _, body, end = at
        found.append(decode(data[pos], data[body:end], Version.MQTT_5))
        pos = end
    assert pos == len(data)
    return found


def connected() -> Translator:
    translator = Translator(1000)
    translator.receive(b"CONNECT|me\n")
    return translator


def said(translator: Translator, *answers: Packet) -> str:
    return translator.send(b"".join(encode(packet, Version.MQTT_5) for packet in answers))[0].decode()


def test_the_first_line_connects_with_a_name_or_without() -> None:
    (connect,) = packets(Translator(100).receive(b"CONNECT|me|ann|se|cret\n")[0])
    assert isinstance(connect, Connect)
    assert (connect.client_id, connect.username, connect.password) == ("me", "ann", b"se|cret")
    first, second = packets(Translator(100).receive(b"SUBSCRIBE|a\n")[0])
    assert isinstance(first, Connect) and first.client_id == ""
    assert isinstance(second, Subscribe)


def test_a_message_may_contain_the_separator_and_be_empty() -> None:
    data, lines = connected().receive(b"PUBLISH|a/b|x|y\r\nPUBLISH|a|\n")
    assert lines == b""
    found = [
        (p.message.topic, p.message.payload, p.message.qos) for p in packets(data) if isinstance(p, Publish)
    ]
    assert found == [("a/b", b"x|y", 1), ("a", b"", 1)]


def test_answers_name_what_was_asked() -> None:
    translator = connected()
    asked = packets(translator.receive(b"SUBSCRIBE|a/+\nPUBLISH|a/b|x\nUNSUBSCRIBE|a/+\n")[0])
    subscribe, publish, unsubscribe = asked
    assert isinstance(subscribe, Subscribe) and isinstance(publish, Publish)
    assert isinstance(unsubscribe, Unsubscribe) and publish.packet_id is not None
    assert translator.expects
    assert said(translator, Connack(reason=Reason.SUCCESS)) == "CONNACK|me\n"
    assert said(translator, Puback(packet_id=publish.packet_id)) == "PUBACK|a/b\n"
    assert (
        said(translator, Suback(packet_id=subscribe.packet_id, reasons=(Reason.GRANTED_QOS_1,)))
        == "SUBACK|a/+\n"
    )
    assert translator.expects
    assert (
        said(translator, Unsuback(packet_id=unsubscribe.packet_id, reasons=(Reason.SUCCESS,)))
        == "UNSUBACK|a/+\n"
    )
    assert not translator.expects


def test_a_refusal_says_what_and_why() -> None:
    translator = connected()
    (publish,) = packets(translator.receive(b"PUBLISH|a|x\n")[0])
    assert isinstance(publish, Publish) and publish.packet_id is not None
    refused = Puback(packet_id=publish.packet_id, reason=Reason.NOT_AUTHORIZED)
    assert said(translator, refused) == "ERROR|a: not authorized (0x87)\n"
    assert said(translator, Connack(reason=Reason.BAD_USER_OR_PASSWORD)).startswith("ERROR|CONNECT: bad user")
    assert (
        said(translator, Disconnect(reason=Reason.SESSION_TAKEN_OVER)) == "ERROR|session taken over (0x8e)\n"
    )


@pytest.mark.parametrize(
    "line",
    [
        b"HELLO",
        b"PUBLISH|a",
        b"PUBLISH||x",
        b"PUBLISH|a/#|x",
        b"SUBSCRIBE|",
        b"SUBSCRIBE|a#",
        b"\xff|x",
        b"CONNECT|again",
        b"PUBLISH|a\0b|x",
        b"|",
        b"SUBSCRIBE",
    ],
)
def test_a_wrong_line_is_answered_and_the_next_one_is_heard(line: bytes) -> None:
    translator = connected()
    data, answer = translator.receive(line + b"\nSUBSCRIBE|good\n")
    assert answer.startswith(b"ERROR|") and answer.count(b"\n") == 1
    (found,) = packets(data)
    assert isinstance(found, Subscribe)


def test_a_line_is_bounded_whether_it_ends_or_not() -> None:
    for data in (b"x" * 1001, b"x" * 1001 + b"\n"):
        with pytest.raises(LineTooLong):
            connected().receive(data)
    assert connected().receive(b"PUBLISH|a|" + b"x" * 990 + b"\n")[1] == b""


def test_what_would_break_the_lines_comes_encoded() -> None:
    translator = connected()
    for topic, payload, line in (
        ("a", b"plain", "MESSAGE|a|plain"),
        ("a", b"with | in it", "MESSAGE|a|with | in it"),
        ("a", b"two\nlines", "MESSAGE64|a|dHdvCmxpbmVz"),
        ("a", b"\xff\xfe", "MESSAGE64|a|//4="),
        ("a|b/c", b"x", "MESSAGE64|a%7Cb/c|eA=="),
    ):
        assert said(translator, Publish(message=Message(topic=topic, payload=payload))) == line + "\n"


def test_messages_that_want_an_answer_get_one() -> None:
    message = Message(topic="a", payload=b"x", qos=1)
    _, answers = connected().send(encode(Publish(message=message, packet_id=7), Version.MQTT_5))
    assert packets(answers) == [Puback(packet_id=7)]


def test_it_is_busy_while_too_many_answers_are_open() -> None:
    translator = connected()
    data, _ = translator.receive(b"PUBLISH|a|x\n" * TEXT_OPEN_MAX)
    assert translator.is_busy
    first = packets(data)[0]
    assert isinstance(first, Publish) and first.packet_id is not None
    said(translator, Puback(packet_id=first.packet_id))
    assert not translator.is_busy


@given(st.data())
def test_the_pieces_make_no_difference(data: st.DataObject) -> None:
    text = "SUBSCRIBE|ä/+\nPUBLISH|ä/b|grüße|x\n\nUNSUBSCRIBE|ä/+\n".encode()
    whole = Translator(1000).receive(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = Translator(1000)
    got = [pieces.receive(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert (b"".join(p for p, _ in got), b"".join(a for _, a in got)) == whole
    stream = encode(Publish(message=Message(topic="a", payload=b"x" * 300)), Version.MQTT_5) * 2
    at = data.draw(st.integers(0, len(stream)))
    out = Translator(1000)
    assert out.send(stream[:at])[0] + out.send(stream[at:])[0] == Translator(1000).send(stream)[0]


@pytest.mark.parametrize(
    "wrong",
    [b"NONSENSE", b"HELP|me", b"PUBLISH|a", b"SUBSCRIBE|#/a", b"CONNECT|a\0b", b"CONNECT|" + 70_000 * b"a"],
)
def test_a_wrong_first_line_is_answered_and_the_next_one_connects(wrong: bytes) -> None:
    translator = Translator(100_000)
    data, lines = translator.receive(wrong + b"\n")
    assert data == b""
    assert lines.startswith(b"ERROR|") and lines.count(b"\n") == 1
    assert not translator.expects
    connect, subscribe = packets(translator.receive(b"SUBSCRIBE|x\n")[0])
    assert isinstance(connect, Connect) and isinstance(subscribe, Subscribe)
    told = said(
        translator,
        Connack(reason=Reason.SUCCESS, assigned_client_id="given"),
        Suback(packet_id=subscribe.packet_id, reasons=(Reason.GRANTED_QOS_1,)),
    )
    assert told == "CONNACK|given\nSUBACK|x\n"
