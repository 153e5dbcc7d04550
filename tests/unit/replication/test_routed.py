"""The routed machine step by step: what is announced, what is believed, and which retained value wins."""

from random import Random

import pytest

from millrace.errors import RemoteError
from millrace.replication.contract import LinkClosed, LinkOpened, PeerBody, PeerMessage, ReplicaId, Send, Tick
from millrace.replication.routed.machine import (
    Forgotten,
    InterestChanged,
    Noted,
    Published,
    RetainedCarriedOver,
    Routed,
    RoutedEffect,
    RoutedEvent,
    RoutedOptions,
)
from millrace.replication.routed.messages import Change, Digest, Filters, Hello, Known, Summary, Value
from millrace.replication.routed.retained import Deliver, Keep, RetainedOptions

A, B, C = ReplicaId("a"), ReplicaId("b"), ReplicaId("c")


class Node:
    """A machine and what its driver would store."""

    def __init__(self, name: ReplicaId, options: RoutedOptions | None = None, seed: int = 0) -> None:
        self.kept: dict[str, bytes] = {}
        self.machine = Routed(name, rng=Random(f"{name} {seed}"), view=self, options=options)

    def value(self, topic: str) -> bytes | None:
        return self.kept.get(topic)

    def step(self, event: RoutedEvent) -> list[RoutedEffect]:
        effects = self.machine.step(event)
        for effect in effects:
            if isinstance(effect, Keep):
                if effect.value is None:
                    self.kept.pop(effect.topic, None)
                else:
                    self.kept[effect.topic] = effect.value
        return effects

    def hear(self, sender: ReplicaId, body: PeerBody) -> list[RoutedEffect]:
        return self.step(PeerMessage(sender=sender, body=body))

    def want(self, *filters: str) -> list[RoutedEffect]:
        return self.step(Noted(changes=tuple((filter, True) for filter in filters)))

    def give_up(self, *filters: str) -> list[RoutedEffect]:
        return self.step(Noted(changes=tuple((filter, False) for filter in filters)))


def bodies(effects: list[RoutedEffect]) -> list[PeerBody]:
    return [effect.body for effect in effects if isinstance(effect, Send)]


def talk(one: Node, two: Node, effects: list[RoutedEffect], start: Node) -> None:
    """Carry messages to and fro until both are silent."""
    names = {one.machine: A, two.machine: B}
    under_way = [(start, effect) for effect in effects if isinstance(effect, Send)]
    for _ in range(10_000):
        if not under_way:
            return
        sender, send = under_way.pop(0)
        to = two if sender is one else one
        answered = to.hear(names[sender.machine], send.body)
        under_way += [(to, effect) for effect in answered if isinstance(effect, Send)]
    raise AssertionError("they do not come to an end")


def link(one: Node, two: Node) -> None:
    first, second = one.step(LinkOpened(peer=B)), two.step(LinkOpened(peer=A))
    talk(one, two, first, one)
    talk(one, two, second, two)


def asked(node: Node, peer: ReplicaId = B) -> int:
    """The number under which this node wants to hear of a peer's filters."""
    hello = bodies(node.step(LinkOpened(peer=peer)))[0]
    assert isinstance(hello, Hello)
    return hello.session


def told(node: Node, session: int = 7) -> list[RoutedEffect]:
    """A peer asked this node."""
    node.step(LinkOpened(peer=B))
    return node.hear(B, Hello(session=session, time=0))


def test_only_the_first_subscription_is_announced_and_only_the_last_withdrawn() -> None:
    node = Node(A)
    told(node)
    assert bodies(node.want("x/#")) == [Change(session=7, version=1, added=("x/#",), withdrawn=())]
    assert node.want("x/#", "x/#") == []
    assert node.give_up("x/#", "x/#") == []
    assert bodies(node.give_up("x/#")) == [Change(session=7, version=2, added=(), withdrawn=("x/#",))]
    assert node.machine.counts() == {}


def test_what_comes_and_goes_in_one_turn_is_not_worth_a_word() -> None:
    node = Node(A)
    told(node)
    assert node.step(Noted(changes=(("x", True), ("x", False)))) == []


def test_a_link_that_opens_is_told_everything_in_bounded_parts() -> None:
    node = Node(A, RoutedOptions(filters_per_message_max=2))
    node.want("c", "a", "b")
    first, second = bodies(told(node))
    assert isinstance(first, Filters) and isinstance(second, Filters)
    assert (first.filters, first.part, first.parts) == (("a", "b"), 0, 2)
    assert (second.filters, second.part, second.parts) == (("c",), 1, 2)


