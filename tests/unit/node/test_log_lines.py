"""Log lines have a date, name their node as JSON, and are one line whatever a client put into them."""

import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.node import log_lines

HOSTILE = 'a"b\n02:00:00 error forged: x\r\x1b[31m\x00\x7f\x85\u2028\u2029 <script>'


def _formatted(format: Any) -> str:
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        log_lines.configure("debug", format, "n7")
        formatter = logging.getLogger().handlers[0].formatter
    finally:
        logging.getLogger().handlers[:], _ = before
        logging.getLogger().setLevel(before[1])
    assert formatter is not None
    record = logging.LogRecord("millrace.x", logging.INFO, "", 0, "client %s came", (HOSTILE,), None)
    return formatter.format(record)


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_hostile_name_makes_no_second_line(format: str) -> None:
    line = _formatted(format)
    assert len(line.splitlines()) == 1
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in line)


def test_json_gives_the_name_back_as_it_was() -> None:
    assert json.loads(_formatted("json"))["message"] == f"client {HOSTILE} came"


def test_text_shows_what_was_there() -> None:
    assert "\\x0a02:00:00 error forged" in _formatted("text")
    assert "<script>" in _formatted("text")


@pytest.fixture
def restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("millrace")
    before = (root.handlers[:], root.level, ours.level)
    yield
    root.handlers[:], level, our_level = before
    root.setLevel(level)
    ours.setLevel(our_level)


@pytest.mark.usefixtures("restored")
def test_a_line_for_people_begins_with_the_date(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("info", "text", "n7")
    logging.getLogger("millrace.x").info("hello %s", "there")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} info    millrace\.x: hello there\n", capsys.readouterr().err
    )


@pytest.mark.usefixtures("restored")
def test_a_json_line_has_the_node_and_a_time_with_its_offset(capsys: pytest.CaptureFixture[str]) -> None:
    log_lines.configure("info", "json", "n7")
    logging.getLogger("millrace.x").info("hello")
    fields = json.loads(capsys.readouterr().err)
    assert (fields["node"], fields["level"], fields["message"]) == ("n7", "info", "hello")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", fields["time"])
