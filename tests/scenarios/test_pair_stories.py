"""Every story of a primary-backup pair comes out as its file tells it, with the checkers of the stage on."""

from pathlib import Path

import pytest

from scenarios.pair_stories import PairStory

STORIES = sorted((Path(__file__).parent / "pairs").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_comes_out_as_told(path: Path, request: pytest.FixtureRequest) -> None:
    told = PairStory(path).play()
    if request.config.getoption("--rewrite", default=False):
        path.write_text(told)
    assert told == path.read_text()


def test_the_stories_that_must_be_told_are_there() -> None:
    assert {path.stem for path in STORIES} >= {"promotion", "split", "return", "resynchronise", "switch_over"}
