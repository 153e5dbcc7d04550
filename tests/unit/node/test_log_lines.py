"""Log lines have a date; as JSON they name their node."""

import json
import logging
import re
from collections.abc import Iterator

import pytest

from millrace.node import log_lines


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
