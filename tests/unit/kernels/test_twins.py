"""The C kernels give the answers of the Python ones, on input that is right, cut, damaged and random."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kernels import blocks, filters, packing, pure
from unit.kernels.kernel_inputs import BYTES_MAX, ROUTES, calls

compiled = pytest.importorskip("millrace.kernels._kernels", reason="the C kernels are not built")

SEEDED_ROUNDS = 4_000


def outcome(twin: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    """What a kernel answers; a refusal is an answer too."""
    try:
        return getattr(twin, name)(*arguments)
    except ValueError as error:
        return f"refused: {error}"


def agree(name: str, arguments: tuple[Any, ...]) -> Any:
    expected = outcome(pure, name, arguments)
    assert outcome(compiled, name, arguments) == expected, (name, arguments)
    return expected


def test_both_twins_offer_the_same_kernels() -> None:
    offered = {name for name in vars(compiled) if not name.startswith("_")}
    assert offered == {
        *("ack_run", "acks", "first_bytes", "gather", "join_body", "pack_rows", "packet_ids"),
        *("reframe", "scan", "scan_rows", "skip"),
        *("find_filters", "fitting_filters", "new_topics", "read_filters", "shape_of"),
    }
    twins = (pure, blocks, packing, filters)
    assert all(any(callable(getattr(twin, name, None)) for twin in twins) for name in offered)


@pytest.mark.parametrize("seed", range(4))
def test_equal_on_seeded_input(seed: int) -> None:
    """Broad and fast; the counts show that the input is not all refused."""
    random = Random(seed)
    spans = answers = refusals = 0
    for _ in range(SEEDED_ROUNDS // 4):
        for name, arguments in calls(random):
            answer = agree(name, arguments)
            if isinstance(answer, str):
                refusals += 1
            elif name == "scan":
                spans += len(answer[1]) // 5
            else:
                answers += 1
    assert spans > 1_000 and answers > 3_000 and refusals > 200


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_equal_on_drawn_input(random: Random) -> None:
    """The same input drawn by Hypothesis, which shrinks what it finds."""
    for name, arguments in calls(random):
        agree(name, arguments)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.booleans(), st.booleans(), st.sampled_from((0x30, 0x32, 0x3D)))
def test_equal_on_any_bytes(data: bytes, v5: bool, to_v5: bool, first_byte: int) -> None:
    agree("scan", (data, 0, ROUTES, v5, BYTES_MAX))
    agree("packet_ids", (data,))
    agree("acks", (data, 0x40))
    agree("skip", (data, 3))
    agree("reframe", (data, v5, to_v5, first_byte, 65_535, b""))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40))
def test_equal_on_any_property_block(block: bytes) -> None:
    """A valid PUBLISH around bytes that take the place of its properties."""
    body = b"\x00\x01a" + bytes((len(block),)) + block + b"payload"
    agree("scan", (bytes((0x30, len(body))) + body, 0, ROUTES, True, BYTES_MAX))


@pytest.mark.parametrize("packet_id", [-1, 0, 65_536])
def test_an_id_that_does_not_exist_is_refused_by_both(packet_id: int) -> None:
    run = b"\x32\x05\x00\x01a\x00\x07"
    for name, arguments in (
        ("ack_run", (0x40, packet_id, 1)),
        ("reframe", (run, False, False, 0x32, packet_id, b"")),
        ("reframe", (run, False, True, 0x32, packet_id, b"")),
    ):
        assert agree(name, arguments).startswith("refused")
    assert not agree("reframe", (run, False, False, 0x30, packet_id, b"")).startswith(b"refused")


@pytest.mark.parametrize("count", [-1, 65_536])
def test_a_count_that_does_not_exist_is_refused_by_both(count: int) -> None:
    assert agree("ack_run", (0x40, 1, count)).startswith("refused")


@pytest.mark.parametrize("pos", [-1, 3])
def test_a_position_outside_the_data_is_refused_by_both(pos: int) -> None:
    assert agree("scan", (b"\x40\x02", pos, ROUTES, False, BYTES_MAX)).startswith("refused")
    assert agree("skip", (b"\x40\x02", 0, pos)).startswith("refused")
