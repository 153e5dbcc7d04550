"""What a turn relays to other nodes: neighbours together, in order, shared by those who get the same."""

from millrace.broker.messages.inbound import Relay
from millrace.broker.messages.message import Run
from millrace.node.peers.joined_runs import joined_runs


def _run(name: str, qos: int = 0, *, v5: bool = False, size: int = 0) -> Run:
    return Run(name.encode() + b"." * size, 1, qos, v5)


def _sent(relays: list[Relay]) -> dict[str, list[tuple[int, str, bytes, int]]]:
    sent: dict[str, list[tuple[int, str, bytes, int]]] = {}
    for peer, relayed, count in joined_runs(relays):
        sent.setdefault(peer, []).append((relayed.qos, relayed.group, relayed.packets, count))
    return sent


def test_neighbours_of_one_form_are_one_message() -> None:
    relays = [("n2", _run("a"), ""), ("n2", _run("b"), ""), ("n2", _run("c"), "")]
    assert _sent(relays) == {"n2": [(0, "", b"abc", 3)]}


def test_another_form_begins_another_message_and_order_stays() -> None:
    relays = [("n2", _run("a"), ""), ("n2", _run("b", 1), ""), ("n2", _run("c"), ""), ("n2", _run("d"), "")]
    assert _sent(relays) == {"n2": [(0, "", b"a", 1), (1, "", b"b", 1), (0, "", b"cd", 2)]}
    versions = [("n2", _run("a"), ""), ("n2", _run("b", v5=True), "")]
    assert _sent(versions) == {"n2": [(0, "", b"a", 1), (0, "", b"b", 1)]}


def test_what_a_shared_subscription_gets_stays_alone_in_its_place() -> None:
    relays = [
        ("n2", _run("a"), ""),
        ("n2", _run("b"), "g/x"),
        ("n2", _run("c"), "g/x"),
        ("n2", _run("d"), ""),
    ]
    assert _sent(relays) == {
        "n2": [(0, "", b"a", 1), (0, "g/x", b"b", 1), (0, "g/x", b"c", 1), (0, "", b"d", 1)]
    }


def test_nodes_that_get_the_same_share_one_message() -> None:
    first, second = _run("a"), _run("b")
    relays = [("n2", first, ""), ("n3", first, ""), ("n2", second, ""), ("n3", second, "")]
    made = list(joined_runs(relays))
    assert [(peer, relayed.packets, count) for peer, relayed, count in made] == [
        ("n2", b"ab", 2),
        ("n3", b"ab", 2),
    ]
    assert made[0][1] is made[1][1]


def test_each_node_gets_its_own() -> None:
    relays = [("n2", _run("a"), ""), ("n3", _run("b"), ""), ("n2", _run("c"), "")]
    assert _sent(relays) == {"n2": [(0, "", b"ac", 2)], "n3": [(0, "", b"b", 1)]}


def test_long_runs_leave_as_they_are_and_messages_stay_bounded() -> None:
    long = _run("l", size=64 * 1024)
    relays: list[Relay] = [("n2", _run("a"), ""), ("n2", long, ""), ("n2", _run("b"), "")]
    assert [len(packets) for _, _, packets, _ in _sent(relays)["n2"]] == [1, len(long.data), 1]
    many: list[Relay] = [("n2", _run("m", size=9_999), "") for _ in range(100)]
    sent = _sent(many)["n2"]
    assert sum(count for *_, count in sent) == 100
    assert max(len(packets) for _, _, packets, _ in sent) <= 128 * 1024
