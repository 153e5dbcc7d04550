"""A node that is left of a cluster whose majority is gone for good goes on alone, with what it has.

The quorum never shrinks by itself: two of three nodes that come back would lead a history of their own. Where
a person knows that they do not come back, every replication group on this node's disk gets one more entry,
written while the node does not run: a configuration in which this node is the only voter. At its next start
it leads alone. What it has counts as committed then, also what was not acknowledged; what only the lost nodes
had is lost, and nobody can tell from here how much that is, only since when.

Groups of which this node keeps no copy are lost with the others. Pairs (primary-backup) and leaderless logs
have no majority; the record of a pair is with the definitions, which are a group like any other.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from millrace.broker.meta.state import META_GROUP, SESSION_GROUP
from millrace.broker.streams.stream import Replication
from millrace.errors import LocalError
from millrace.node.cluster.peers_file import read_peers
from millrace.node.leaderless.origin_logs import is_home_of_origins
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.recovery.definitions import definitions_of
from millrace.replication.contract import Config, Entry, EntryKind, HardState, Persist, ReplicaId
from millrace.storage.block import Block, Kind
from millrace.storage.directory import IDENTITY_BYTES, SALT_BYTES, DataDirectory
from millrace.storage.disk import SystemDisk
from millrace.storage.log import READ_BYTES
from millrace.storage.unwritten import UnwrittenDisk
from millrace.types import Index, Term

# So many entries at the end of a log are asked first what time it is.
_FIRST_LOOK = 64


@dataclass(slots=True, kw_only=True)
class ForcedGroup:
    """What becomes of one group."""

    group: int
    holds: str
    voters: list[str]
    """Who counted before."""
    last_index: int
    last_time_us: int
    """Up to when the log here reaches, 0 where nothing in it says: what is newer and was acknowledged may be
    lost."""
    lost_up_to: int = 0
    """Entries up to here were on this disk once and are gone from it; 0 where none are known to be."""
    is_forced: bool = False
    """Whether this node decides alone from now on; otherwise it did before, or keeps no copy."""


@dataclass(slots=True, kw_only=True)
class ForcedReport:
    directory: str
    replica: str
    others: dict[str, str]
    """The address of every other node by its identity: none of them may ever start again on its data."""
    groups: list[ForcedGroup] = field(default_factory=list)


def force_quorum(path: str, *, is_rehearsal: bool, disk: SystemDisk | None = None) -> ForcedReport:
    """Make the node of this directory the only voter of all its groups; say what is known of each. In a
    rehearsal nothing is written. LocalError where the directory is no node's, is in use, or is damaged so
    that its node would not start."""
    system = disk or SystemDisk()
    if not system.exists(f"{path}/FORMAT"):
        raise LocalError(f"{path} is not a data directory of Millrace: it has no FORMAT file")
    below = UnwrittenDisk(system) if is_rehearsal else system
    lock = system.lock(f"{path}/LOCK", "millrace node force-quorum") if is_rehearsal else None
    try:
        fresh = bytes(IDENTITY_BYTES + SALT_BYTES)
        directory = DataDirectory.open(below, path, owner="millrace node force-quorum", fresh=fresh)
        with closing(directory):
            return _force(below, directory, path)
    finally:
        if lock is not None:
            lock.close()


def _force(disk: SystemDisk | UnwrittenDisk, directory: DataDirectory, path: str) -> ForcedReport:
    own = ReplicaId(directory.identity.hex())
    known = read_peers(disk, directory) if META_GROUP in directory.shards() else {}
    others = {replica: address for replica, address in known.items() if replica != own}
    if not others:
        raise LocalError(f"{path} is of a node that knows no other: nothing has to be forced")
    report = ForcedReport(directory=path, replica=own, others=others)
    holds = _quorum_groups(disk, directory)
    for number in directory.shards():
        if number in holds and not is_home_of_origins(disk, directory.shard_path(number)):
            replica_log = ReplicaLog(disk, directory, number, (), has_peers=True)
            with closing(replica_log):
                report.groups.append(_force_group(replica_log, own, number, holds[number]))
    return report


def _quorum_groups(disk: SystemDisk | UnwrittenDisk, directory: DataDirectory) -> dict[int, str]:
    """Groups that a majority decides in, and what each holds."""
    replica_log = ReplicaLog(disk, directory, META_GROUP, (), has_peers=True)
    with closing(replica_log):
        state = definitions_of(replica_log)
    names = {META_GROUP: "definitions of the cluster", SESSION_GROUP: "sessions"}
    pairs = set()
    for stream in state.table.streams.values():
        for number in (*stream.shards, *stream.sealed):
            names[number] = f"stream {stream.spec.name}"
            if stream.spec.replication is not Replication.QUORUM and number in stream.shards:
                pairs.add(number)
    return {number: name for number, name in names.items() if number not in pairs}


def _force_group(replica_log: ReplicaLog, own: ReplicaId, number: int, holds: str) -> ForcedGroup:
    lost = replica_log.lost_end()
    # What is damaged is cut here, as at a start.
    start = replica_log.initial_state()
    config, last = start.config.config, replica_log.last_index()
    for block in _blocks(replica_log, Index(start.config.index + 1), last):
        if block.header.kind is Kind.CONFIG:
            config = Config.decode(block.payload())
    lost_up_to = max(
        0 if lost is None else int(lost.index), 0 if start.damage is None else start.damage.last_index
    )
    row = ForcedGroup(
        group=number,
        holds=holds,
        voters=list(config.voters),
        last_index=int(last),
        last_time_us=_last_time_us(replica_log),
        lost_up_to=int(lost_up_to) if lost_up_to > last else 0,
    )
    if own not in config.members or config == Config(voters=(own,)):
        return row
    last_term = replica_log.term(last) or Term(0)
    term = Term(max(int(start.hard_state.term), int(last_term)) + 1)
    alone = Entry(
        term=term, index=Index(last + 1), kind=EntryKind.CONFIG, payload=Config(voters=(own,)).encode()
    )
    persist = Persist(number=1, hard_state=HardState(term=term), entries=(alone,))
    replica_log.write(persist, [replica_log.stamp(alone, None)])
    replica_log.sync()
    # Nobody is left to have what was damaged again from.
    replica_log.repaired()
    row.is_forced = True
    return row


def _last_time_us(replica_log: ReplicaLog) -> int:
    """When the log last says what time it is; 0 where it never does. The snapshot of a node that was stopped
    in good order reaches to the end of its log, so this is looked for in front of it, from the end."""
    last, width = replica_log.last_index(), _FIRST_LOOK
    while last >= replica_log.first_index():
        first = Index(last - width + 1)
        time_us = max((block.header.base_time_us for block in _blocks(replica_log, first, last)), default=0)
        if time_us:
            return time_us
        last, width = Index(first - 1), 2 * width
    return 0


def _blocks(replica_log: ReplicaLog, first: Index, last: Index) -> Iterator[Block]:
    """Those of the log with these numbers, as far as it has them."""
    index = max(first, replica_log.first_index())
    while index <= last:
        for block in replica_log.blocks(index, last, READ_BYTES):
            index = Index(block.header.index + 1)
            yield block
