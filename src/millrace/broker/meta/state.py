"""What the whole cluster agrees on: its nodes, streams and their shards, and who keeps which.

A replicated state: `apply` takes one command of the meta group's log and is deterministic, so every node that
applied the same commands has the same streams, the same shard ids and the same routing generation. A command
that makes no sense changes nothing and its result says why; it was still in the log, everywhere alike.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from millrace.broker.groups.definitions import DurableGroups, group_from_dict
from millrace.broker.meta.members import Member, Members
from millrace.broker.meta.pairs import QUORUM_MEMBERS, Pair, Pairs
from millrace.broker.meta.writers import Writers, winners_from
from millrace.broker.streams.pair_spec import pair_from_dict, pair_to_dict
from millrace.broker.streams.stream import (
    DEFAULT_SPEC,
    DEFAULT_STREAM,
    STREAMS_MAX,
    Capture,
    Replication,
    Retention,
    Stream,
    StreamSpec,
    StreamTable,
    check_filters,
    needs_new_shards,
    with_spec,
)
from millrace.errors import LocalError

# Group numbers below this are not shards: 0 is the meta group, the rest keep sessions.
META_GROUP = 0
SESSION_GROUP = 1
FIRST_SHARD = 16
_STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command did. `sealed` and `opened` name shards for the node to act on."""

    error: str | None = None
    sealed: tuple[int, ...] = ()
    opened: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    is_repeat: bool = False
    """Of a commit: the batch was decided before, and nothing changed."""


class MetaState:
    """Streams by name. The stream `default` is always there."""

    __slots__ = ("_next_shard", "generation", "groups", "members", "pairs", "table", "writers")

    def __init__(self) -> None:
        self.members = Members()
        self.groups = DurableGroups()
        self.writers = Writers()
        self.pairs = Pairs()
        self.generation = 1
        self._next_shard = FIRST_SHARD + DEFAULT_SPEC.shards
        shards = tuple(range(FIRST_SHARD, self._next_shard))
        self.table = StreamTable(
            {DEFAULT_STREAM: Stream(spec=DEFAULT_SPEC, generation=self.generation, shards=shards)}
        )

    def apply(self, command: bytes) -> Result:
        """One entry of the log. An unknown command is an error of a newer version's entry: refused alike."""
        try:
            fields = json.loads(command)
            match fields["op"]:
                case "stream.put":
                    return self._put(spec_from_dict(fields["spec"]), bool(fields.get("create")))
                case "stream.delete":
                    return self._delete(fields["name"])
                case "group.put":
                    spec = group_from_dict(fields["spec"])
                    self.groups.put(spec, bool(fields.get("create")), dict(fields["starts"]))
                case "group.delete":
                    self.groups.delete(fields["name"])
                case "cluster.init":
                    groups = (META_GROUP, SESSION_GROUP, *self.shards())
                    self.members.init(fields["cluster"], _member(fields["member"]), groups)
                case "member.put":
                    self.members.put(_member(fields["member"]))
                case "member.drain":
                    self.members.drain(fields["replica"], bool(fields["draining"]))
                case "member.remove":
                    self.members.remove(fields["replica"])
                case "writer.commit" | "writer.abort" | "writer.rolled":
                    return self._write(fields)
                case "pair.report":
                    pair = Pair(version=0, **fields["pair"])
                    self.pairs.report(fields["shard"], fields["after"], pair, is_seized=fields["is_seized"])
                case "pair.backup":
                    self.pairs.replace_backup(fields["shard"], fields["after"], fields["backup"])
                case "group.place":
                    self.members.place(fields["group"], tuple(fields["replicas"]))
                case other:
                    return Result(error=f"unknown command {other!r}")
            return Result()
        except LocalError as error:
            return Result(error=str(error))
        except (KeyError, TypeError, ValueError) as error:
            return Result(error=f"not a command: {error}")

    def _put(self, spec: StreamSpec, create_only: bool) -> Result:
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
            founders = self.members.choose(2 if is_pair else spec.replicas)
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

    def _write(self, fields: Mapping[str, Any]) -> Result:
        """What the coordinator of staged publishing decides."""
        writer, batch = str(fields["writer"]), int(fields["batch"])
        if fields["op"] == "writer.rolled":
            self.writers.rolled(writer, batch, int(fields["shard"]))
        elif fields["op"] == "writer.abort":
            self.writers.abort(writer, batch, list(fields["attempts"]), fields["user"])
        else:
            open_shards = {shard for stream in self.table.streams.values() for shard in stream.shards}
            is_new = self.writers.commit(
                writer, batch, winners_from(fields["attempts"]), fields["user"], open_shards.__contains__
            )
            return Result(is_repeat=not is_new)
        return Result()

    def shards(self) -> dict[int, Stream]:
        """Every shard that exists, open or sealed, with its stream."""
        return {
            shard: stream
            for stream in self.table.streams.values()
            for shard in (*stream.sealed, *stream.shards)
        }

    # ---------------------------------------------------------------------------------- snapshots

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "version": _STATE_VERSION,
                "generation": self.generation,
                "next_shard": self._next_shard,
                "members": self.members.to_json(),
                "groups": self.groups.to_json(),
                "pairs": self.pairs.to_json(),
                "writers": self.writers.to_json(),
                "streams": [
                    {
                        "spec": spec_to_dict(stream.spec),
                        "generation": stream.generation,
                        "shards": stream.shards,
                        "sealed": stream.sealed,
                        "edges": sorted(stream.edges.items()),
                        "leaderless": stream.leaderless,
                    }
                    for _, stream in sorted(self.table.streams.items())
                ],
            },
            sort_keys=True,
        ).encode()

    @staticmethod
    def from_bytes(data: bytes) -> "MetaState":
        fields = json.loads(data)
        if fields["version"] != _STATE_VERSION:
            raise LocalError(f"state of the meta group has version {fields['version']}, not {_STATE_VERSION}")
        state = MetaState()
        state.generation = fields["generation"]
        state._next_shard = fields["next_shard"]
        state.members = Members.from_json(fields["members"])
        state.groups = DurableGroups.from_json(fields["groups"])
        state.pairs = Pairs.from_json(fields.get("pairs", []))
        # A state that was written before there were writers has none.
        state.writers = Writers.from_json(fields.get("writers", []))
        streams = [
            Stream(
                spec=spec_from_dict(item["spec"]),
                generation=item["generation"],
                shards=tuple(item["shards"]),
                sealed=tuple(item["sealed"]),
                edges=dict(item.get("edges", ())),
                leaderless=tuple(item.get("leaderless", ())),
            )
            for item in fields["streams"]
        ]
        state.table = StreamTable({stream.spec.name: stream for stream in streams})
        return state


