"""What strangers do makes one line of each kind in a second, whatever they call themselves."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from millrace.node.doors import mqtt_door
from millrace.node.seldom import Seldom


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def scene() -> Iterator[tuple[logging.Logger, Kept, list[float]]]:
    logger, kept, now_s = logging.getLogger("millrace.test.seldom"), Kept(), [100.0]
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.handlers, logger.filters = [kept], [Seldom(lambda: now_s[0])]
    yield logger, kept, now_s
    logger.handlers, logger.filters = [], []


def refuse(logger: logging.Logger, client: object, reason: int = 0x87) -> None:
    logger.info("refused %s: %s (0x%02x)", client, "no", reason)


def test_a_flood_of_refusals_is_one_line_a_second_with_their_number(scene: Any) -> None:
    logger, kept, now_s = scene
    for number in range(1_000):
        refuse(logger, f"client{number}")
    assert kept.lines == ["refused client0: no (0x87)"]
    now_s[0] += 1.0
    refuse(logger, "late")
    refuse(logger, "later")
    assert kept.lines[1:] == ["refused late: no (0x87) (and 999 more since the last one)"]


def test_another_reason_and_another_sentence_are_other_kinds(scene: Any) -> None:
    logger, kept, _ = scene
    refuse(logger, "a")
    refuse(logger, "b", 0x97)
    logger.info("closing %s: %s", "c", "it does not read")
    logger.info("closing %s: %s", "d", "it does not read")
    assert len(kept.lines) == 3


def test_errors_and_what_is_only_for_debugging_are_all_written(scene: Any) -> None:
    logger, kept, _ = scene
    for _ in range(3):
        logger.error("broken")
        logger.debug("detail")
    assert len(kept.lines) == 6


def test_the_lines_of_mqtt_connections_are_of_this_sort() -> None:
    assert mqtt_door.log.name == "millrace.door"
    assert any(isinstance(one, Seldom) for one in logging.getLogger("millrace.mqtt").filters)
