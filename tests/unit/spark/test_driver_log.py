"""The log of a pipeline's drivers, which is written for as long as the pipeline runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from millrace.errors import ConfigError
from millrace.spark.supervisor import Plan, Supervisor, cause_of_death, last_words, opened_log


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


def test_a_driver_that_was_killed_leaves_its_last_lines(tmp_path: Path) -> None:
    """Those of this driver, not an error of the one before."""
    log = tmp_path / "driver.log"
    log.write_bytes(b"ValueError: of the driver before\n")
    begin = log.stat().st_size
    assert last_words(log, begin) == ""
    with log.open("ab") as file:
        file.write(b"one\ntwo\n\nthree\nfour\n")
    words = last_words(log, begin)
    assert words == "two | three | four"
    assert cause_of_death(-9, words) == "the driver was killed by SIGKILL; its last words: two | three | four"
    assert cause_of_death(-9, "") == "the driver was killed by SIGKILL"
    assert cause_of_death(3, "") == "it ended with status 3"
    assert cause_of_death(1, "ValueError: x") == "ValueError: x"


def test_trigger_pages_and_nodes_reach_the_driver(tmp_path: Path) -> None:
    file = tmp_path / "p.py"
    plan = Plan(
        name="p",
        file=file,
        state=tmp_path,
        urls="http://127.0.0.1:1",
        trigger="500ms",
        ui_port=4040,
        configuration=("spark.millrace.url=http://127.0.0.1:2",),
    )
    supervisor = Supervisor(plan, lambda state: None)
    command = " ".join(supervisor._command(3))
    assert "--trigger 500ms" in command
    assert "--conf spark.ui.enabled=true --conf spark.ui.port=4040" in command
    assert supervisor._environment()["MILLRACE_URL"] == "http://127.0.0.1:2"
    supervisor._teller.close()
    wrong = Supervisor(replace(plan, trigger="often"), lambda state: None)
    file.write_text("def build(flow): pass\n")
    with pytest.raises(ConfigError, match="trigger = 'often' is not a time such as 500ms"):
        wrong.run()
