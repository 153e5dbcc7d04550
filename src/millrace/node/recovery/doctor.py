"""A look at the data directory of a node that does not run: what is good, what is not, and what a start does.

Nothing here judges bytes. Every log is opened by the code that a start opens it with, on a disk that keeps
nothing (`storage.unwritten`), so what is told is what that code found and would have done. Two things a start
leaves out are added: it believes the index of a sealed segment, and here every block is read; and it passes
over older snapshots, and here all of them are proved.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum

from millrace.broker.meta.state import FIRST_SHARD, META_GROUP, SESSION_GROUP
from millrace.errors import LocalError, MillraceError, StorageError
from millrace.node.cluster.peers_file import read_peers
from millrace.node.leaderless.origin_logs import (
    is_home_of_origins,
    number_of,
    read_groups_state,
    read_origins,
)
from millrace.node.logs.replica_log import ReplicaLog
from millrace.node.recovery.definitions import definitions_of
from millrace.node.shards.replay import replayed
from millrace.storage.directory import FORMAT_VERSION, DataDirectory
from millrace.storage.disk import DirectoryLocked, SystemDisk
from millrace.storage.files import ASIDE, FileDamaged
from millrace.storage.records import UNKNOWN
from millrace.storage.recover import IndexLost, damaged_indexes
from millrace.storage.scan import Damage, TornTail
from millrace.storage.segment import Home
from millrace.storage.snapshot import SnapshotDamaged, SnapshotStore
from millrace.storage.unwritten import UnwrittenDisk
from millrace.types import Index

# Numbers of the logs of leaderless streams are in the upper half.
_ORIGINS_FROM = 1 << 31


class Grade(StrEnum):
    GOOD = "good"
    NOTE = "note"
    """As a crash may leave it; a start puts it right and nothing that was acknowledged is gone."""
    WRONG = "wrong"
    """What was written is not there."""
    REFUSES = "refuses"
    """The node does not start."""


@dataclass(frozen=True, slots=True)
class Finding:
    grade: Grade
    says: str
    """What is there."""
    next_start: str = ""
    """What the next start does about it."""


@dataclass(slots=True, kw_only=True)
class ShardReport:
    shard: int
    holds: str
    """Which part of the node's data this is."""
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    bytes: int = 0
    first_index: int = 0
    last_index: int = 0
    first_offset: int = 0
    next_offset: int = 0
    term: int = 0
    vote: str | None = None
    synced_index: int | None = None
    """The last entry that is remembered to have been on disk; None where nothing is remembered."""
    snapshot_index: int | None = None
    staged_bytes: int = 0
    staged_rows: int = 0


@dataclass(slots=True, kw_only=True)
class DirectoryReport:
    directory: str
    format: int | None = None
    identity: str | None = None
    nodes: int = 1
    """How many nodes the cluster has, as far as this directory tells."""
    findings: list[Finding] = field(default_factory=list)
    shards: list[ShardReport] = field(default_factory=list)

    def all_findings(self) -> Iterator[Finding]:
        yield from self.findings
        for shard in self.shards:
            yield from shard.findings

    @property
    def is_good(self) -> bool:
        return not any(one.grade in (Grade.WRONG, Grade.REFUSES) for one in self.all_findings())

    @property
    def starts(self) -> bool:
        return not any(one.grade is Grade.REFUSES for one in self.all_findings())


def examine(path: str, disk: SystemDisk | None = None) -> DirectoryReport:
    """Look at everything in this directory. LocalError where that cannot be done: there is no such directory,
    it is not Millrace's, or a node runs on it."""
    # Opening a log warns of what it finds; here that is the report.
    logging.getLogger("millrace").addHandler(logging.NullHandler())
    disk = disk or SystemDisk()
    if not disk.exists(path):
        raise LocalError(f"there is no directory {path}")
    try:
        lock = disk.lock_unwritten(f"{path}/LOCK")
    except DirectoryLocked as error:
        raise LocalError(
            f"a node runs on {path} ({error}): stop it, or ask it with millrace status"
        ) from None
    try:
        if not disk.exists(f"{path}/FORMAT"):
            raise LocalError(
                f"{path} is not a data directory of Millrace: it has no FORMAT file. A node's is named by "
                "--data; that of a cluster on one machine has one for each node below it"
            )
        return _Examination(disk, path).run()
    finally:
        if lock is not None:
            lock.close()


