"""A stream into a directory of files: each shard up to where it ended when the copy began.

The directory has a manifest, which is replaced whole, and one folder for each shard with parts in the order
of their offsets. A part gets its name when all of it is on disk, and counts from when the manifest names it
with its checksum. So a copy that was killed at any moment goes on behind the last part that counts, up to the
same ends.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace.client.http import Http, HttpError, stream_path
from millrace.errors import ConfigError, LocalError
from millrace.transfer.formats import Format
from millrace.transfer.kinds import format_named

MANIFEST = "manifest.json"
_VERSION = 1
_PART_BYTES = 32 << 20
_GONE = 410
_READ_BYTES = 1 << 20

Told = Callable[[str], None]
"""Takes a line that says how far it has come."""


@dataclass(slots=True, kw_only=True)
class PartRecord:
    file: str
    first_offset: int
    next_offset: int
    rows: int
    bytes: int
    sha256: str


@dataclass(slots=True, kw_only=True)
class ShardRecord:
    shard: int
    first_offset: int
    end_offset: int
    """Where it ended when the copy began; not in it."""
    gone: int = 0
    """Messages that retention removed before they were copied."""
    parts: list[PartRecord] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return self.parts[-1].next_offset if self.parts else self.first_offset

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(slots=True, kw_only=True)
class Manifest:
    stream: str
    suffix: str
    """Of the parts: which kind of files they are."""
    asked: dict[str, Any]
    """What was to be copied, so that another copy is not taken for this one."""
    shards: list[ShardRecord]
    is_done: bool = False
    version: int = _VERSION

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    def paths(self, directory: Path) -> list[Path]:
        return [directory / part.file for shard in self.shards for part in shard.parts]


def read_manifest(directory: Path) -> Manifest | None:
    """None where no copy was begun here."""
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text())
        if fields["version"] != _VERSION:
            raise LocalError(f"{path} has version {fields['version']}; this Millrace reads {_VERSION}")
        shards = [
            ShardRecord(**{**row, "parts": [PartRecord(**part) for part in row["parts"]]})
            for row in fields.pop("shards")
        ]
        return Manifest(shards=shards, **fields)
    except (ValueError, KeyError, TypeError) as error:
        raise LocalError(f"{path} is damaged ({error}): remove {directory} and begin again") from None


def replace_durably(path: Path, text: str, mode: int = 0o644) -> None:
    """The old content or the new one, whatever happens."""
    aside = path.with_name(path.name + ".tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def digest(path: Path, *seeds: str) -> str:
    """SHA-256 of some words and the content of a file."""
    found = hashlib.sha256("\0".join(seeds).encode())
    with path.open("rb") as file:
        while data := file.read(_READ_BYTES):
            found.update(data)
    return found.hexdigest()


class Copy:
    """Of one stream, begun now or gone on with."""

    def __init__(self, http: Http, stream: str, directory: Path, kind: Format, told: Told) -> None:
        self._http, self._stream, self._directory = http, stream, directory
        self._kind, self._told = kind, told

    def run(self, *, shard: int | None = None, start: int | None = None, end: int | None = None) -> Manifest:
        """Copy what is left to be copied. `start` and `end` are offsets of every shard that is copied."""
        asked = {"shard": shard, "from": start, "to": end}
        manifest = read_manifest(self._directory)
        if manifest is None:
            manifest = self._begun(asked)
            self._directory.mkdir(parents=True, exist_ok=True)
            self._write(manifest)
        elif (manifest.stream, manifest.suffix, manifest.asked) != (self._stream, self._kind.suffix, asked):
            raise ConfigError(
                f"{self._directory} holds a copy of stream {manifest.stream!r} with other options that was "
                "begun: go on with these, or remove it"
            )
        for record in manifest.shards:
            while record.next_offset < record.end_offset:
                self._copy_part(manifest, record)
        self._check_counts(manifest)
        manifest.is_done = True
        self._write(manifest)
        return manifest

    def _begun(self, asked: dict[str, Any]) -> Manifest:
        rows = self._http.get(stream_path(self._stream))["shard_list"]
        numbers = [row["shard"] for row in rows]
        if asked["shard"] is not None and asked["shard"] not in numbers:
            raise ConfigError(f"stream {self._stream!r} has no shard {asked['shard']}; it has {numbers}")
        records = []
        # Those that were sealed first: what follows them on a topic is in the newer ones.
        for row in sorted(rows, key=lambda row: (not row["sealed"], row["shard"])):
            if asked["shard"] in (None, row["shard"]):
                first = max(row["first_offset"], asked["from"] or 0)
                end = row["next_offset"] if asked["to"] is None else min(row["next_offset"], asked["to"])
                records.append(ShardRecord(shard=row["shard"], first_offset=min(first, end), end_offset=end))
        return Manifest(stream=self._stream, suffix=self._kind.suffix, asked=asked, shards=records)

    def _copy_part(self, manifest: Manifest, record: ShardRecord) -> None:
        name = f"shard-{record.shard}/{record.next_offset:020d}{self._kind.suffix}"
        path = self._directory / name
        path.parent.mkdir(exist_ok=True)
        aside = path.with_name(path.name + ".tmp")
        first = offset = record.next_offset
        rows = size = gone = 0
        part = self._kind.begin(aside)
        try:
            while offset < record.end_offset and size < _PART_BYTES:
                try:
                    data, following = self._http.blocks(self._stream, record.shard, offset, record.end_offset)
                except HttpError as error:
                    earliest = error.fields.get("earliest_offset")
                    if error.status != _GONE or not isinstance(earliest, int) or earliest <= offset:
                        raise
                    gone += min(earliest, record.end_offset) - offset
                    offset = min(earliest, record.end_offset)
                    continue
                if following <= offset:
                    raise LocalError(
                        f"shard {record.shard} ends at offset {offset} at this node and ended at "
                        f"{record.end_offset} before: run it again when the node has caught up"
                    )
                following = min(following, record.end_offset)
                rows += part.add(data, record.shard, offset, following)
                size += len(data)
                offset = following
        finally:
            part.close()
        sync_file(aside)
        os.replace(aside, path)
        sync_directory(path.parent)
        record.gone += gone
        record.parts.append(
            PartRecord(
                file=name,
                first_offset=first,
                next_offset=offset,
                rows=rows,
                bytes=path.stat().st_size,
                sha256=digest(path),
            )
        )
        self._write(manifest)
        self._told(f"{self._stream}, shard {record.shard}: offset {offset} of {record.end_offset}")

    def _write(self, manifest: Manifest) -> None:
        replace_durably(self._directory / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")

    def _check_counts(self, manifest: Manifest) -> None:
        """Offsets count messages: as many must be there."""
        for record in manifest.shards:
            expected = record.end_offset - record.first_offset - record.gone
            if record.rows != expected:
                raise LocalError(
                    f"stream {self._stream!r}, shard {record.shard}: {record.rows} messages were read of "
                    f"{expected} between offset {record.first_offset} and {record.end_offset}"
                )


def faults(directory: Path, manifest: Manifest) -> Iterator[str]:
    """What is not as the manifest says: parts that are missing, changed or have another number of rows."""
    kind = format_named(manifest.suffix)
    if not manifest.is_done:
        yield f"{directory}: the copy was not finished; run the same command again"
    for shard in manifest.shards:
        for part in shard.parts:
            path = directory / part.file
            if not path.exists():
                yield f"{path} is missing"
            elif digest(path) != part.sha256:
                yield f"{path} was changed: its checksum does not fit"
            elif kind.count(path) != part.rows:
                yield f"{path} holds another number of messages than {part.rows}"


def join(directory: Path, manifest: Manifest, target: Path) -> None:
    """All parts as one file, which gets its name when it is whole."""
    kind = format_named(manifest.suffix)
    wrong = list(faults(directory, manifest))
    if wrong:
        raise LocalError(f"{wrong[0]}; remove {directory} and begin again")
    aside = target.with_name(target.name + ".tmp")
    kind.join(manifest.paths(directory), aside)
    if kind.count(aside) != manifest.rows:
        raise LocalError(f"{aside} holds {kind.count(aside)} messages instead of {manifest.rows}")
    sync_file(aside)
    os.replace(aside, target)
    sync_directory(target.parent)


def remove(directory: Path, paths: Sequence[Path]) -> None:
    """Drop the parts of a copy that is not needed any more, and nothing else."""
    for path in (*paths, directory / MANIFEST):
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in paths} | {directory}:
        if folder.exists() and not any(folder.iterdir()):
            folder.rmdir()
    if directory.exists() and not any(directory.iterdir()):
        directory.rmdir()
