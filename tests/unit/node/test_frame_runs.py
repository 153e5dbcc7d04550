"""Runs of a frame schedule: how they are taken apart by class, offered to another node and written."""

import pytest

from millrace.broker.inbound import topic_of
from millrace.broker.intake import Arrival
from millrace.broker.message import Run
from millrace.broker.pair_spec import PairSpec, TopicClass
from millrace.errors import MalformedPacket
from millrace.kernels import skip
from millrace.node import frame_words as words
from millrace.node.frame_classes import FrameClasses
from millrace.node.frame_offers import Offers

SPEC = PairSpec(
    schedule="frame",
    topics=(
        TopicClass(filter="a/#", period_ms=100, deadline_ms=100),
        TopicClass(filter="b/#", period_ms=100, deadline_ms=500, loss_tolerance=0, retention=40),
    ),
)


def packet(topic: str, payload: str = "") -> bytes:
    name = topic.encode()
    rest = len(name).to_bytes(2, "big") + name + payload.encode()
    return bytes((0x30, len(rest))) + rest


def run_of(*topics: str) -> Run:
    """The payload is the place in the run."""
    data = b"".join(packet(topic, str(place)) for place, topic in enumerate(topics))
    return Run(data, len(topics), 0, False)


def messages(run: Run) -> list[tuple[str, int]]:
    found, end = [], 0
    for _ in range(run.count):
        start, end = end, skip(run.data, 1, end)
        one = run.data[start:end]
        topic = topic_of(one)
        found.append((topic, int(one[4 + len(topic) :])))
    assert end == len(run.data)
    return found


@pytest.mark.parametrize("is_known", [False, True])
def test_a_run_is_taken_apart_by_class_and_each_class_keeps_its_order(is_known: bool) -> None:
    classes = FrameClasses(SPEC)
    topics = ("a/1", "b/1", "a/2", "a/1", "b/1")
    if is_known:
        for topic in topics:
            classes.of(topic)
    parts = classes.split(run_of(*topics))
    assert parts is not None
    assert [(cls.filter, messages(part)) for cls, part in parts] == [
        ("a/#", [("a/1", 0), ("a/2", 2), ("a/1", 3)]),
        ("b/#", [("b/1", 1), ("b/1", 4)]),
    ]


def test_a_run_of_one_class_is_the_same_run() -> None:
    classes, run = FrameClasses(SPEC), run_of("a/1", "a/2")
    for topic in ("a/1", "a/2"):
        classes.of(topic)
    parts = classes.split(run)
    assert parts is not None
    assert [part is run for _, part in parts] == [True]


@pytest.mark.parametrize("topics", [("c",), ("c", "a/1"), ("a/1", "c"), ("a/1", "c", "b/1")])
def test_a_run_with_a_topic_that_no_class_takes_is_not_taken_apart(topics: tuple[str, ...]) -> None:
    classes = FrameClasses(SPEC)
    assert classes.split(run_of(*topics)) is None
    assert classes.split(run_of(*topics)) is None, "nor when its topics are known"


def test_a_message_counts_for_the_copy_it_may_need() -> None:
    classes = FrameClasses(SPEC)
    assert [one.wanted.is_replicated for one in classes.all] == [False, True]
    assert [one.jobs(3) for one in classes.all] == [3, 6]


def arrival(run: Run) -> Arrival:
    return Arrival(None, None, 0, run, None, b"")


def offered(word: bytes) -> list[tuple[int, list[tuple[str, int]], tuple[bytes, int]]]:
    op, rows = words.decode(word)
    assert op == words.OFFER
    found = [(number, *words.decode_run(body)) for number, body in rows]
    return [(number, messages(run), key) for number, run, key in found]


class Answers:
    def __init__(self) -> None:
        self.given: list[tuple[Arrival, bool]] = []
        self.offers = Offers(lambda arrival, is_taken: self.given.append((arrival, is_taken)))

    def add(self, *runs: Run) -> Arrival:
        one = arrival(runs[0])
        self.offers.add(one, [(run, (b"", 0)) for run in runs], 0xAB, 0.0)
        return one


def test_a_publisher_is_answered_when_all_its_offers_are() -> None:
    answers = Answers()
    good, bad = answers.add(run_of("a/1"), run_of("b/1")), answers.add(run_of("a/1"), run_of("b/1"))
    answers.offers.on_answer(1, words.IS_TAKEN)
    assert answers.given == []
    answers.offers.on_answer(2, words.IS_TAKEN)
    answers.offers.on_answer(3, words.IS_REFUSED)
    answers.offers.on_answer(4, words.IS_TAKEN)
    assert answers.given == [(good, True), (bad, False)], "one that was refused is not acknowledged"
    answers.offers.on_answer(4, words.IS_TAKEN)
    assert len(answers.given) == 2, "an answer that comes twice is heard once"


def test_each_offer_has_a_key_of_its_own_and_keeps_it() -> None:
    answers = Answers()
    answers.add(run_of("a/1", "a/2"), run_of("b/1"))
    (word,) = answers.offers.words("n2")
    assert offered(word) == [
        (1, [("a/1", 0), ("a/2", 1)], (b"frame/ab", 1)),
        (2, [("b/1", 0)], (b"frame/ab", 2)),
    ]
    assert answers.offers.words("n2") == [], "said once"
    answers.offers.on_answer(2, words.IS_LATER)
    assert answers.offers.is_due
    (again,) = answers.offers.words("n2")
    assert offered(again) == [(2, [("b/1", 0)], (b"frame/ab", 2))]


def test_another_primary_is_offered_everything_that_waits_at_once() -> None:
    answers = Answers()
    answers.add(run_of("a/1"), run_of("b/1"))
    answers.offers.words("n2")
    answers.offers.on_answer(1, words.IS_TAKEN)
    (word,) = answers.offers.words("n3")
    assert [number for number, _, _ in offered(word)] == [2]


def test_what_nobody_answered_is_due_again_after_a_while() -> None:
    answers = Answers()
    answers.add(run_of("a/1"))
    answers.offers.words("n2")
    answers.offers.repeat(0.5)
    assert not answers.offers.is_due
    answers.offers.repeat(1.5)
    assert answers.offers.is_due


def test_offers_are_bounded_by_messages_and_those_that_do_not_fit_are_counted() -> None:
    answers = Answers()
    big = Run(b"", 60_000, 0, False)
    answers.add(big)
    assert not answers.offers.has_room(40_001)
    assert answers.offers.overloaded == 40_001
    assert answers.offers.has_room(40_000)
    answers.offers.on_answer(1, words.IS_TAKEN)
    assert answers.offers.has_room(100_000)


def test_who_waits_when_it_ends_is_named_once() -> None:
    answers = Answers()
    one, other = answers.add(run_of("a/1"), run_of("b/1")), answers.add(run_of("a/1"))
    assert answers.offers.end() == [one, other]
    assert answers.offers.end() == []


@pytest.mark.parametrize(
    "body",
    [b"", b"\x63", b"\x00\xff", words.encode(words.COPY, "no rows"), words.encode(words.TAKEN, [(1,)])],
)
def test_a_word_that_cannot_be_read_is_the_fault_of_who_sent_it(body: bytes) -> None:
    with pytest.raises(MalformedPacket):
        words.decode(body)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_run_that_is_not_of_so_many_packets_is_refused(count: int) -> None:
    run = run_of("a/1", "a/2")
    body = words.encode_run(Run(run.data, count, 0, False), (b"", 0))
    with pytest.raises(MalformedPacket, match="not a run of"):
        words.decode_run(body)