class _Examination:
    def __init__(self, disk: SystemDisk, path: str) -> None:
        self._below = disk
        self._path = path
        self._report = DirectoryReport(directory=path)
        self._names: dict[int, str] = {META_GROUP: "definitions of the cluster", SESSION_GROUP: "sessions"}
        self._has_peers = False

    def run(self) -> DirectoryReport:
        report, disk = self._report, UnwrittenDisk(self._below)
        try:
            directory = DataDirectory.rehearse(disk, self._path)
        except StorageError as error:
            # Its own words say what to do.
            report.findings.append(Finding(Grade.REFUSES, str(error), "the node refuses to start"))
            return report
        report.format, report.identity = FORMAT_VERSION, directory.identity.hex()
        report.findings.append(Finding(Grade.GOOD, f"data format {FORMAT_VERSION}, which this version reads"))
        numbers = directory.shards()
        self._find_peers(disk, directory, numbers)
        if META_GROUP in numbers:
            self._name_streams(disk, directory)
        elif numbers:
            report.findings.append(
                Finding(
                    Grade.WRONG,
                    f"the definitions of the cluster (shards/{META_GROUP}) are missing",
                    "the node takes itself for a new one: do not start it; restore them, or let it join "
                    "again with an empty directory",
                )
            )
        for number in numbers:
            # Another disk each time: what a start would write of one shard is let go before the next.
            fresh = UnwrittenDisk(self._below)
            self._shard(fresh, DataDirectory.rehearse(fresh, self._path), number)
        return report

    # -------------------------------------------------------------------------------- what is what

    def _find_peers(self, disk: UnwrittenDisk, directory: DataDirectory, numbers: list[int]) -> None:
        if META_GROUP not in numbers:
            return
        try:
            known = read_peers(disk, directory)
        except StorageError as error:
            self._report.findings.append(Finding(Grade.REFUSES, str(error), "the node refuses to start"))
            return
        self._has_peers = len(known) > 1
        self._report.nodes = max(1, len(known))

    def _name_streams(self, disk: UnwrittenDisk, directory: DataDirectory) -> None:
        """Which stream each shard is of, as far as the definitions can be read; their damage is told with
        their log."""
        try:
            replica_log = self._opened(disk, directory, META_GROUP)
        except StorageError:
            return
        with closing(replica_log):
            state = definitions_of(replica_log)
        for stream in state.table.streams.values():
            for number in (*stream.shards, *stream.sealed):
                sealed = ", sealed" if number in stream.sealed else ""
                self._names[number] = f"stream {stream.spec.name}{sealed}"
        for number in list(self._names):
            path = directory.shard_path(number)
            if number >= FIRST_SHARD and is_home_of_origins(disk, path):
                self._name_origins(disk, path, number)

    def _name_origins(self, disk: UnwrittenDisk, path: str, number: int) -> None:
        try:
            record = read_origins(disk, path)
        except StorageError:
            return
        for origin in record[2] if record is not None else ():
            holds = f"{self._names[number]}, log of node {origin.node}, run {origin.incarnation}"
            self._names[number_of(number, origin)] = holds

    # ------------------------------------------------------------------------------------ one shard

    def _opened(self, disk: UnwrittenDisk, directory: DataDirectory, number: int) -> ReplicaLog:
        return ReplicaLog(disk, directory, number, (), has_peers=self._has_peers)

    def _shard(self, disk: UnwrittenDisk, directory: DataDirectory, number: int) -> None:
        holds = self._names.get(number, "no stream that is defined here")
        report = ShardReport(shard=number, holds=holds)
        self._report.shards.append(report)
        path = directory.shard_path(number)
        try:
            if is_home_of_origins(disk, path):
                self._home_of_origins(disk, path, report)
            else:
                self._log(disk, directory, path, report)
        except StorageError as error:
            says = "the node refuses to start"
            report.findings.append(Finding(Grade.REFUSES, str(error), says))
        if not report.findings:
            report.findings.append(Finding(Grade.GOOD, "every block was read and is whole"))

    def _home_of_origins(self, disk: UnwrittenDisk, path: str, report: ShardReport) -> None:
        for read in (read_origins, read_groups_state):
            try:
                read(disk, path)
            except FileDamaged as error:
                again = "everything of this stream is fetched again from other nodes"
                grade = Grade.WRONG if self._has_peers else Grade.REFUSES
                says = again if self._has_peers else "the node refuses to start: no other node has it"
                report.findings.append(Finding(grade, str(error), says))
        if not report.findings:
            report.findings.append(Finding(Grade.GOOD, "the record of its logs is whole"))

    def _log(self, disk: UnwrittenDisk, directory: DataDirectory, path: str, report: ShardReport) -> None:
        number, tell = report.shard, report.findings.append
        leftovers = [name for name in disk.names(path) if name.endswith(ASIDE)]
        if leftovers:
            tell(Finding(Grade.NOTE, f"{len(leftovers)} half-written file(s)", "they are removed"))
        home = Home(disk=disk, directory=path, shard=number, salt=directory.salt)
        unusable = {lost.file for lost in damaged_indexes(home)}
        for file in sorted(unusable):
            tell(Finding(Grade.WRONG, f"{file}: the index is damaged", "it is made again from its segment"))
        store = SnapshotStore(disk, path, shard=number)
        bad_snapshots = [error for index in store.indexes() if (error := _proved(store, index)) is not None]
        replica_log = self._opened(disk, directory, number)
        with closing(replica_log):
            for found in replica_log.log.reports:
                if isinstance(found, TornTail):
                    tell(
                        Finding(
                            Grade.NOTE,
                            f"{found.file}: the last {found.size_bytes} bytes are the torn end of a write "
                            "that nobody was told of",
                            f"they are cut off; the log ends with entry {found.next_index - 1}",
                        )
                    )
                elif isinstance(found, IndexLost) and found.file not in unusable:
                    tell(
                        Finding(
                            Grade.WRONG,
                            f"{found.file}: the index is missing",
                            "it is made again from its segment",
                        )
                    )
            replica_log.log.examine()
            _describe(report, replica_log)
            for error in bad_snapshots:
                tell(Finding(Grade.WRONG, str(error), self._without_snapshot(replica_log)))
            self._lost(replica_log, report)
            if number >= FIRST_SHARD and number < _ORIGINS_FROM:
                _describe_staged(report, replica_log)

    def _without_snapshot(self, replica_log: ReplicaLog) -> str:
        if replica_log.snapshot() is not None:
            return "an older one is used, and what follows it is applied again from the log"
        if replica_log.first_index() == 1 and replica_log.last_index() > 0:
            return "the log reaches back to its beginning and is applied again"
        return "everything is fetched again from other nodes; until then this replica does not vote"

    def _lost(self, replica_log: ReplicaLog, report: ShardReport) -> None:
        """Damage, and an end that was on disk and is not there, in the order in which a start meets them."""
        snapshot = replica_log.snapshot()
        covered = 0 if snapshot is None else int(snapshot.index)
        damages = [found for found in replica_log.log.reports if isinstance(found, Damage)]
        for damage in damages:
            report.findings.append(Finding(Grade.WRONG, _in_words(damage), self._cure(damage, covered)))
        lost_end = replica_log.lost_end()
        if lost_end is not None:
            first = max(int(replica_log.last_index()), covered) + 1
            cure = (
                _FETCHED if self._has_peers else "no other node has them: they are lost, and the node goes on"
            )
            says = f"entries {first} to {lost_end.index} were on disk once and are gone"
            report.findings.append(Finding(Grade.WRONG, says, cure))
        # The same that a start asks for; it cuts what has to be cut, here in memory.
        noted = replica_log.initial_state().damage
        if noted is not None and not damages and lost_end is None:
            says = f"an earlier start noted damage up to entry {noted.last_index} that is not repaired yet"
            report.findings.append(Finding(Grade.WRONG, says, _FETCHED))

    def _cure(self, damage: Damage, covered: int) -> str:
        if not damage.is_loss:
            return "nothing is missing; it is passed over"
        if not self._has_peers:
            return "no other node has them: they are not served, and the node goes on without them"
        if damage.last_index > covered:
            return _FETCHED
        return "the blocks are fetched again from other nodes while the node runs; the rest is served"


