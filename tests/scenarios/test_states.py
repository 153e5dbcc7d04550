"""The drawing of a replica's states in the documentation is made from the table that the machine enforces.

After a change of the table: pytest tests/scenarios/test_states.py --rewrite
"""

from pathlib import Path

import pytest

from millrace.replication.raft.roles import TRANSITIONS, Role

PAGE = Path(__file__).resolve().parents[2] / "docs" / "understand" / "guarantees.md"
BEGIN, END = "<!-- states: begin -->\n", "<!-- states: end -->\n"


def drawing() -> str:
    """Mermaid, in the order in which the roles are declared."""
    names = {role: role.value.replace("-", "_") for role in Role}
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {names[Role.FOLLOWER]}"]
    lines += [
        f"    {names[role]} --> {names[target]}"
        for role in Role
        for target in Role
        if target in TRANSITIONS[role]
    ]
    return "\n".join([*lines, "```", ""])


def test_the_drawing_shows_the_table(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    before, begin, rest = text.partition(BEGIN)
    shown, end, after = rest.partition(END)
    assert begin and end, f"{PAGE.name} has no place for the drawing"
    if request.config.getoption("--rewrite"):
        PAGE.write_text(before + BEGIN + drawing() + END + after)
        return
    assert shown == drawing(), "the table changed: run again with --rewrite"


def test_every_role_is_in_the_drawing_and_no_arrow_is_missing() -> None:
    text = drawing()
    assert all(role.value.replace("-", "_") in text for role in Role)
    assert text.count("-->") == 1 + sum(map(len, TRANSITIONS.values()))
