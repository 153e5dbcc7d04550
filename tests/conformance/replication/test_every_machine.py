"""All machines have one shape: `step(event) -> list of effects`, and tables of the changes that are legal."""

import inspect
from enum import Enum

import pytest

from millrace.replication.contract import Effect, Event, Machine
from millrace.replication.frame import sides as frame_sides
from millrace.replication.frame.machine import Frame
from millrace.replication.frame.messages import FrameEffect, FrameEvent
from millrace.replication.leaderless import work_division
from millrace.replication.leaderless.machine import Leaderless
from millrace.replication.leaderless.messages import LeaderlessEffect, LeaderlessEvent
from millrace.replication.pair import roles as pair_roles
from millrace.replication.pair.machine import PrimaryBackup
from millrace.replication.raft import roles as raft_roles
from millrace.replication.raft.machine import Raft
from millrace.replication.routed.machine import Routed, RoutedEffect, RoutedEvent

# Checked by mypy: each is a `Machine` of its own events and effects.
RAFT: type[Machine[Event, Effect]] = Raft
PAIR: type[Machine[Event, Effect]] = PrimaryBackup
LEADERLESS: type[Machine[LeaderlessEvent, LeaderlessEffect]] = Leaderless
ROUTED: type[Machine[RoutedEvent, RoutedEffect]] = Routed
FRAME: type[Machine[FrameEvent, FrameEffect]] = Frame

TABLES: dict[str, dict[Enum, frozenset[Enum]]] = {
    "raft roles": {**raft_roles.TRANSITIONS},
    "roles of a pair": {**pair_roles.TRANSITIONS},
    "divisions of a leaderless group": {**work_division.TRANSITIONS},
    "copies of a frame run": {**frame_sides.TRANSITIONS},
}


@pytest.mark.parametrize("machine", [RAFT, PAIR, LEADERLESS, ROUTED, FRAME], ids=lambda one: one.__name__)
def test_a_machine_has_a_step_and_says_what_it_implements(machine: type) -> None:
    assert [*inspect.signature(machine.step).parameters] == ["self", "event"]  # type: ignore[attr-defined]
    header = inspect.getdoc(inspect.getmodule(machine)) or ""
    assert "It departs from" in header or "It follows no paper" in header


@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_a_row_for_every_state_and_every_state_can_be_reached(name: str) -> None:
    table = TABLES[name]
    states = {*type(next(iter(table)))}
    assert table.keys() == states
    first = {raft_roles.Role.FOLLOWER, work_division.DivisionState.UNDIVIDED}
    begins = {frame_sides.CopyState.UNWANTED, frame_sides.CopyState.QUEUED}
    reached = {state for rows in table.values() for state in rows} | first | begins
    assert states <= reached
