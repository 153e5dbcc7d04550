"""User properties that the broker reads are left to the codec; all others stay on the fast path."""

from typing import Any

import pytest

from millrace.kernels import pure

TWINS = [pure, pytest.importorskip("millrace.kernels._kernels", reason="the C kernels are not built")]


def publish(*pairs: tuple[bytes, bytes]) -> bytes:
    """A QoS 1 PUBLISH of MQTT 5 to topic `t` with these user properties."""
    properties = b"".join(
        b"\x26" + b"".join(len(text).to_bytes(2, "big") + text for text in pair) for pair in pairs
    )
    body = b"\x00\x01t\x00\x07" + bytes((len(properties),)) + properties + b"payload"
    return bytes((0x32, len(body))) + body


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize(
    ("name", "is_fast"),
    [
        (b"millrace-producer", False),
        (b"millrace-", False),
        (b"millrace", True),
        (b"Millrace-producer", True),
        (b"x-millrace-producer", True),
        (b"", True),
    ],
)
def test_only_names_that_begin_with_ours_need_the_codec(twin: Any, name: bytes, is_fast: bool) -> None:
    packet = publish((b"a", b"b"), (name, b"v"))
    position, spans = twin.scan(packet, 0, {b"t": object()}, True, 1 << 20)
    assert (position == len(packet), len(spans) == 5) == (is_fast, is_fast)


@pytest.mark.parametrize("twin", TWINS)
def test_a_value_may_begin_as_it_likes(twin: Any) -> None:
    packet = publish((b"a", b"millrace-producer"))
    assert twin.scan(packet, 0, {b"t": object()}, True, 1 << 20)[0] == len(packet)
