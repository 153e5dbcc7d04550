"""An acknowledgement that belongs to another QoS ends the connection ([MQTT-4.8.0-1] of 3.1.1)."""

import pytest

from millrace.reasons import Reason
from millrace.wire.mqtt.packets import Packet, Puback, Pubcomp, Pubrec
from unit.node.house import House

WRONG: list[tuple[int, type[Packet]]] = [(1, Pubrec), (1, Pubcomp), (2, Puback), (2, Pubcomp)]


@pytest.mark.parametrize(("qos", "answer"), WRONG)
@pytest.mark.parametrize("v5", [False, True])
@pytest.mark.parametrize("code", [None, Reason.SUCCESS, Reason.UNSPECIFIED])
def test_the_wrong_answer_ends_the_connection(
    qos: int, answer: type[Packet], v5: bool, code: Reason | None
) -> None:
    """By the scan, with a reason code, and with one that says that the message failed."""
    if code is not None and (not v5 or (code is Reason.UNSPECIFIED and answer is Pubcomp)):
        pytest.skip("there is no such packet")
    house = House()
    client, publisher = house.connect("c", v5=v5), house.connect("p")
    other = house.connect("o")
    for one in (client, other):
        one.subscribe("t", qos=2)
    for number in range(3):
        publisher.publish("t", b"%d" % number, qos=qos)
    messages = client.messages()
    packet_id = messages[1].packet_id
    client.send(answer(packet_id=packet_id, **({} if code is None else {"reason": code})))  # type: ignore[call-arg]
    assert client.is_closed
    assert client.reason_of_close() is (Reason.PROTOCOL_ERROR if v5 else None)
    assert house.broker.stats.protocol_errors == 1
    for message in other.messages():
        other.acknowledge(message)
    other.ping()


@pytest.mark.parametrize("v5", [False, True])
@pytest.mark.parametrize("answer", [Puback, Pubrec, Pubcomp])
def test_an_answer_to_nothing_is_borne(v5: bool, answer: type[Packet]) -> None:
    """It may be late: of a message that was given up, or of an earlier life of this session."""
    house = House()
    client = house.connect("c", v5=v5)
    client.send(answer(packet_id=77))  # type: ignore[call-arg]
    client.read()
    client.ping()


def test_a_run_of_right_answers_is_right_though_it_comes_in_another_order() -> None:
    house = House()
    client, publisher = house.connect("c"), house.connect("p")
    client.subscribe("t", qos=2)
    for number in range(6):
        publisher.publish("t", b"%d" % number, qos=1 + number % 2)
    for message in reversed(client.messages()):
        client.acknowledge(message)
    assert house.broker.sessions["c"].inflight_count == 0
