"""Random and mutated input in small: `make fuzz` does the same for as long as it is let."""

import logging
from random import Random

import pytest

import fuzz
from e2e.raw_peer import others_are_served


@pytest.mark.parametrize("seed", [1, 2])
def test_no_input_brings_an_error_or_keeps_others_from_being_served(seed: int) -> None:
    errors = fuzz.Errors()
    logging.getLogger().addHandler(errors)
    random = Random(seed)
    try:
        with fuzz.node() as broker:
            for door in ("mqtt", "mqtt", "mqtt", "text", "http"):
                fuzz.send(broker, door, random, 100)
            for _ in range(10):
                fuzz.send(broker, "peer", random, 1)
            fuzz.read_frames(random, 1_000)
            others_are_served(broker)
    finally:
        logging.getLogger().removeHandler(errors)
    assert errors.found == []
