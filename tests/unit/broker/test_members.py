"""Members of the cluster: a node that is being drained stays so however often it says who it is."""

from typing import Any

import pytest

from millrace.broker.meta.members import Member
from millrace.broker.meta.state import MetaState, command


def said(replica: str, name: str, port: int = 1) -> dict[str, Any]:
    """What a node says of itself when it joins, or when its addresses have changed."""
    return {"replica": replica, "name": name, "peer": f"h:{port}", "mqtt": "", "http": ""}


def apply(state: MetaState, op: str, **fields: Any) -> None:
    assert state.apply(command(op, **fields)).error is None


@pytest.fixture
def state() -> MetaState:
    """Two nodes, of which the second is being drained."""
    made = MetaState()
    apply(made, "cluster.init", cluster="c", member=said("r1", "n1"))
    apply(made, "member.put", member=said("r2", "n2"))
    apply(made, "member.drain", replica="r2", draining=True)
    return made


def second(state: MetaState) -> Member:
    return state.members.by_name("n2")


@pytest.mark.parametrize("port", [1, 2], ids=["joins again", "has moved"])
def test_a_draining_node_that_announces_itself_again_stays_draining(state: MetaState, port: int) -> None:
    """Else a restart in the middle of a drain gives it new replicas, and whoever waits for it to be empty
    waits for ever."""
    apply(state, "member.put", member=said("r2", "n2", port))
    assert second(state).is_draining and second(state).peer == f"h:{port}"
    assert state.members.choose(2) == ("r1",), "it gets nothing new"


def test_a_drain_is_called_off_by_a_command_alone(state: MetaState) -> None:
    apply(state, "member.drain", replica="r2", draining=False)
    apply(state, "member.put", member=said("r2", "n2"))
    assert not second(state).is_draining
    assert set(state.members.choose(2)) == {"r1", "r2"}


def test_the_same_name_with_an_empty_directory_is_another_node_and_not_draining(state: MetaState) -> None:
    apply(state, "member.put", member=said("r3", "n2"))
    assert second(state).replica == "r3" and not second(state).is_draining


def test_a_snapshot_remembers_who_is_draining(state: MetaState) -> None:
    again = MetaState.from_bytes(state.to_bytes())
    assert second(again).is_draining
