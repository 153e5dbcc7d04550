"""What the whole cluster agrees on: its nodes, streams and their shards, who keeps which, who may what, and
which pipelines run where.

A replicated state: `apply` takes one command of the meta group's log and is deterministic, so every node that
applied the same commands has the same streams, the same shard ids and the same routing generation. A command
that makes no sense changes nothing and its result says why; it was still in the log, everywhere alike.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from millrace.broker.entries.meta import (
    AbortAttempts,
    AccessEntry,
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
    PipelineEntry,
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
from millrace.broker.freezing import Pieces, encode, finished, map_head
from millrace.broker.groups.definitions import DurableGroup, DurableGroups
from millrace.broker.meta.access import AccessState, NumberedRule, Token, User
from millrace.broker.meta.members import Members
from millrace.broker.meta.pairs import QUORUM_MEMBERS, Pair, Pairs
from millrace.broker.meta.pipelines import Pipelines
from millrace.broker.meta.writers import Writer, Writers
from millrace.broker.saved_state import read_saved
from millrace.broker.streams.stream import (
    DEFAULT_SPEC,
    DEFAULT_STREAM,
    Replication,
    Stream,
    StreamSpec,
    StreamTable,
    check_filters,
    needs_new_shards,
    with_spec,
)
from millrace.errors import LocalError
from millrace.limits import STREAMS_MAX

# Group numbers below this are not shards: 0 is the meta group, the rest keep sessions.
META_GROUP = 0
SESSION_GROUP = 1
FIRST_SHARD = 16
_STATE_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command did. `sealed` and `opened` name shards for the node to act on."""

    error: str | None = None
    sealed: tuple[int, ...] = ()
    opened: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    is_repeat: bool = False
    """Of a commit: the batch was decided before, and nothing changed."""
    count: int = 0
    """Of a rule that was added: its number. Of a user who was removed: how many rules went along."""