_FETCHED = (
    "the log is cut before the first of them and fetched again from other nodes; until it is repaired this "
    "replica neither votes nor leads"
)


def _in_words(damage: Damage) -> str:
    if not damage.is_loss:
        return str(damage)
    last = "an unknown one" if damage.next_offset == UNKNOWN else str(damage.next_offset - 1)
    offsets = ""
    if damage.first_offset != UNKNOWN and damage.next_offset > damage.first_offset:
        offsets = f", with the messages from offset {damage.first_offset} to {last}"
    return (
        f"{damage.file}: {damage.size_bytes} bytes from byte {damage.position} on are damaged: entries "
        f"{damage.first_index} to {damage.last_index}{offsets}"
    )


def _proved(store: SnapshotStore, index: Index) -> SnapshotDamaged | None:
    """Why this snapshot cannot be used."""
    try:
        with closing(store.open(index)) as snapshot:
            snapshot.prove()
    except SnapshotDamaged as error:
        return error
    return None


def _describe(report: ShardReport, replica_log: ReplicaLog) -> None:
    log = replica_log.log
    report.segments, report.bytes = len(log.segments()), log.size_bytes
    report.first_index, report.last_index = log.first_index, log.last_index
    report.first_offset, report.next_offset = log.first_offset, log.next_offset
    if replica_log.hard_state is not None:
        report.term, report.vote = replica_log.hard_state.term, replica_log.hard_state.vote
    if replica_log.synced_end is not None:
        report.synced_index = replica_log.synced_end.index
    snapshot = replica_log.snapshot()
    report.snapshot_index = None if snapshot is None else int(snapshot.index)


def _describe_staged(report: ShardReport, replica_log: ReplicaLog) -> None:
    """What writers have staged here, where the log can be read up to its end."""
    try:
        last = replica_log.last_index()
        state = replayed(report.shard, replica_log, last, begins_at_snapshot=True)
    except MillraceError:
        # Why not is among the findings.
        return
    attempts = state.staged.attempts.values()
    report.staged_bytes = sum(attempt.size_bytes for attempt in attempts)
    report.staged_rows = sum(attempt.rows for attempt in attempts)
