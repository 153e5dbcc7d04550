"""Members of the cluster: a node that is being drained stays so however often it says who it is."""

import pytest

from millrace.broker.entries.meta import DrainMember, InitCluster, MetaEntry, PutMember
from millrace.broker.meta.members import Member
from millrace.broker.meta.state import MetaState


def said(replica: str, name: str, port: int = 1) -> PutMember:
    """What a node says of itself when it joins, or when its addresses have changed."""
    return PutMember(Member(replica=replica, name=name, peer=f"h:{port}"))


def apply(state: MetaState, entry: MetaEntry) -> None:
    assert state.apply(entry).error is None


@pytest.fixture
def state() -> MetaState:
    """Two nodes, of which the second is being drained."""
    made = MetaState()
    apply(made, InitCluster("c", said("r1", "n1").member))
    apply(made, said("r2", "n2"))
    apply(made, DrainMember("r2", is_draining=True))
    return made


def second(state: MetaState) -> Member:
    return state.members.by_name("n2")


@pytest.mark.parametrize("port", [1, 2], ids=["joins again", "has moved"])
def test_a_draining_node_that_announces_itself_again_stays_draining(state: MetaState, port: int) -> None:
    """Else a restart in the middle of a drain gives it new replicas, and whoever waits for it to be empty
    waits for ever."""
    apply(state, said("r2", "n2", port))
    assert second(state).is_draining and second(state).peer == f"h:{port}"
    assert state.members.choose(2) == ("r1",), "it gets nothing new"


def test_a_drain_is_called_off_by_a_command_alone(state: MetaState) -> None:
    apply(state, DrainMember("r2", is_draining=False))
    apply(state, said("r2", "n2"))
    assert not second(state).is_draining
    assert set(state.members.choose(2)) == {"r1", "r2"}


def test_the_same_name_with_an_empty_directory_is_another_node_and_not_draining(state: MetaState) -> None:
    apply(state, said("r3", "n2"))
    assert second(state).replica == "r3" and not second(state).is_draining


def test_a_snapshot_remembers_who_is_draining(state: MetaState) -> None:
    again = MetaState.from_bytes(state.to_bytes())
    assert second(again).is_draining


def test_no_two_replicas_of_a_group_share_a_machine() -> None:
    """A machine that is lost takes one replica of a shard with it, however many nodes run on it."""
    made = MetaState()
    apply(made, InitCluster("c", Member(replica="a1", name="a1", peer="h:1", host="a")))
    for name in ("a2", "a3", "b1", "b2"):
        apply(made, PutMember(Member(replica=name, name=name, peer="h:1", host=name[0])))
    chosen = made.members.choose(3)
    assert sorted(name[0] for name in chosen) == ["a", "b"]
    assert made.members.choose(3, keep=("a2",), away=("b1",)) == ("a2", "b2")
    assert made.members.hosts() == {"a", "b"}
