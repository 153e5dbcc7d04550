"""The C twins give the answers of the Python ones: the columns, the topics learnt, the body, the refusals."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.kernels import blocks
from millrace.kernels.blocks import Run
from unit.kernels.block_inputs import packet, runs

compiled = pytest.importorskip("millrace.kernels._kernels", reason="the C kernels are not built")


def outcome(twin: Any, made: list[Run], known: dict[bytes, int]) -> Any:
    """The answer and the dictionary after it; a refusal is an answer too."""
    topics = dict(known)
    try:
        return twin.scan_rows(made, topics), list(topics.items())
    except ValueError as error:
        return f"refused: {error}"


def body_of(twin: Any, made: list[Run], key: bytes) -> Any:
    try:
        return twin.join_body(made, key)
    except ValueError as error:
        return f"refused: {error}"


def agree(made: list[Run], known: dict[bytes, int] | None = None) -> Any:
    expected = outcome(blocks, made, known or {})
    assert outcome(compiled, made, known or {}) == expected, (made, known)
    key = b"k" * (len(made) % 3)
    assert body_of(compiled, made, key) == body_of(blocks, made, key), (made, key)
    return expected


@pytest.mark.parametrize("seed", range(4))
def test_equal_on_seeded_input(seed: int) -> None:
    """The counts show that the input is neither all refused nor all accepted."""
    random = Random(seed)
    rows = refusals = 0
    for _ in range(1_500):
        answer = agree(runs(random), {b"a": 0} if random.random() < 0.3 else None)
        if isinstance(answer, str):
            refusals += 1
        else:
            rows += sum(answer[0][0])
    assert rows > 1_500 and refusals > 150


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False))
def test_equal_on_drawn_input(random: Random) -> None:
    agree(runs(random))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=40), st.sampled_from((4, 5))), max_size=3))
def test_equal_on_any_bytes(made: list[tuple[bytes, int]]) -> None:
    agree([Run(data, version, topic=b"t") for data, version in made])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=30), st.sampled_from((4, 5)))
def test_equal_on_any_body_of_a_publish(body: bytes, version: int) -> None:
    agree([Run(bytes((0x32, len(body))) + body, version)])


@pytest.mark.parametrize("version", [4, 5])
def test_every_cut_is_refused_or_shorter(version: int) -> None:
    data = b"".join(packet(Random(seed), version) for seed in range(6))
    for end in range(len(data)):
        agree([Run(data[:end], version, topic=b"t")])


@pytest.mark.parametrize("twin", [blocks, compiled], ids=["python", "c"])
def test_the_columns_say_where_everything_is(twin: Any) -> None:
    """A QoS 1 packet of 3.1.1 and a retained one of MQTT 5 with a property, each in a run of its own."""
    first = b"\x32\x07\x00\x01a\x00\x07xy"
    second = b"\x31\x07\x00\x01b\x02\x01\x01z"
    topics: dict[bytes, int] = {}
    counts, columns = twin.scan_rows([Run(first, 4, 3), Run(second, 5, 9)], topics)
    values = [memoryview(column).cast("I").tolist() for column in columns[:-1]]
    assert counts == [1, 1] and topics == {b"a": 0, b"b": 1}
    assert values == [[0, 1], [3, 9], [0, 9], [9, 9], [7, 17], [2, 1]]
    assert columns[-1] == bytes((0x41, 0x54))


def test_runs_with_a_producer_are_left_to_the_python_twin() -> None:
    """Their numbers may be anything that can be counted through; a lone device has none."""
    data = packet(Random(1), 4)
    plain, numbered = Run(data, 4, topic=b"t"), Run(data, 4, topic=b"t", producer=b"p")
    assert compiled.join_body([plain, numbered], b"") is None


@pytest.mark.parametrize("arguments", [(), ([],), (5, b""), ([], "key"), ([], b"", b"")])
def test_c_refuses_what_makes_no_body(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        compiled.join_body(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ([],),
        ([], {}, 1),
        (5, {}),
        ([], []),
        ([5], {}),
        ([()], {}),
        ([("text", 4, 0, None)], {}),
        ([(b"", 4)], {}),
    ],
)
def test_c_refuses_what_is_no_run(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        compiled.scan_rows(*arguments)
