"""The log of a pipeline's drivers, which is written for as long as the pipeline runs."""

from pathlib import Path

from millrace.spark.supervisor import last_words, opened_log


def test_a_log_that_is_long_is_set_aside_at_a_start(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    for text in (b"first\n", b"second\n"):
        with opened_log(path) as log:
            log.write(text)
    assert path.read_bytes() == b"first\nsecond\n"
    with path.open("r+b") as log:
        log.truncate(64 * 1024 * 1024 + 1)
    with opened_log(path) as log:
        log.write(b"third\n")
    assert path.read_bytes() == b"third\n"
    assert (tmp_path / "driver.log.1").stat().st_size > 64 * 1024 * 1024


def test_the_last_words_are_found_without_reading_all_of_it(tmp_path: Path) -> None:
    log = tmp_path / "driver.log"
    with log.open("wb") as file:
        file.write(b"Error: early\n")
        # Nothing of it is on the disk, and it would not fit into memory.
        file.truncate(1 << 36)
        file.seek(0, 2)
        file.write(b"\nValueError: late\nand so on\n")
    assert last_words(log) == "ValueError: late"
    log.write_bytes(b"")
    assert last_words(log) == ""