class MetaState:
    """Streams by name. The stream `default` is always there."""

    __slots__ = (
        "_next_shard",
        "access",
        "generation",
        "groups",
        "members",
        "pairs",
        "pipelines",
        "table",
        "writers",
    )

    def __init__(self) -> None:
        self.members = Members()
        self.groups = DurableGroups()
        self.writers = Writers()
        self.pairs = Pairs()
        self.access = AccessState()
        self.pipelines = Pipelines()
        self.generation = 1
        self._next_shard = FIRST_SHARD + DEFAULT_SPEC.shards
        shards = tuple(range(FIRST_SHARD, self._next_shard))
        self.table = StreamTable(
            {DEFAULT_STREAM: Stream(spec=DEFAULT_SPEC, generation=self.generation, shards=shards)}
        )

    def apply(self, entry: MetaEntry) -> Result:
        """One entry of the log."""
        try:
            return self._apply(entry)
        except LocalError as error:
            return Result(error=str(error))

    def _apply(self, entry: MetaEntry) -> Result:
        match entry:
            case PutStream():
                return self._put(entry.spec, entry.create_only, entry.away)
            case DeleteStream():
                return self._delete(entry.name)
            case PutGroup():
                self.groups.put(entry.spec, entry.create_only, entry.starts)
            case DeleteGroup():
                self.groups.delete(entry.name)
            case InitCluster():
                groups = (META_GROUP, SESSION_GROUP, *self.shards())
                self.members.init(entry.cluster, entry.member, groups)
            case PutMember():
                self.members.put(entry.member)
            case DrainMember():
                self.members.drain(entry.replica, entry.is_draining)
            case RemoveMember():
                self.members.remove(entry.replica)
            case PlaceGroup():
                self.members.place(entry.group, entry.replicas)
            case CommitBatch():
                return self._commit(entry)
            case AbortAttempts():
                self.writers.abort(entry.writer, entry.batch, entry.attempts, entry.user)
            case BatchRolled():
                self.writers.rolled(entry.writer, entry.batch, entry.shard)
            case ReportPair():
                self._report(entry)
            case ReplaceBackup():
                self.pairs.replace_backup(entry.shard, entry.after, entry.backup)
            case (
                PutPipeline()
                | SteerPipeline()
                | DeletePipeline()
                | OwnPipeline()
                | BeginPipeline()
                | FailPipeline()
                | RenewPipelines()
            ):
                self._apply_pipeline(entry)
            case _:
                return self._apply_access(entry)
        return Result()

    def _apply_pipeline(self, entry: PipelineEntry) -> None:
        pipelines = self.pipelines
        match entry:
            case PutPipeline():
                pipelines.put(entry.spec, entry.text, entry.user, create_only=entry.create_only)
            case SteerPipeline():
                pipelines.steer(entry.name, entry.order)
            case DeletePipeline():
                pipelines.delete(entry.name)
            case OwnPipeline():
                pipelines.own(entry.name, entry.after, entry.owner)
            case BeginPipeline():
                pipelines.begin(entry.name, entry.epoch)
            case FailPipeline():
                pipelines.fail(entry.name, entry.epoch, entry.reason)
            case RenewPipelines():
                pipelines.renew(entry.owner)
            case _:
                assert_never(entry)

    def _apply_access(self, entry: AccessEntry) -> Result:
        access = self.access
        match entry:
            case AddUser():
                access.add_user(entry.user)
            case SetPassword():
                access.set_password(entry.name, entry.password_hash, entry.scram)
            case SetRoles():
                access.set_roles(entry.name, entry.roles)
            case DeleteUser():
                return Result(count=access.delete_user(entry.name))
            case AddRule():
                return Result(count=access.add_rule(entry.rule, entry.position))
            case DeleteRule():
                access.delete_rule(entry.number)
            case AddToken():
                access.add_token(entry.token)
            case DeleteToken():
                access.delete_token(entry.name)
            case LoadAccess():
                access.load(entry.users, entry.rules, only_first=entry.only_first)
            case _:
                assert_never(entry)
        return Result()

    def _put(self, spec: StreamSpec, create_only: bool, away: tuple[str, ...]) -> Result:
        streams = dict(self.table.streams)
        old = streams.get(spec.name)
        if old is not None and create_only:
            raise LocalError(
                f"stream {spec.name!r} exists; change it with: millrace stream alter {spec.name}"
            )
        if old is None and len(streams) >= STREAMS_MAX:
            raise LocalError(f"there are {STREAMS_MAX} streams, the most")
        check_filters([*(s.spec for s in streams.values() if s.spec.name != spec.name), spec])
        if old is not None and not needs_new_shards(old.spec, spec):
            streams[spec.name] = with_spec(old, spec)
            self.table = StreamTable(streams)
            return Result()
        self.generation += 1
        # What is routed is stored nowhere.
        count = 0 if spec.replication is Replication.ROUTED else spec.shards
        opened = tuple(range(self._next_shard, self._next_shard + count))
        self._next_shard += count
        is_pair = spec.replication is Replication.PRIMARY_BACKUP
        is_leaderless = spec.replication is Replication.LEADERLESS
        for shard in opened if not is_leaderless else ():
            founders = self.members.choose(2 if is_pair else spec.replicas, away=away)
            self.members.found(shard, founders)
            if is_pair:
                # One after the other, so that not every shard has the same primary.
                turn = shard % len(founders) if founders else 0
                is_seized = len(self.members.members) < QUORUM_MEMBERS
                self.pairs.found(
                    shard,
                    founders[turn:] + founders[:turn],
                    is_seized=is_seized,
                    check_interval_ms=spec.primary_backup.check_interval_ms,
                )
        sealed = old.shards if old is not None else ()
        streams[spec.name] = Stream(
            spec=spec,
            generation=self.generation,
            shards=opened,
            sealed=(*old.sealed, *old.shards) if old is not None else (),
            edges={
                **(old.edges if old is not None else {}),
                **dict.fromkeys(opened if spec.edge else (), spec.edge),
            },
            leaderless=(
                *(old.leaderless if old is not None else ()),
                *(opened if is_leaderless else ()),
            ),
        )
        before, self.table = self.table, StreamTable(streams)
        self.groups.keep(lambda filter: self._left_by(filter, before, spec.name))
        return Result(sealed=sealed, opened=opened)

    def _left_by(self, filter: str, before: StreamTable, changed: str) -> set[int]:
        """Shards where a filter's messages may be, though its topics belong elsewhere now. What a wildcard
        takes is lost by the changed stream alone; a topic may leave any."""
        is_wild = "+" in filter or "#" in filter
        old = before.streams.get(changed) if is_wild else before.find(filter)
        if old is None:
            return set()
        now = self.table.streams[old.spec.name]
        return before.shards_for(old, filter) - self.table.shards_for(now, filter)

    def _delete(self, name: str) -> Result:
        if name == DEFAULT_STREAM:
            raise LocalError("the stream 'default' stays: it takes what no other stream does")
        streams = dict(self.table.streams)
        old = streams.pop(name, None)
        if old is None:
            raise LocalError(f"there is no stream {name!r}")
        self.generation += 1
        self.table = StreamTable(streams)
        for shard in (*old.sealed, *old.shards):
            self.members.forget(shard)
            self.pairs.forget(shard)
        self.writers.remove_shards((*old.sealed, *old.shards))
        return Result(removed=(*old.sealed, *old.shards))

    def _commit(self, entry: CommitBatch) -> Result:
        self.pipelines.check(entry.fence)
        open_shards = {shard for stream in self.table.streams.values() for shard in stream.shards}
        is_new = self.writers.commit(
            entry.writer, entry.batch, entry.winners, entry.user, open_shards.__contains__
        )
        return Result(is_repeat=not is_new)

    def _report(self, entry: ReportPair) -> None:
        wanted = Pair(
            version=0,
            epoch=entry.epoch,
            primary=entry.primary,
            backup=None,
            is_in_sync=entry.is_in_sync,
        )
        self.pairs.report(entry.shard, entry.after, wanted, is_seized=entry.is_seized)

    def shards(self) -> dict[int, Stream]:
        """Every shard that exists, open or sealed, with its stream."""
        return {
            shard: stream
            for stream in self.table.streams.values()
            for shard in (*stream.sealed, *stream.shards)
        }

    # ---------------------------------------------------------------------------------- snapshots

    def freeze(self) -> "FrozenMeta":
        """All of it as it is now, to be encoded while it goes on."""
        return FrozenMeta(self)

    def to_bytes(self) -> bytes:
        """The same on every node that applied the same entries: dictionaries keep their order."""
        pieces = Pieces()
        finished(self.freeze().encode(pieces))
        return pieces.joined()

    @staticmethod
    def from_bytes(data: bytes) -> "MetaState":
        state = MetaState()
        finished(state.load(data))
        return state

    def load(self, data: bytes, rows: Iterable[tuple[str, bytes]] = ()) -> Iterator[None]:
        """Fill this one, which is new, from a snapshot, in steps. `data` may lack rows, which follow."""
        snapshot = read_saved(_decoder, data, _STATE_VERSION, "state of the meta group")
        access, groups = snapshot.access, snapshot.groups
        for field, some in rows:
            match field:
                case "groups":
                    groups += _groups_decoder.decode(some)
                case "users":
                    access.users.update(_users_decoder.decode(some))
                case "rules":
                    access.rules += _rules_decoder.decode(some)
                case _:
                    access.tokens.update(_tokens_decoder.decode(some))
            yield
        self.generation = snapshot.generation
        self._next_shard = snapshot.next_shard
        self.table = StreamTable(snapshot.streams)
        self.members = snapshot.members
        self.groups = DurableGroups(groups, snapshot.next_group)
        self.pairs = snapshot.pairs
        self.writers = Writers(snapshot.writers)
        self.access = access
        self.pipelines = snapshot.pipelines