def test_all_filters_replace_what_was_known_once_the_last_part_is_here() -> None:
    node = Node(A)
    session = asked(node)
    node.hear(B, Filters(session=session, version=1, part=0, parts=1, filters=("old",)))
    assert node.machine.wanted_by("old") == ((B,), ())
    again = asked(node)
    node.hear(B, Filters(session=again, version=5, part=1, parts=2, filters=("new/2",)))
    assert node.machine.wanted_by("old") == ((B,), ()), "what is known serves until the rest is here"
    effects = node.hear(B, Filters(session=again, version=5, part=0, parts=2, filters=("new/1",)))
    assert effects[0] == InterestChanged(filters=("new/1", "new/2", "old"))
    assert bodies(effects) == [Known(session=again, version=5)]
    assert node.machine.known_of(B) == {"new/1", "new/2"}


def test_nothing_from_an_earlier_connection_brings_a_filter_back() -> None:
    node = Node(A)
    earlier = asked(node)
    now = asked(node)
    node.hear(B, Filters(session=now, version=0, part=0, parts=1, filters=()))
    assert node.hear(B, Filters(session=earlier, version=9, part=0, parts=1, filters=("gone",))) == []
    assert node.hear(B, Change(session=earlier, version=1, added=("gone",), withdrawn=())) == []
    assert node.machine.wanted_by("gone") == ((), ())


def test_a_gap_is_answered_by_a_new_question_and_a_repeat_by_nothing() -> None:
    node = Node(A)
    session = asked(node)
    node.hear(B, Filters(session=session, version=3, part=0, parts=1, filters=("x",)))
    assert node.hear(B, Change(session=session, version=3, added=("y",), withdrawn=())) == []
    (hello,) = bodies(node.hear(B, Change(session=session, version=5, added=("z",), withdrawn=())))
    assert isinstance(hello, Hello) and hello.session != session
    assert node.machine.wanted_by("x") == ((B,), ()), "what was known still serves"


def test_a_digest_shows_a_lost_last_word() -> None:
    node = Node(A)
    session = asked(node)
    node.hear(B, Filters(session=session, version=3, part=0, parts=1, filters=("x",)))
    assert bodies(node.hear(B, Digest(session=session, version=3, retained=0))) == []
    (hello,) = bodies(node.hear(B, Digest(session=session, version=4, retained=0)))
    assert isinstance(hello, Hello)


def test_a_lost_question_is_put_again() -> None:
    node = Node(A)
    session = asked(node)
    sent = [body for _ in range(20) for body in bodies(node.step(Tick())) if isinstance(body, Hello)]
    assert [hello.session for hello in sent] == [session]


def test_a_closed_link_is_wanted_by_nobody() -> None:
    one, two = Node(A), Node(B)
    two.want("a/#", "$share/g/a/+")
    link(one, two)
    assert one.machine.wanted_by("a/b") == ((B,), (("$share/g/a/+", (B,)),))
    assert one.step(LinkClosed(peer=B)) == [InterestChanged(filters=("$share/g/a/+", "a/#"))]
    assert one.machine.wanted_by("a/b") == ((), ())


def test_what_a_node_says_of_itself_is_wanted_by_nobody() -> None:
    one, two = Node(A), Node(B)
    two.want("#", "$SYS/#")
    link(one, two)
    assert one.machine.wanted_by("$SYS/broker/uptime") == ((), ())


def test_more_filters_than_the_bound_are_not_announced_and_not_believed() -> None:
    node = Node(A, RoutedOptions(filters_per_node_max=2))
    node.want("a", "b", "c")
    assert node.machine.status().announced == 2
    assert node.machine.status().unannounced == 1
    session = asked(node)
    with pytest.raises(RemoteError):
        node.hear(B, Filters(session=session, version=0, part=0, parts=1, filters=("a", "b", "c")))


def test_a_subscription_is_known_once_every_linked_node_said_so() -> None:
    node = Node(A)
    assert node.machine.known_version == node.machine.version, "alone there is nobody to tell"
    told(node)
    node.step(LinkOpened(peer=C))
    node.hear(C, Hello(session=8, time=0))
    node.want("x")
    node.hear(B, Known(session=7, version=1))
    assert node.machine.known_version < node.machine.version
    node.hear(C, Known(session=5, version=1))
    assert node.machine.known_version < node.machine.version, "an answer to an earlier question"
    node.hear(C, Known(session=8, version=1))
    assert node.machine.known_version == node.machine.version
    node.want("y")
    node.hear(B, Known(session=7, version=2))
    node.step(LinkClosed(peer=C))
    assert node.machine.known_version == node.machine.version, "who cannot be reached is not waited for"


# ------------------------------------------------------------------------------------------- retained


def test_a_retained_message_goes_to_every_linked_node_and_no_further() -> None:
    node = Node(A)
    node.step(LinkOpened(peer=B))
    node.step(LinkOpened(peer=C))
    effects = node.step(Published(topic="t", value=b"v", wall_ms=5))
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert [send.to for send in sends] == [B, C]
    other = Node(B)
    other.step(LinkOpened(peer=A))
    other.step(LinkOpened(peer=C))
    heard = other.hear(A, sends[0].body)
    assert heard == [Keep(topic="t", value=b"v"), Deliver(topic="t", value=b"v")]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_of_two_writes_at_one_instant_the_higher_node_wins_everywhere(is_reversed: bool) -> None:
    one = Value(topic="t", time=1 << 16, node=A, value=b"a")
    two = Value(topic="t", time=1 << 16, node=B, value=b"b")
    node = Node(C)
    for body in (two, one) if is_reversed else (one, two):
        node.hear(A, body)
    assert node.kept == {"t": b"b"}


