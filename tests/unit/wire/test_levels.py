"""Two nodes shake hands: those whose levels do not fit refuse each other, and both say why."""

import pytest

from millrace.errors import ProtocolError
from millrace.version import LEVEL, LEVEL_MIN
from millrace.wire import peer
from millrace.wire.peer import NONCE_BYTES, Handshake, Side


def node(side: Side, monkeypatch: pytest.MonkeyPatch, *, level: int, lowest: int) -> Handshake:
    """One side of a link, of a release that understands this level."""
    monkeypatch.setattr(peer, "LEVEL", level)
    made = Handshake(side, b"secret", bytes(NONCE_BYTES), lowest)
    monkeypatch.setattr(peer, "LEVEL", LEVEL)
    return made


def shake(one: Handshake, other: Handshake) -> bool:
    answer, _ = other.receive(one.hello)
    answer, _ = one.receive(other.hello + answer)
    other.receive(answer)
    return one.is_proved and other.is_proved


def test_neighbours_link(monkeypatch: pytest.MonkeyPatch) -> None:
    older = node(Side.DIALED, monkeypatch, level=LEVEL - 1, lowest=LEVEL_MIN - 1)
    assert shake(older, Handshake(Side.ANSWERED, b"secret", bytes(NONCE_BYTES)))


@pytest.mark.parametrize(
    ("level", "lowest", "cluster", "why"),
    [
        (LEVEL_MIN - 1, LEVEL_MIN - 2, LEVEL_MIN, "the other node is too old"),
        (LEVEL + 2, LEVEL + 1, LEVEL_MIN, "this node is too old for the other one"),
        (LEVEL - 1, LEVEL - 2, LEVEL, "the other node is too old"),
        (LEVEL + 1, LEVEL + 1, LEVEL, "this node is too old for the other one"),
    ],
    ids=["two behind", "two ahead", "behind what is used here", "of a cluster that uses more"],
)
def test_others_are_refused(
    monkeypatch: pytest.MonkeyPatch, level: int, lowest: int, cluster: int, why: str
) -> None:
    other = node(Side.DIALED, monkeypatch, level=level, lowest=lowest)
    with pytest.raises(ProtocolError, match=why):
        Handshake(Side.ANSWERED, b"secret", bytes(NONCE_BYTES), cluster).receive(other.hello)
