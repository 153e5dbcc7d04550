"""What the log of the meta group says: one struct per command about the whole cluster.

A command may be refused when it is applied, everywhere alike: `MetaState.apply` returns why. Therefore these
are named as orders, where the entries of other logs are named as facts.
"""

from millrace.broker.access import Role, Rule
from millrace.broker.entries.codec import Entry, EntryCodec
from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.meta.access import ScramKeys, Token, User
from millrace.broker.meta.members import Member
from millrace.broker.meta.pipelines import Fence, PipelineSpec, Steer
from millrace.broker.meta.writers import Winners
from millrace.broker.streams.stream import StreamSpec


class PutStream(Entry, frozen=True, tag="stream.put"):
    """Make or change a stream; `create_only` refuses one that exists. `away` are the nodes that the one that
    was asked does not hear: new shards begin without them where others are enough."""

    spec: StreamSpec
    create_only: bool
    away: tuple[str, ...] = ()


class DeleteStream(Entry, frozen=True, tag="stream.delete"):
    name: str


class PutGroup(Entry, frozen=True, tag="group.put"):
    """Make or change a durable group; `starts` says by shard where it begins."""

    spec: DurableGroupSpec
    create_only: bool
    starts: dict[int, int]


class DeleteGroup(Entry, frozen=True, tag="group.delete"):
    name: str


class InitCluster(Entry, frozen=True, tag="cluster.init"):
    """The first node makes the cluster."""

    cluster: str
    member: Member


class PutMember(Entry, frozen=True, tag="member.put"):
    """A node joins, or says where it is to be found now."""

    member: Member


class DrainMember(Entry, frozen=True, tag="member.drain"):
    replica: str
    is_draining: bool


class RemoveMember(Entry, frozen=True, tag="member.remove"):
    replica: str


class PlaceGroup(Entry, frozen=True, tag="replicas.place"):
    """A replication group is to be kept by these nodes."""

    group: int
    replicas: tuple[str, ...]


class CommitBatch(Entry, frozen=True, tag="writer.commit"):
    """Decide which attempts of a staged batch won."""

    writer: str
    batch: int
    winners: Winners
    user: str
    fence: Fence | None = None
    """The run of a pipeline that asks; void unless it is the newest."""


class AbortAttempts(Entry, frozen=True, tag="writer.abort"):
    """These attempts of a staged batch will never win."""

    writer: str
    batch: int
    attempts: list[str]
    user: str


class BatchRolled(Entry, frozen=True, tag="writer.rolled"):
    """A decided batch is visible at this shard."""

    writer: str
    batch: int
    shard: int


class ReportPair(Entry, frozen=True, tag="pair.report"):
    """A node of a pair asks to record who is primary; void unless the record has the version `after`."""

    shard: int
    after: int
    epoch: int
    primary: str
    is_in_sync: bool
    is_seized: bool


class ReplaceBackup(Entry, frozen=True, tag="pair.backup"):
    """Another node is to be the backup; void unless the record has the version `after`."""

    shard: int
    after: int
    backup: str | None


class AddUser(Entry, frozen=True, tag="user.add"):
    user: User


class SetPassword(Entry, frozen=True, tag="user.password"):
    """Another password for a user; an empty hash takes it away."""

    name: str
    password_hash: str
    scram: ScramKeys | None = None


class SetRoles(Entry, frozen=True, tag="user.roles"):
    name: str
    roles: tuple[Role, ...]


class DeleteUser(Entry, frozen=True, tag="user.delete"):
    """Remove a user with the user's rules and tokens."""

    name: str


class AddRule(Entry, frozen=True, tag="rule.add"):
    """Add a rule at this position, counted from 1; 0 is after all others."""

    rule: Rule
    position: int


class DeleteRule(Entry, frozen=True, tag="rule.delete"):
    number: int


class AddToken(Entry, frozen=True, tag="token.add"):
    token: Token


class DeleteToken(Entry, frozen=True, tag="token.delete"):
    name: str


class LoadAccess(Entry, frozen=True, tag="access.load"):
    """All users and rules from a file; `only_first` refuses where the cluster ever had any."""

    users: tuple[User, ...]
    rules: tuple[Rule, ...]
    only_first: bool


class PutPipeline(Entry, frozen=True, tag="pipeline.put"):
    """Make a pipeline, or give one another file and other settings."""

    spec: PipelineSpec
    text: str
    user: str
    create_only: bool


class SteerPipeline(Entry, frozen=True, tag="pipeline.steer"):
    name: str
    order: Steer


class DeletePipeline(Entry, frozen=True, tag="pipeline.delete"):
    name: str


class OwnPipeline(Entry, frozen=True, tag="pipeline.own"):
    """A replica runs it from now on, or begins to run it again; nobody where `owner` is empty. Void unless
    its epoch is still `after`."""

    name: str
    after: int
    owner: str


class BeginPipeline(Entry, frozen=True, tag="pipeline.begin"):
    """There is a place for its checkpoints."""

    name: str
    epoch: int


class FailPipeline(Entry, frozen=True, tag="pipeline.fail"):
    """Its owner gives it up."""

    name: str
    epoch: int
    reason: str


class RenewPipelines(Entry, frozen=True, tag="pipeline.renew"):
    """Whoever owns pipelines is there."""

    owner: str


PipelineEntry = (
    PutPipeline | SteerPipeline | DeletePipeline | OwnPipeline | BeginPipeline | FailPipeline | RenewPipelines
)

AccessEntry = (
    AddUser | SetPassword | SetRoles | DeleteUser | AddRule | DeleteRule | AddToken | DeleteToken | LoadAccess
)

MetaEntry = (
    PutStream
    | DeleteStream
    | PutGroup
    | DeleteGroup
    | InitCluster
    | PutMember
    | DrainMember
    | RemoveMember
    | PlaceGroup
    | CommitBatch
    | AbortAttempts
    | BatchRolled
    | ReportPair
    | ReplaceBackup
    | PipelineEntry
    | AccessEntry
)

META_ENTRIES: EntryCodec[MetaEntry] = EntryCodec(MetaEntry)
