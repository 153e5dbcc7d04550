"""Every story comes out as its file tells it, and every promise holds on the way (the stage checks them).

`bugs/NAME.txt` is the story that the planted bug NAME does not survive: the same file, played by replicas
that have the bug, makes a checker or an invariant speak. So each planted bug is a bug, and each checker can
fail.
"""

from pathlib import Path

import pytest

from millrace.errors import RemoteError
from millrace.lab.sim.planted.bug import planted
from millrace.lab.sim.planted.raft import MACHINE_BUGS
from scenarios.stories import Story

HERE = Path(__file__).parent
STORIES = sorted([*HERE.glob("*.txt"), *HERE.glob("bugs/*.txt")])
STORY_OF_BUG = {path.stem: path for path in HERE.glob("bugs/*.txt")} | {
    "commit_prior_term": HERE / "figure_8.txt",
    "damage_ignored": HERE / "damaged_replica.txt",
}


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story_comes_out_as_told(path: Path, request: pytest.FixtureRequest) -> None:
    told = Story(path).play()
    if request.config.getoption("--rewrite", default=False):
        path.write_text(told)
    assert told == path.read_text()


@pytest.mark.parametrize("name", sorted(MACHINE_BUGS))
def test_planted_bug_is_noticed(name: str) -> None:
    with planted(MACHINE_BUGS, frozenset({name})), pytest.raises((AssertionError, RemoteError)):
        Story(STORY_OF_BUG[name]).play()


def test_no_story_is_about_a_bug_that_is_not_there() -> None:
    assert STORY_OF_BUG.keys() == MACHINE_BUGS.keys()
