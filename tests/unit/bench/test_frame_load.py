"""The FRAME experiment counts what its publishers made and its subscribers got, and nothing else."""

import math

from millrace.lab.demo.frame_experiment import judge, recovery_s
from millrace.lab.demo.frame_load import PACKET, Publishing, Subscribing, Topic


def arrived(topics: list[Topic], chunks: list[tuple[float, bytes]]) -> None:
    for topic in topics:
        topic.arrived.extend([math.inf] * topic.sent)
    reader = Subscribing(port=0)
    reader._came = chunks
    reader.note(topics)


def test_what_came_in_pieces_and_twice_counts_once_at_its_first_moment() -> None:
    topics = [Topic(0), Topic(1)]
    packets = [topics[0].packet(1.0), topics[1].packet(2.0), topics[0].packet(3.0)]
    assert {len(packet) for packet in packets} == {PACKET.size}
    data = b"".join([*packets[:2], packets[0]])
    arrived(topics, [(10.0, data[:5]), (11.0, data[5 : PACKET.size + 1]), (12.0, data[PACKET.size + 1 :])])
    assert list(topics[0].arrived) == [11.0, math.inf] and list(topics[1].arrived) == [12.0]


def test_each_topic_is_due_once_in_its_period() -> None:
    topics = [Topic(0), Topic(2), Topic(5)]
    publishing = Publishing(0, topics, [])
    for topic in topics:
        publishing.begin(topic, 7)
    for step in range(7 + 100):
        publishing.step(step)
    assert [topic.sent for topic in topics] == [10, 5, 1], "of 50, 100 and 500 ms, in half a second"


def test_what_the_kill_made_late_is_no_miss_before_it() -> None:
    topic = Topic(0)
    # The first second is for warming up.
    for number in range(60):
        topic.packet(number * 0.05)
    late = {40: 0.2, 41: 0.1}
    topic.arrived.extend(made_s + late.get(n, 0.001) for n, made_s in enumerate(topic.made_s))
    row = judge([topic], killed_s=2.01)[0]
    assert row["messages"] == 40 and row["lost"] == 0 and row["loss_success"] == 100
    assert row["deadline_success_before_kill"] == 100 and row["deadline_success"] == 95
    assert row["recovery_ms"] == 40


def test_what_is_late_much_later_has_another_reason() -> None:
    assert recovery_s([1.1, 1.2, 2.0], killed_s=1.0) == 1.2 - 1.0