def command(op: str, **fields: Any) -> bytes:
    """A command of the cluster: cluster.init, member.put, member.drain, member.remove, group.place,
    writer.commit, writer.abort, writer.rolled."""
    return json.dumps({"op": op, **fields}).encode()


def _member(fields: Mapping[str, Any]) -> Member:
    return Member(**{key: fields[key] for key in ("replica", "name", "peer", "mqtt", "http")})


def put_stream(spec: StreamSpec, *, create: bool) -> bytes:
    """The command that makes or changes a stream; `create` refuses one that exists."""
    return json.dumps({"op": "stream.put", "spec": spec_to_dict(spec), "create": create}).encode()


def delete_stream(name: str) -> bytes:
    return json.dumps({"op": "stream.delete", "name": name}).encode()


def spec_to_dict(spec: StreamSpec) -> dict[str, Any]:
    """As JSON and the HTTP door show it."""
    is_pair = spec.replication is Replication.PRIMARY_BACKUP
    is_leaderless = spec.replication is Replication.LEADERLESS
    return {
        "name": spec.name,
        "filters": list(spec.filters),
        "replication": spec.replication.value,
        "shards": spec.shards,
        "replicas": spec.replicas,
        "capture": spec.capture.value,
        "retention_age_s": spec.retention.age_s,
        "retention_bytes": spec.retention.bytes_max,
        "hold_age_s": spec.retention.hold_age_s,
        "hold_bytes": spec.retention.hold_bytes,
        "compression": spec.compression,
        "edge": spec.edge,
        **({"primary_backup": pair_to_dict(spec.primary_backup)} if is_pair else {}),
        **({"ack": spec.ack, "storage": spec.storage} if is_leaderless else {}),
    }


_SPEC_KEYS = frozenset(("name", "filters", "replication", "shards", "replicas", "capture", "compression")) | {
    "ack",
    "storage",
    "edge",
    "primary_backup",
    "retention_age_s",
    "retention_bytes",
    "hold_age_s",
    "hold_bytes",
}


def spec_from_dict(fields: Mapping[str, Any], base: StreamSpec | None = None) -> StreamSpec:
    """The other way; what is absent is as in `base` or the default. LocalError says what is wrong."""
    unknown = sorted(set(fields) - _SPEC_KEYS)
    if unknown:
        raise LocalError(
            f"a stream has no setting {unknown[0]!r}; there are: {', '.join(sorted(_SPEC_KEYS))}"
        )
    name = _typed(fields, "name", str, base.name if base else "")
    start = base or (DEFAULT_SPEC if name == DEFAULT_STREAM else None)
    if start is None:
        start = StreamSpec(name=name, filters=tuple(_typed(fields, "filters", list, [])))
    try:
        return replace(
            start,
            name=name,
            filters=tuple(_typed(fields, "filters", list, list(start.filters))),
            replication=Replication(fields.get("replication", start.replication.value)),
            shards=_typed(fields, "shards", int, start.shards),
            replicas=_typed(fields, "replicas", int, start.replicas),
            capture=Capture(fields.get("capture", start.capture.value)),
            retention=Retention(
                age_s=_typed(fields, "retention_age_s", int, start.retention.age_s),
                bytes_max=_typed(fields, "retention_bytes", int, start.retention.bytes_max),
                hold_age_s=_typed(fields, "hold_age_s", int, start.retention.hold_age_s),
                hold_bytes=_typed(fields, "hold_bytes", int, start.retention.hold_bytes),
            ),
            compression=_typed(fields, "compression", str, start.compression),
            edge=_typed(fields, "edge", str, start.edge),
            primary_backup=pair_from_dict(fields.get("primary_backup", {}), start.primary_backup),
            ack=_typed(fields, "ack", str, start.ack),
            storage=_typed(fields, "storage", str, start.storage),
        )
    except ValueError as error:
        raise LocalError(str(error)) from None


def _typed(fields: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value: Any = fields.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise LocalError(f"{key} = {value!r}: expected {kind.__name__}")
    if isinstance(value, list) and not all(isinstance(item, str) for item in value):
        raise LocalError(f"{key} = {value!r}: expected a list of strings")
    return value
