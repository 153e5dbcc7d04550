"""What goes through a third node where two have no link [rule 38]."""

from collections.abc import Iterable

import pytest

from millrace.errors import ProtocolError
from millrace.node.peers.messages import AskNode, Relayed, RelayedRun, SignOfLife
from millrace.node.peers.registry import decode, encode
from millrace.node.peers.relays import Relays
from millrace.wire.peer import Frames

HERE, BRIDGE, THERE = "aaaaaaaa-1", "bbbbbbbb-2", "cccccccc-3"
ASKED = encode(AskNode("rtt", b""), 7)


class Table:
    """Links that a test names."""

    def __init__(self, *linked: str) -> None:
        self.linked = list(linked)
        self.sent: list[tuple[str, bytes]] = []

    def is_linked(self, replica: str) -> bool:
        return replica in self.linked

    def is_heard_directly(self, replica: str) -> bool:
        return replica in self.linked

    def peers(self) -> list[str]:
        return self.linked

    def wanted(self) -> Iterable[str]:
        return {HERE, BRIDGE, THERE}

    def send_directly(self, replica: str, frame: bytes | bytearray) -> bool:
        self.sent.append((replica, bytes(frame)))
        return True


class Node:
    def __init__(self, name: str, *linked: str) -> None:
        self.table = Table(*linked)
        self.got: list[tuple[str, int]] = []
        self.opened: list[str] = []
        self.closed: list[str] = []
        self.relays = Relays(
            name,
            self.table,
            receive=lambda origin, tag, number, body: self.got.append((origin, number)),
            on_open=self.opened.append,
            on_close=self.closed.append,
        )

    def relayed(self, position: int = -1) -> Relayed:
        ((tag, _, body),) = Frames().receive(self.table.sent[position][1])
        message = decode(tag, body)
        assert isinstance(message, Relayed)
        return message


def sign(*names: str) -> SignOfLife:
    return SignOfLife(tuple(name[:8] for name in names))


def test_a_frame_goes_through_the_node_that_hears_both() -> None:
    here, bridge, there = Node(HERE, BRIDGE), Node(BRIDGE, HERE, THERE), Node(THERE, BRIDGE)
    assert not here.relays.send(THERE, ASKED), "nobody has said that it hears both"
    here.relays.on_sign(BRIDGE, 0, sign(THERE))
    assert not here.relays.send(THERE, ASKED), "it does not hear this one"
    here.relays.on_sign(BRIDGE, 0, bridge.relays.sign())
    assert here.relays.send(THERE, ASKED)
    bridge.relays.on_sign(THERE, 0, there.relays.sign())
    bridge.relays.on_relayed(HERE, 0, here.relayed())
    assert bridge.table.sent[-1][0] == THERE
    there.relays.on_relayed(BRIDGE, 0, bridge.relayed())
    assert there.got == [(HERE, 7)]
    assert there.opened == [HERE]
    assert there.relays.is_heard(HERE)


def test_a_frame_is_passed_on_once() -> None:
    bridge = Node(BRIDGE, HERE, THERE)
    bridge.relays.on_sign(THERE, 0, sign(BRIDGE))
    bridge.relays.on_relayed("dddddddd-4", 0, Relayed(HERE, THERE, bytes(ASKED)))
    assert not bridge.table.sent


def test_a_node_that_says_nothing_of_whom_it_hears_is_sent_nothing_that_it_may_not_know() -> None:
    bridge = Node(BRIDGE, HERE, THERE)
    bridge.relays.on_relayed(HERE, 0, Relayed(HERE, THERE, bytes(ASKED)))
    assert not bridge.table.sent


def test_leaderless_and_routed_messages_do_not_go_through_others() -> None:
    here = Node(HERE, BRIDGE)
    here.relays.on_sign(BRIDGE, 0, sign(HERE, THERE))
    run = encode(RelayedRun(0, True, False, "", b""))
    assert not here.relays.send(THERE, run)
    with pytest.raises(ProtocolError):
        here.relays.on_relayed(BRIDGE, 0, Relayed(THERE, HERE, bytes(run)))


def test_the_way_ends_when_nothing_comes_through_it() -> None:
    here = Node(HERE, BRIDGE)
    here.relays.on_relayed(BRIDGE, 0, Relayed(THERE, HERE, bytes(encode(SignOfLife()))))
    assert here.relays.is_heard(THERE) and not here.got
    for _ in range(6):
        here.relays.tick()
    assert not here.relays.is_heard(THERE)
    assert here.closed == [THERE]
