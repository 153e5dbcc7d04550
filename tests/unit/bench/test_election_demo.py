"""The demo `election`, as far as it plays on a virtual clock."""

import pytest

from millrace.lab.demo import election
from millrace.lab.demo.story import Story


def test_votes_are_split_and_terms_rise_until_one_replica_leads(capsys: pytest.CaptureFixture[str]) -> None:
    assert election.play_split(Story()) == 3
    told = capsys.readouterr().out
    for term in (1, 2):
        # Both became candidates, and neither won.
        assert told.count(f"candidate in term {term}\n") - told.count(f"pre-candidate in term {term}\n") == 2
        assert f"leader in term {term}," not in told
    assert "leader in term 3, leader" in told


def test_heartbeats_and_answers_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert election.play_equal(Story()) == 1
    told = capsys.readouterr().out
    for words in ("would you vote for me in term 1?", "vote for me in term 1", "you have my vote (term 1)"):
        assert words in told
    assert "heartbeat of term 1" in told and "answer to the heartbeat of term 1" in told
