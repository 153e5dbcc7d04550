"""What must hold at the end of a run of whole nodes, when everything has healed.

The logs of all replicas are equal and their offsets dense. Every acknowledged message is in the log; at QoS 2
once. Nothing was delivered that is not in the log. Every durable subscriber received every acknowledged
message of its filter: at QoS 1 at least once, at QoS 2 exactly once; and the acknowledged messages of one
publisher on one topic came in their order. The state of every shard at every node is what its log, applied
again from its beginning or from the node's snapshot, comes to; so are its sessions.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from millrace.broker.entries.sessions import SESSION_ENTRIES
from millrace.broker.sessions.session_store import SessionStore
from millrace.broker.shards.shard_state import ShardState
from millrace.broker.topics.filters import matches
from millrace.errors import StorageError
from millrace.lab.sim.cluster.host import Host
from millrace.lab.sim.cluster.mqtt_clients import History
from millrace.lab.sim.surroundings.disk import PowerCut
from millrace.lab.sim.violation import Violation
from millrace.node.logs.reading import READ_BYTES, Stored, read_blocks, stored_rows
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.node.shards.replay import replayed
from millrace.node.shards.shard import Shard
from millrace.storage.block import Kind
from millrace.types import Index

if TYPE_CHECKING:
    from millrace.node.server import Server

_READS_MAX = 100_000


def missing(history: History, name: str, filter: str) -> list[bytes]:
    """What was acknowledged, is wanted, and has not come."""
    have = set(history.received[name])
    return [
        payload
        for payload in history.acknowledged()
        if payload not in have and matches(filter, history.sent[payload].topic)
    ]


def check_received(
    history: History, name: str, filter: str, qos: int, shard_of: Mapping[bytes, int] | None = None
) -> None:
    lacking = missing(history, name, filter)
    if lacking:
        raise Violation("delivery", f"{name} never received {lacking[0].decode()} of {len(lacking)}")
    check_once_and_in_order(history, name, qos, shard_of)


def check_once_and_in_order(
    history: History, name: str, qos: int, shard_of: Mapping[bytes, int] | None = None
) -> None:
    """With `shard_of` the order is that of each shard: where streams change, a topic has several."""
    received = history.received[name]
    for payload, count in Counter(received).items():
        sent = history.sent[payload]
        if count > 1 and min(sent.qos, qos) == 2:
            raise Violation("exactly once", f"{name} received {payload.decode()} {count} times")
    last: dict[tuple[str, int], int] = {}
    for payload in dict.fromkeys(received):
        sent = history.sent[payload]
        if not sent.is_acknowledged:
            continue
        place = (sent.topic, 0 if shard_of is None else shard_of[payload])
        if last.get(place, -1) > sent.number:
            raise Violation("order", f"{name}: {payload.decode()} came after {last[place]}")
        last[place] = sent.number


class Logs:
    """The messages of a cluster as its nodes keep them, compared when this is made."""

    def __init__(self, hosts: list[Host]) -> None:
        self.shards: dict[int, list[Stored]] = {}
        """By shard, in order of offsets, from the first one that is kept."""
        servers = [(host, host.server) for host in hosts if host.server is not None]
        numbers = {number for _, server in servers for number in server.engine.shards}
        for number in sorted(numbers):
            logs = [(host, _messages(server, number)) for host, server in servers]
            # They were equal a moment ago; retention may be under way.
            first = max(server.engine.shards[number].first_offset for _, server in servers)
            _compare(number, first, logs)
            self.shards[number] = max((log for _, log in logs), key=len)
        self.counts = Counter(m.payload for messages in self.shards.values() for m in messages)
        self.shard_of = {m.payload: m.shard for messages in self.shards.values() for m in messages}

    def check_sent(self, history: History) -> None:
        for payload, sent in history.sent.items():
            if sent.is_acknowledged and not self.counts[payload]:
                self.fail("acknowledged", f"{payload.decode()} was acknowledged and is in no log")
            if sent.qos == 2 and self.counts[payload] > 1:
                self.fail("log once", f"{payload.decode()} is in the log {self.counts[payload]} times")
        for payload in sorted(history.seen):
            if not self.counts[payload]:
                self.fail("committed first", f"{payload.decode()} was delivered and is in no log")

    def fail(self, rule: str, detail: str) -> NoReturn:
        raise Violation(rule, detail)

    def messages(self) -> Iterator[Stored]:
        """Shard after shard, in order of offsets."""
        for messages in self.shards.values():
            yield from messages


def _compare(number: int, first: int, logs: list[tuple[Host, list[Stored]]]) -> None:
    cut = [(host, [m for m in log if m.offset >= first]) for host, log in logs]
    (one, expected), *others = cut
    for host, log in others:
        if log != expected:
            at = next((i for i, (a, b) in enumerate(zip(log, expected, strict=False)) if a != b), -1)
            raise Violation(
                "equal logs",
                f"shard {number}: {host.name} has {len(log)} messages from {first} on, {one.name} "
                f"{len(expected)}; they differ at {at}",
            )


def _messages(server: "Server", number: int) -> list[Stored]:
    shard: Shard = server.engine.shards[number]
    found: list[Stored] = []
    expected = shard.first_offset
    for _ in range(_READS_MAX):
        if expected >= shard.next_offset:
            return found
        before = expected
        for block in read_blocks(shard, expected):
            header = block.header
            if header.kind is not Kind.DATA or header.next_offset <= expected:
                continue
            # The first block may begin before what retention has left.
            skipped = expected - header.base_offset
            if skipped < 0 or (skipped and found):
                raise Violation("dense", f"shard {number}: {header.base_offset} follows {expected}")
            found += stored_rows(number, block, range(skipped, header.count))
            expected = header.next_offset
        if expected == before:
            raise Violation("dense", f"shard {number}: nothing can be read at {before}")
    raise Violation("dense", f"shard {number} does not end")


def check_states(hosts: list[Host]) -> None:
    """Of a shard whose messages go past its log, what it remembers of producers does not come from there."""
    for host in hosts:
        shards = {} if host.server is None else host.server.engine.shards
        for shard in shards.values():
            if shard.stream.spec.is_framed:
                continue
            group = shard.group
            again = replayed(
                shard.number,
                group.replica_log,
                group.applied,
                has_edge=bool(shard.edge),
                begins_at_snapshot=False,
            )
            if _comparable(again) != _comparable(shard.state):
                raise Violation(
                    "replay",
                    f"shard {shard.number}: the state of {host.name} at {shard.group.applied} is not that of "
                    f"its log: {_comparable(shard.state)!r} instead of {_comparable(again)!r}",
                )
            for topic, place in shard.state.retained.places.items():
                if again.retained.places.get(topic) != place:
                    raise Violation(
                        "replay",
                        f"shard {shard.number}: {host.name} has {topic} retained at {place}, its log at "
                        f"{again.retained.places.get(topic)}",
                    )


def check_snapshots(hosts: list[Host]) -> None:
    """What a node's own snapshot and the log behind it come to is the state that it has, also where the
    snapshot was written while the state went on."""
    for host in hosts:
        if host.server is None:
            continue
        engine = host.server.engine
        for shard in engine.shards.values():
            group = shard.group
            if shard.stream.spec.is_framed or group.replica_log.snapshot() is None:
                continue
            has_edge = bool(shard.edge)
            again = replayed(
                *(shard.number, group.replica_log, group.applied), has_edge=has_edge, begins_at_snapshot=True
            )
            if _comparable(again) != _comparable(shard.state):
                raise Violation(
                    "snapshot",
                    f"shard {shard.number}: {host.name} comes to another state from its snapshot: "
                    f"{_comparable(again)!r} instead of {_comparable(shard.state)!r}",
                )
        sessions, store = engine.sessions, _sessions_again(engine.sessions.group)
        if store is not None and store.to_bytes() != sessions.store.to_bytes():
            raise Violation("snapshot", f"{host.name} comes to other sessions from its snapshot")


def _sessions_again(group: ReplicationGroup) -> SessionStore | None:
    """The sessions out of the snapshot and the log; None where there is no snapshot."""
    replica_log = group.replica_log
    snapshot, saved = replica_log.snapshot(), replica_log.snapshot_state()
    if snapshot is None or saved is None:
        return None
    store, index = SessionStore.from_bytes(saved.partition(b"\n")[2]), Index(snapshot.index + 1)
    while index <= group.applied:
        for block in replica_log.blocks(index, group.applied, READ_BYTES):
            index = Index(block.header.index + 1)
            if block.header.kind is Kind.CONTROL:
                for entry in SESSION_ENTRIES.decode(block.payload()):
                    store.apply(entry, block.header.origin)
    return store


def _comparable(state: ShardState) -> bytes:
    """All but the retained topics: a snapshot leaves out those on which a newer log has spoken."""
    return state.to_bytes([], {place.index: b"" for place in state.staged.unreleased()})


def check_readable(hosts: list[Host]) -> str:
    """Empty if every shard can be read to its end at every node. What cannot is thereby known to its node."""
    for host in hosts:
        shards = {} if host.server is None else host.server.engine.shards
        for shard in shards.values():
            replica_log, last = shard.group.replica_log, shard.group.applied
            index = replica_log.first_index()
            try:
                while index <= last:
                    index = Index(replica_log.blocks(index, last, READ_BYTES)[-1].header.index + 1)
            except (StorageError, PowerCut) as error:
                return f"{host.name} cannot read shard {shard.number}: {error}"
    return ""


def check_beginnings(hosts: list[Host]) -> str:
    """Empty if each shard's messages begin with the same one at every node: one that began from a snapshot
    has had the older ones from the others."""
    for number in sorted({n for host in hosts if host.server for n in host.server.engine.shards}):
        shards = {h.name: h.server.engine.shards.get(number) for h in hosts if h.server is not None}
        begins = {name: int(one.first_offset) for name, one in shards.items() if one is not None}
        if len(set(begins.values())) != 1 and not any(
            one and one.stream.spec.is_framed for one in shards.values()
        ):
            return f"shard {number} does not begin with the same message everywhere: {begins}"
    return ""


def check_groups(hosts: list[Host]) -> str:
    """Empty if every group has one leader that everybody knows and all replicas have applied the same."""
    groups: dict[int, list[tuple[str, str | None, int, bool]]] = {}
    for host in hosts:
        if host.server is None or not host.is_up:
            return f"{host.name} does not serve"
        for number, group in host.server.engine.replicas.groups.items():
            status = group.status()
            groups.setdefault(number, []).append((host.name, status.leader, status.applied, status.serving))
            if group.pending_count:
                return f"{host.name} waits for group {number}"
    for number, rows in groups.items():
        if len(rows) != len(hosts):
            return f"group {number} is on {len(rows)} of {len(hosts)} nodes"
        if len({leader for _, leader, _, _ in rows}) != 1 or sum(serving for *_, serving in rows) != 1:
            return f"group {number} has no leader that all agree on: {rows}"
        if len({applied for _, _, applied, _ in rows}) != 1:
            return f"group {number} is not applied to the same index everywhere: {rows}"
    return ""
