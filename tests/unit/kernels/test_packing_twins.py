"""The C twins of the kernels between packets and columns give the answers of the Python ones."""

from array import array
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from millrace.kernels import blocks, packing
from millrace.kernels.blocks import Run
from unit.kernels.block_inputs import packet
from unit.kernels.packing_inputs import slices, table

compiled = pytest.importorskip("millrace.kernels._kernels", reason="the C kernels are not built")


def outcome(twin: Any, name: str, given: tuple[Any, ...]) -> Any:
    try:
        return getattr(twin, name)(*given)
    except ValueError as error:
        return f"refused: {error}"


@pytest.mark.parametrize("seed", range(4))
def test_equal_on_seeded_input(seed: int) -> None:
    """The counts show that the input is neither all refused nor all accepted."""
    random = Random(seed)
    packets = refusals = 0
    for _ in range(1_000):
        given = table(random)
        answer = outcome(packing, "pack_rows", given)
        assert outcome(compiled, "pack_rows", given) == answer, given
        if isinstance(answer, str):
            refusals += 1
        else:
            packets += len(answer[1]) // 8 - 1
    assert packets > 1_000 and refusals > 50


@pytest.mark.parametrize("seed", range(4))
def test_slices_are_gathered_equally(seed: int) -> None:
    random = Random(seed)
    refusals = 0
    for _ in range(1_000):
        given = slices(random)
        answer = outcome(packing, "gather", given)
        assert outcome(compiled, "gather", given) == answer, given
        if isinstance(answer, str):
            refusals += 1
        else:
            data, starts, ends = given
            pieces = [bytes(data[start:end]) for start, end in zip(starts, ends, strict=True)]
            edges = memoryview(answer[0]).cast("i").tolist()
            assert [answer[1][a:b] for a, b in pairwise(edges)] == pieces
    assert 50 < refusals < 500


@pytest.mark.parametrize("twin", [packing, compiled], ids=["python", "c"])
def test_the_packets_are_what_the_scan_reads(twin: Any) -> None:
    """The second and the first row, one of them with QoS 1, retained and 200 bytes."""
    edges, payload = memoryview(array("i", (0, 2, 202))), memoryview(b"xy" + b"z" * 200)
    ids, rows = memoryview(array("i", (1, 0))), memoryview(array("q", (1, 0)))
    firsts = memoryview(b"\x30\x33")
    packets, places = twin.pack_rows((b"\0\1a", b"\0\1b"), ids, firsts, edges, payload, None, None, rows)
    topics: dict[bytes, int] = {}
    counts, columns = blocks.scan_rows([Run(packets, 4)], topics)
    values = [memoryview(column).cast("I").tolist() for column in columns[:-1]]
    assert counts == [2] and list(topics) == [b"a", b"b"]
    assert values[2:] == [[0, 208], [208, 7], [8, 213], [200, 2]]
    assert columns[-1] == bytes((0x45, 0x40))
    assert memoryview(places).cast("q").tolist() == [0, 208, 215]
    assert packets[6:8] == b"\0\1"


@pytest.mark.parametrize("given", [(), ([],) * 8, ((b"",), *(b"",) * 7), ((5,), *(memoryview(b""),) * 7)])
def test_c_refuses_what_are_no_columns(given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        compiled.pack_rows(*given)


@pytest.mark.parametrize("twin", [blocks, compiled], ids=["python", "c"])
def test_the_first_bytes_of_packets_are_named_once(twin: Any) -> None:
    made = [packet(Random(seed), 4) for seed in range(40)]
    places = array("I", (0,))
    for one in made[:-1]:
        places.append(places[-1] + len(one))
    data = b"".join(made)
    assert twin.first_bytes(data, memoryview(places)) == bytes(sorted({one[0] for one in made}))
    with pytest.raises(IndexError):
        twin.first_bytes(data, memoryview(array("I", (len(data),))))
