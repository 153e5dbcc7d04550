"""The rows on the log: each has a figure, and a disk without room is told before anything is written."""

from pathlib import Path

import pytest

from millrace.cli.lab.bench import _bytes
from millrace.errors import ConfigError
from millrace.lab.bench import log_bench, peers


def test_blocks_are_counted_and_their_messages_too() -> None:
    rows = {(row.figure, row.unit): row.value for row in log_bench.block_rows()}
    for figure in ("block encode", "block decode"):
        assert rows[figure, "messages/s"] == pytest.approx(2_000 * rows[figure, "blocks/s"])


def test_a_restart_that_would_fill_the_disk_is_refused(tmp_path: Path) -> None:
    never = peers.Broker(name="never", version="1", command=lambda ports, directory: ["/nonexistent"])
    with pytest.raises(log_bench.BenchError, match="give a smaller --size"):
        log_bench.restart_rows(never, 1 << 60, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "size"), [("1GiB", 1 << 30), ("1GB", 10**9), ("1.5GiB", 3 << 29), ("4096", 4096)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert _bytes(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "GiB", "1XB"])
def test_a_size_that_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="--size"):
        _bytes(text)


@pytest.mark.slow
def test_readers_catch_up_and_a_node_comes_back(tmp_path: Path) -> None:
    broker = peers.this_broker("python")
    rows = log_bench.catch_up_rows(broker, 2_000) + log_bench.restart_rows(broker, 1 << 20, tmp_path)
    assert len(rows) == 6 and all(row.value > 0 for row in rows)
