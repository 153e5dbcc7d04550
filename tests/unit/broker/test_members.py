"""Members of the cluster: a node that is being drained stays so however often it says who it is."""

import msgspec
import pytest
from msgspec.structs import replace

from millrace.broker.entries.meta import DrainMember, InitCluster, MetaEntry, PutMember, RemoveMember
from millrace.broker.meta.members import Member
from millrace.broker.meta.state import MetaState
from millrace.version import LEVEL_MIN, LEVEL_UNSAID, Feature


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


def levelled(*levels: int) -> MetaState:
    """A cluster whose nodes n1, n2, ... understand these levels."""
    made = MetaState()
    for number, level in enumerate(levels, 1):
        member = replace(said(f"r{number}", f"n{number}").member, level=level)
        apply(made, PutMember(member) if number > 1 else InitCluster("c", member))
    return made


def again(state: MetaState, name: str, level: int) -> str | None:
    """A node of the cluster comes back with another release."""
    return state.apply(PutMember(replace(state.members.by_name(name), level=level))).error


def test_the_level_of_a_cluster_is_the_lowest_of_its_members_and_never_falls() -> None:
    state = levelled(4, 4, 4)
    for name in ("n1", "n2", "n3"):
        assert state.members.level == 4
        assert again(state, name, 5) is None
    assert state.members.level == 5
    error = again(state, "n1", 4)
    assert error is not None and error.startswith("node n1 is too old: it understands level 4")
    assert state.members.level == 5
    assert MetaState.from_bytes(state.to_bytes()).members.level == 5


def test_a_node_may_go_back_while_others_are_not_upgraded_yet() -> None:
    state = levelled(4, 4)
    assert again(state, "n1", 5) is None
    assert again(state, "n1", 4) is None


def test_a_node_two_releases_ahead_is_refused_and_one_that_was_behind_holds_nobody_back_once_removed() -> (
    None
):
    state = levelled(4, 5)
    error = again(state, "n2", 6)
    assert error is not None and error.startswith(
        "node n2 is too new: it understands level 6, and node n1 level 4"
    )
    apply(state, RemoveMember("r1"))
    assert state.members.level == 5
    assert again(state, "n2", 6) is None


def test_a_feature_is_used_once_all_members_understand_it() -> None:
    feature = Feature.UNANSWERED_IN_RECORDS
    state = levelled(feature - 1, feature)
    assert not state.members.understand(feature)
    assert again(state, "n1", feature) is None
    assert state.members.understand(feature)


def test_a_member_of_an_older_release_says_no_level() -> None:
    """Its entry lacks the field."""
    saved = msgspec.msgpack.encode({"replica": "r", "name": "n", "peer": "h:1"})
    assert msgspec.msgpack.decode(saved, type=Member).level == LEVEL_UNSAID == LEVEL_MIN
