"""Commands of the meta group survive their encoding, and so does the state they lead to."""

from typing import get_args

import pytest

from millrace.broker.access import AccessRules, Action, Effect, Role, Rule
from millrace.broker.entries.meta import (
    META_ENTRIES,
    AbortAttempts,
    AddRule,
    AddToken,
    AddUser,
    BatchRolled,
    BeginPipeline,
    CommitBatch,
    DeleteGroup,
    DeletePipeline,
    DeleteRule,
    DeleteStream,
    DeleteToken,
    DeleteUser,
    DrainMember,
    FailPipeline,
    InitCluster,
    LoadAccess,
    MetaEntry,
    OwnPipeline,
    PlaceGroup,
    PutGroup,
    PutMember,
    PutPipeline,
    PutStream,
    RemoveMember,
    RenewPipelines,
    ReplaceBackup,
    ReportPair,
    SetPassword,
    SetRoles,
    SteerPipeline,
)
from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.meta.access import Token, User
from millrace.broker.meta.members import Member
from millrace.broker.meta.pipelines import Fence, PipelineSpec, Steer
from millrace.broker.meta.state import FIRST_SHARD, MetaState
from millrace.broker.streams.pair_spec import PairSpec, TopicClass
from millrace.broker.streams.stream import Replication, StreamSpec
from millrace.errors import LocalError

FIRST, SECOND = (Member(replica=name, name=name, peer=f"{name}:1", http="h:2") for name in "ab")
PAIR = StreamSpec(
    name="pair",
    filters=("p/#", "q/+"),
    replication=Replication.PRIMARY_BACKUP,
    shards=2,
    primary_backup=PairSpec(topics=(TopicClass(filter="p/#", period_ms=9, deadline_ms=9),)),
)
EDGE = StreamSpec(name="edge", filters=("e/#",), edge="module:function", retention_bytes=5)
PLAIN = StreamSpec(name="plain", filters=("x/#",))
GROUP = DurableGroupSpec(name="g", filters=("x/#",), deliveries_max=3, dead_letter="dead")
PIPELINE = PipelineSpec(name="p", file="p.py", node="a", settings=("x=1",), ui_port=4040)
SHARD = FIRST_SHARD + 1
RULE = Rule(user="*", effect=Effect.ALLOW, action=Action.PUBLISH, filter="x/%u/#")
ROOT = User(name="root", password_hash="h", roles=(Role.ADMIN, Role.OBSERVER))
TOKEN = Token(name="t", user="ann", digest="d", scope=(RULE,), roles=(), expires_us=5, created_us=1)
ENTRIES: list[MetaEntry] = [
    InitCluster("c", FIRST),
    PutMember(SECOND),
    PutStream(PAIR, create_only=True),
    ReportPair(SHARD, after=1, epoch=1, primary="b", is_in_sync=False, is_seized=True),
    ReplaceBackup(SHARD, 2, None),
    PutStream(EDGE, create_only=False),
    PutStream(PLAIN, create_only=True),
    PutGroup(GROUP, create_only=True, starts={FIRST_SHARD: 7, SHARD: 1}),
    PutGroup(DurableGroupSpec(name="queue:t", filters=("t",)), create_only=True, starts={}),
    DeleteGroup("queue:t"),
    CommitBatch("w", 0, {"a": {FIRST_SHARD: 2}}, "ann"),
    CommitBatch("w", 1, {"b": {FIRST_SHARD: 1, SHARD: 1}}, "ann"),
    BatchRolled("w", 0, FIRST_SHARD),
    AbortAttempts("w", 2, ["z", "y"], "ann"),
    DeleteStream("plain"),
    PlaceGroup(0, ("a", "b")),
    DrainMember("b", is_draining=True),
    RemoveMember("b"),
    LoadAccess((ROOT, User(name="old name")), (RULE,), only_first=True),
    AddUser(User(name="ann", password_hash="h")),
    SetPassword("ann", "h2"),
    SetRoles("ann", (Role.OPERATOR,)),
    AddRule(Rule(user="ann", effect=Effect.DENY, action=Action.ALL, filter="#"), 1),
    AddToken(TOKEN),
    AddToken(Token(name="u", user="root", digest="e")),
    DeleteRule(1),
    DeleteToken("u"),
    DeleteUser("old name"),
    PutPipeline(PIPELINE, "x = 1", "ann", create_only=True),
    OwnPipeline("p", 0, "a"),
    BeginPipeline("p", 1),
    RenewPipelines("a"),
    CommitBatch("w", 3, {"c": {FIRST_SHARD: 1}}, "ann", Fence(1, 1)),
    FailPipeline("p", 1, "no table"),
    SteerPipeline("p", Steer.START),
    PutPipeline(PipelineSpec(name="q", file="q.sql", checkpoints="s3a://b/c"), "", "ann", create_only=True),
    DeletePipeline("q"),
]


def test_every_kind_of_entry_is_written_and_read() -> None:
    assert {type(entry) for entry in ENTRIES} == set(get_args(MetaEntry))
    assert META_ENTRIES.decode(META_ENTRIES.encode(ENTRIES)) == ENTRIES


def test_a_snapshot_after_any_entry_goes_on_like_the_state_it_was_taken_of() -> None:
    state, restored = MetaState(), MetaState()
    for entry in ENTRIES:
        result = state.apply(entry)
        assert result.error is None, (entry, result)
        restored = MetaState.from_bytes(restored.to_bytes())
        assert restored.apply(entry) == result
        assert restored.to_bytes() == state.to_bytes()
    assert restored.groups.is_gone(2) and restored.groups.numbered(1) is not None
    assert restored.access.tokens == {"d": TOKEN} and [one.number for one in restored.access.rules] == [2]
    assert restored.access.rules_after(AccessRules()).principal("root", "c").may_publish("any")
    assert restored.writers.waiting(SHARD) and not restored.members.by_name("a").is_draining


def test_a_refused_entry_says_why_and_changes_nothing() -> None:
    state = MetaState()
    before = state.to_bytes()
    refused: tuple[MetaEntry, ...] = (
        DeleteStream("none"),
        DeleteGroup("none"),
        RemoveMember("x"),
        ReplaceBackup(99, 1, "a"),
        DeleteUser("nobody"),
        DeleteRule(1),
        AddToken(TOKEN),
    )
    for entry in refused:
        assert state.apply(entry).error
    assert state.to_bytes() == before


@pytest.mark.parametrize("data", [b"", b"{}", b"\x01\x90", MetaState().to_bytes()[:-1]])
def test_a_state_that_cannot_be_read_is_refused(data: bytes) -> None:
    with pytest.raises(LocalError):
        MetaState.from_bytes(data)
