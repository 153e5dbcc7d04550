"""Campaigns add up over slices, and the command says what happened by text, JSON and exit status."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.cli.lab.sim import app
from millrace.errors import LocalError
from millrace.lab.sim import campaign
from millrace.lab.sim.campaign import CampaignFile, results, run_slice
from millrace.lab.sim.verdict import RunResult


def invoke(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.stdout


def test_slices_go_on_where_the_last_ended_and_add_up(tmp_path: Path) -> None:
    path = tmp_path / "campaign.json"
    first = run_slice(range(3), file=CampaignFile(path))
    assert CampaignFile(path).next_seed("raft") == 3
    code, _ = invoke("--seeds", "2", "--resume", str(path))
    assert code == 0
    slices = CampaignFile(path).slices
    assert [(one.first_seed, one.seeds) for one in slices] == [(0, 3), (3, 2)]
    assert slices[0].operations == first.operations > 0
    assert slices[0].sources == slices[1].sources


def test_a_file_that_is_no_campaign_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text('{"other": 1}')
    with pytest.raises(LocalError, match="not a campaign file"):
        CampaignFile(path)
    assert path.read_text() == '{"other": 1}'


def test_two_processes_give_the_same_results_in_the_same_order() -> None:
    seeds = range(4)
    assert list(results(seeds, frozenset(), jobs=2)) == list(results(seeds, frozenset(), jobs=1))


def test_a_slice_begins_no_seed_after_its_time_and_keeps_all_that_it_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0

    def run(seed: int, trace: object) -> RunResult:
        nonlocal now_s
        now_s += 1
        return replace(result, seed=seed)

    (result,) = results(range(1), frozenset(), jobs=1)
    monkeypatch.setitem(campaign.RUNS, "raft", run)
    monkeypatch.setattr(campaign.time, "monotonic", lambda: now_s)
    assert [one.seed for one in results(range(9), frozenset(), jobs=1, until_s=2.5)] == [0, 1, 2]
    now_s = 0.0
    assert run_slice(range(9), seconds_max=2.5).seeds == 3


def test_one_seed_prints_its_trace_and_its_hash() -> None:
    code, text = invoke("--seed", "3", "--trace")
    assert code == 0
    lines = text.splitlines()
    assert any("leader@1" in line for line in lines)
    assert "seed 3: clean" in lines[-1]


def test_a_violation_exits_1_and_says_how_to_replay() -> None:
    code, text = invoke("--seed", "0", "--mutation", "ack_before_fsync")
    assert code == 1
    assert "broke `sent too early`" in text
    assert "replay: millrace sim --seed 0 --mutation ack_before_fsync --trace" in text


def test_a_search_reports_the_seeds_it_took() -> None:
    code, text = invoke("--mutation", "ack_before_fsync", "--json")
    assert code == 0
    [row] = json.loads(text)
    assert row["name"] == "ack_before_fsync"
    assert row["seeds"] >= 1