class FrozenMeta:
    """The state of the meta group after one entry, to be encoded while it goes on. Of what there may be much
    the values never change, so that it is enough to have them; the rest is encoded here and now."""

    def __init__(self, state: MetaState) -> None:
        access = state.access
        self._groups = list(state.groups.by_name.values())
        self._users, self._rules, self._tokens = dict(access.users), list(access.rules), dict(access.tokens)
        self._before = _entries(
            version=_STATE_VERSION,
            generation=state.generation,
            next_shard=state._next_shard,
            streams=state.table.streams,
            members=state.members,
        )
        self._between = _entries(
            next_group=state.groups.next_number, pairs=state.pairs, writers=state.writers.writers
        )
        self._access = _entries(
            next_rule=access.next_rule, version=access.version, rules_version=access.rules_version
        )
        self._after = _entries(pipelines=state.pipelines)

    def encode(self, pieces: Pieces) -> Iterator[None]:
        """As `_Snapshot`."""
        pieces.add(map_head(len(_Snapshot.__struct_fields__)), self._before, encode("groups"))
        yield from pieces.rows("groups", self._groups)
        pieces.add(self._between, encode("access"), map_head(len(AccessState.__struct_fields__)))
        pieces.add(encode("users"))
        yield from pieces.entries("users", self._users.items())
        pieces.add(encode("rules"))
        yield from pieces.rows("rules", self._rules)
        pieces.add(encode("tokens"))
        yield from pieces.entries("tokens", self._tokens.items())
        pieces.add(self._access, self._after)

    def end(self) -> None:
        """Nothing is left behind."""


def _entries(**fields: Any) -> bytes:
    """Of a map, without its head."""
    return b"".join(encode(name) + encode(value) for name, value in fields.items())


class _Snapshot(msgspec.Struct):
    version: int
    generation: int
    next_shard: int
    streams: Mapping[str, Stream]
    members: Members
    groups: list[DurableGroup]
    next_group: int
    pairs: Pairs
    writers: dict[str, Writer]
    access: AccessState = msgspec.field(default_factory=AccessState)
    pipelines: Pipelines = msgspec.field(default_factory=Pipelines)


_decoder = msgspec.msgpack.Decoder(_Snapshot)
_groups_decoder = msgspec.msgpack.Decoder(list[DurableGroup])
_users_decoder = msgspec.msgpack.Decoder(dict[str, User])
_rules_decoder = msgspec.msgpack.Decoder(list[NumberedRule])
_tokens_decoder = msgspec.msgpack.Decoder(dict[str, Token])
