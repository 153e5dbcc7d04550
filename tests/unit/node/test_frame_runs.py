"""Runs of a frame schedule: how they are taken apart by class, offered to another node and written."""

import pytest

from millrace.broker.messages.inbound import topic_of
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import Run
from millrace.broker.shards.producers import Producers, Verdict
from millrace.broker.streams.pair_spec import PairSpec, TopicClass
from millrace.errors import MalformedPacket
from millrace.kernels import skip
from millrace.node.pairs import frame_messages as words
from millrace.node.pairs.frame_classes import FrameClasses
from millrace.node.pairs.frame_offers import OfferedOrder, Offers

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
    assert [(cls.levels, messages(part)) for cls, part in parts] == [
        (["a", "#"], [("a/1", 0), ("a/2", 2), ("a/1", 3)]),
        (["b", "#"], [("b/1", 1), ("b/1", 4)]),
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


def offered(word: words.OfferedRuns) -> list[tuple[int, list[tuple[str, int]], tuple[bytes, int]]]:
    found = [(number, *words.decode_run(body, 0)) for number, body in word.rows]
    return [(number, messages(run), key) for number, run, key in found]


class Answers:
    def __init__(self) -> None:
        self.given: list[tuple[Arrival, bool]] = []
        self.offers = Offers(lambda arrival, is_taken: self.given.append((arrival, is_taken)))

    def add(self, *runs: Run) -> Arrival:
        one = arrival(runs[0])
        self.offers.add(one, [(run, (b"", 0)) for run in runs], 0xAB, 0.0)
        return one

    def words(self, primary: str) -> list[words.OfferedRuns]:
        return self.offers.messages(primary, 0)


class Primary:
    """Takes what it is offered, in order, as long as it may."""

    def __init__(self, answers: Answers) -> None:
        self._offers = answers.offers
        self.intake = OfferedOrder()
        self.producers = Producers()
        self.taken: list[tuple[str, int]] = []
        self.may_accept = True

    def hear(self, word: words.OfferedRuns) -> None:
        for number, answer in self.intake.take("n1", word, self._take):
            self._offers.on_answer(number, answer)

    def _take(self, body: bytes) -> int:
        run, key = words.decode_run(body, 0)
        if not self.may_accept:
            return words.IS_LATER
        verdict = self.producers.judge(*key)
        if verdict is Verdict.NEW:
            self.producers.store(*key)
            self.taken += messages(run)
        return words.IS_REFUSED if verdict is Verdict.TOO_OLD else words.IS_TAKEN


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
    (word,) = answers.words("n2")
    assert offered(word) == [
        (1, [("a/1", 0), ("a/2", 1)], (b"frame/ab", 1)),
        (2, [("b/1", 0)], (b"frame/ab", 2)),
    ]
    assert answers.words("n2") == [], "said once"
    answers.offers.on_answer(1, words.IS_TAKEN)
    answers.offers.on_answer(2, words.IS_LATER)
    assert answers.offers.is_due
    (again,) = answers.words("n2")
    assert offered(again) == [(2, [("b/1", 0)], (b"frame/ab", 2))]


def test_another_primary_is_offered_everything_that_waits_at_once() -> None:
    answers = Answers()
    answers.add(run_of("a/1"), run_of("b/1"))
    answers.words("n2")
    answers.offers.on_answer(1, words.IS_TAKEN)
    (word,) = answers.words("n3")
    assert [number for number, _, _ in offered(word)] == [2]


def test_what_nobody_answered_is_due_again_after_a_while() -> None:
    answers = Answers()
    answers.add(run_of("a/1"))
    answers.words("n2")
    answers.offers.repeat(0.5)
    assert not answers.offers.is_due
    answers.offers.repeat(1.5)
    assert answers.offers.is_due


def test_an_offer_that_was_lost_with_a_link_is_taken_when_it_comes_again_whatever_came_between() -> None:
    """Keys that clients gave must not make gaps in the keys of the others: too many, and what is repeated
    passes for known."""
    answers = Answers()
    primary = Primary(answers)
    answers.words("n2")
    lost = answers.add(run_of("a/lost"))
    answers.words("n2")
    for number in range(70):
        answers.offers.add(arrival(run_of("a/1")), [(run_of("a/1"), (b"client", number))], 0xAB, 0.0)
        answers.add(run_of("b/1"))
    for _ in range(2):
        for word in answers.words("n2"):
            primary.hear(word)
    assert ("a/lost", 0) in primary.taken
    assert (lost, True) in answers.given and len(answers.given) == len(primary.taken) == 141


def test_offers_are_taken_in_their_order_though_one_is_lost_or_put_off() -> None:
    answers = Answers()
    primary = Primary(answers)
    answers.words("n2")
    for number in range(6):
        answers.add(run_of(f"a/{number}"))
        if number == 1:
            primary.may_accept = False
        for word in answers.words("n2"):
            if number != 3:
                primary.hear(word)
        if number == 1:
            primary.may_accept = True
    for word in answers.words("n2"):
        primary.hear(word)
    assert [topic for topic, _ in primary.taken] == [f"a/{number}" for number in range(6)]


def test_offers_that_were_given_up_do_not_hold_back_those_after_them() -> None:
    answers = Answers()
    primary = Primary(answers)
    old = answers.add(run_of("a/old"))
    answers.offers.give_up(9.0)
    assert answers.given == []
    answers.offers.give_up(11.0)
    assert answers.given == [(old, False)] and not answers.offers.is_due
    answers.add(run_of("a/new"))
    for word in answers.words("n2"):
        primary.hear(word)
    assert primary.taken == [("a/new", 0)]


def test_the_answer_to_a_repeat_waits_for_the_offer_that_it_repeats() -> None:
    ack = b"\x50\x02\x00\x07"
    for answer in (words.IS_TAKEN, words.IS_REFUSED):
        answers = Answers()
        first = arrival(run_of("a/1", "a/1"))
        first.ack = b"\x50\x02\x00\x06" + ack
        answers.offers.add(first, [(run_of("a/1", "a/1"), (b"", 0))], 0xAB, 0.0)
        repeat = Arrival(None, None, 0, None, "a/1", ack)
        assert answers.offers.follow(repeat)
        assert not answers.offers.follow(Arrival(None, None, 0, None, "a/1", b"\x50\x02\x00\x08"))
        assert answers.given == []
        answers.offers.on_answer(1, answer)
        is_taken = answer == words.IS_TAKEN
        assert answers.given == [(first, is_taken), (repeat, is_taken)]


def test_what_expires_is_offered_with_the_time_that_is_left() -> None:
    """No local subscriber at the primary gets it when its time is over."""
    topic, properties = b"\x00\x03a/1", b"\x05\x02\x00\x00\x00\x0a"
    rest = topic + properties + b"x"
    run = Run(bytes((0x30, len(rest))) + rest, 1, 0, True, False, 10_000)
    body = words.encode_run(run, (b"", 0), 4_000)
    again, _ = words.decode_run(body, 500_000)
    assert again.expires_ms == 506_000


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


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_run_that_is_not_of_so_many_packets_is_refused(count: int) -> None:
    run = run_of("a/1", "a/2")
    body = words.encode_run(Run(run.data, count, 0, False), (b"", 0), 0)
    with pytest.raises(MalformedPacket, match="not a run of"):
        words.decode_run(body, 0)
