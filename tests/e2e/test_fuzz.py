"""Random and mutated input in small: `make fuzz` does the same for as long as it is let."""

import logging
from random import Random

import pytest

from e2e.raw_peer import others_are_served
from fuzzing import doors, inputs, live
from loop_watch import HELD_S_MAX


@pytest.mark.parametrize("seed", [1, 2])
def test_no_input_brings_an_error_or_keeps_others_from_being_served(seed: int) -> None:
    errors = inputs.Errors()
    logging.getLogger().addHandler(errors)
    random = Random(seed)
    try:
        with inputs.node() as broker:
            inputs.warm_up(broker)
            for door in ("mqtt", "mqtt", "mqtt", "text", "http"):
                live.send(broker, door, random, 100)
            for _ in range(10):
                live.send(broker, "peer", random, 1)
            inputs.read_frames(random, 1_000)
            others_are_served(broker)
    finally:
        logging.getLogger().removeHandler(errors)
    assert errors.found == []


@pytest.mark.parametrize("seed", [1, 2])
def test_no_input_of_many_holds_the_loop_or_stays_in_memory(seed: int) -> None:
    """As above, without sockets: more of them in the same time."""
    errors = inputs.Errors()
    logging.getLogger().addHandler(errors)
    try:
        wanted = {"mqtt": 20_000, "text": 4_000, "http": 1_000}
        found = doors.run(wanted, 4_000, seed, errors)
    finally:
        logging.getLogger().removeHandler(errors)
    assert errors.found == []
    assert found.fed.keys() == wanted.keys()
    assert all(found.fed[door] >= number for door, number in wanted.items())
    assert found.longest_s <= HELD_S_MAX, found.longest
    assert found.end_bytes - found.begin_bytes < 2 * doors.GROWTH_BYTES_MAX
