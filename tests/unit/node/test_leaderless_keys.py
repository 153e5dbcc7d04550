"""What is retained by a leaderless stream when more is deleted than can be remembered."""

import pytest
from msgspec.structs import replace

from millrace.broker.access import AccessRules
from millrace.broker.machine import Broker
from millrace.limits import DEFAULT_LIMITS
from millrace.node.leaderless import keys as leaderless_keys
from millrace.node.leaderless.keys import Retained, StreamKeys, Value

PACKET = b"\x31\x06\x00\x03tpcx"


def test_a_deletion_may_be_forgotten_and_what_is_retained_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a topic whose stamp is forgotten an older message would win."""
    monkeypatch.setattr(leaderless_keys, "_DELETED_MAX", 2)
    broker = Broker(replace(DEFAULT_LIMITS, retained_messages_max=2), AccessRules(()))
    keys = StreamKeys(broker, lambda: 0, lambda: 0)

    def say(topic: str, time_us: int, packet: bytes | None) -> None:
        keys.take_in(Retained(values=(Value(topic, time_us, "a", packet),)))

    say("tpc", 100, PACKET)
    for number in range(10):
        say(f"gone/{number}", 100, None)
    say("tpc", 50, PACKET.replace(b"x", b"y"))
    kept = broker.retained.get("tpc")
    assert kept is not None and kept.data.endswith(b"x")
    # Those deleted last are known as well, and there are no more.
    for number in range(10):
        say(f"gone/{number}", 50, PACKET)
    assert [broker.retained.get(f"gone/{number}") for number in (8, 9)] == [None, None]
    assert len(keys._stamps) == 4