def test_a_write_after_something_was_seen_is_later_whatever_the_wall_says() -> None:
    node = Node(A)
    node.hear(B, Value(topic="t", time=1_000_000 << 16, node=B, value=b"ahead"))
    node.step(Published(topic="t", value=b"after", wall_ms=3))
    stamp = node.machine.retained.stamp("t")
    assert stamp is not None and stamp > (1_000_000 << 16, B)


def test_a_node_that_starts_again_gives_no_stamp_twice() -> None:
    """Its clock is behind that of others. It told the one message, crashed before it heard of it again, and
    writes another one after it has heard the clock of the others."""
    ahead = Value(topic="other", time=1_000_000 << 16, node=C, value=b"v")
    before, after = Node(A, seed=1), Node(A, seed=2)
    told: list[Value] = []
    for node, value in ((before, b"one"), (after, b"two")):
        node.hear(C, ahead)
        node.step(LinkOpened(peer=B))
        told += [
            body
            for body in bodies(node.step(Published(topic="t", value=value, wall_ms=3)))
            if isinstance(body, Value)
        ]
    assert told[0].time == told[1].time
    results = []
    for order in (told, told[::-1]):
        node = Node(B)
        for body in order:
            node.hear(A, body)
        results.append(node.kept["t"])
    assert results[0] == results[1]


def test_a_deletion_outlives_an_older_value() -> None:
    node = Node(A)
    node.step(Published(topic="t", value=b"v", wall_ms=10))
    node.step(Published(topic="t", value=None, wall_ms=20))
    assert node.hear(B, Value(topic="t", time=15 << 16, node=B, value=b"old")) == []
    assert node.kept == {}


def test_tombstones_are_bounded_in_number_and_age() -> None:
    options = RoutedOptions(retained=RetainedOptions(tombstones_max=3, tombstone_age_ms_max=1000))
    node = Node(A, options)
    for number in range(10):
        node.step(Published(topic=f"t{number}", value=None, wall_ms=number))
    assert node.machine.status().tombstones == 3
    node.step(Published(topic="late", value=None, wall_ms=5000))
    assert node.machine.status().tombstones == 1


@pytest.mark.parametrize("count", [1, 300])
def test_nodes_that_were_apart_find_every_difference(count: int) -> None:
    """Values only here, only there, newer here, newer there, deleted here, deleted there; in small pieces."""
    small = RetainedOptions(entries_per_message_max=3, entries_per_step_max=7, value_bytes_per_step_max=50)
    one, two = (Node(name, RoutedOptions(retained=small)) for name in (A, B))
    pairs = [(one, two, f"x{number}") for number in range(count)] + [
        (two, one, f"y{number}") for number in range(count)
    ]
    for first, _, stem in pairs:
        for topic in ("only", "newer", "deleted"):
            first.step(Published(topic=f"{topic}/{stem}", value=b"old", wall_ms=1))
    for _, second, stem in pairs:
        second.step(Published(topic=f"newer/{stem}", value=b"new", wall_ms=1_000_000))
        second.step(Published(topic=f"deleted/{stem}", value=None, wall_ms=1_000_000))
    link(one, two)
    for _ in range(5000):
        if one.machine.retained.checksum == two.machine.retained.checksum:
            break
        for node in (one, two):
            talk(one, two, node.step(Tick()), node)
    assert one.kept == two.kept
    assert len(one.kept) == 4 * count
    assert all(value == b"new" for topic, value in one.kept.items() if topic.startswith("newer"))


def test_nodes_that_agree_exchange_checksums_and_nothing_else() -> None:
    one, two = Node(A), Node(B)
    for node in (one, two):
        node.hear(C, Value(topic="t", time=5, node=C, value=b"v"))
    sent = bodies(one.step(LinkOpened(peer=B)))
    two.step(LinkOpened(peer=A))
    (summary,) = (body for body in sent if isinstance(body, Summary))
    assert two.hear(A, summary) == []


def test_a_value_of_a_log_gives_way_to_any_write() -> None:
    node = Node(A)
    node.kept["t"] = b"from the log"
    node.step(RetainedCarriedOver(topics=("t",)))
    node.hear(B, Value(topic="t", time=1, node=B, value=b"written"))
    assert node.kept["t"] == b"written"
    node.step(RetainedCarriedOver(topics=("t",)))
    assert node.machine.retained.stamp("t") == (1, B)


def test_what_expired_is_not_offered_any_more() -> None:
    node = Node(A)
    node.step(Published(topic="t", value=b"v", wall_ms=1))
    node.step(Forgotten(topics=("t",)))
    assert node.machine.status().retained == 0
    assert node.machine.retained.checksum == 0
