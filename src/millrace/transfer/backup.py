"""A backup of a running cluster: what is defined, and the messages of every stream that keeps a log.

    backup.json             definitions of streams and groups, users and rules; only its owner may read it
    streams/NAME/           a copy of the stream (`copying`): a manifest, and parts for each shard

A shard is copied up to where it was committed when the backup of its stream began; different shards are of
different moments. Both directions can be broken off at any time and gone on with.
"""

import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from millrace.broker.groups.definitions import DurableGroupSpec
from millrace.broker.streams.stream import DEFAULT_STREAM, StreamSpec
from millrace.client.http import Http, stream_path
from millrace.errors import ConfigError, LocalError
from millrace.spark.writing import ClusterWriter
from millrace.transfer.access import Added, Copy, add_access, has_access, read_access
from millrace.transfer.copying import Copy as StreamCopy
from millrace.transfer.copying import Manifest, Told, faults, read_manifest, replace_durably
from millrace.transfer.kinds import best_format, format_named
from millrace.transfer.loading import Loaded, Loading

_FILE = "backup.json"
_VERSION = 1
_OWNER_ONLY = 0o600


@dataclass(slots=True, kw_only=True)
class Definitions:
    """What `backup.json` holds."""

    id: str
    """Random: names what a restore of this backup has written."""
    began_s: int
    suffix: str
    streams: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    access: Copy | None = None
    """Users, rules and tokens; None where whoever made the backup may not see them."""
    is_done: bool = False
    version: int = _VERSION

    def kept(self) -> list[str]:
        """The streams whose messages are here."""
        return [spec["name"] for spec in self.streams if _keeps_log(spec)]


@dataclass(slots=True)
class Restored:
    created: list[str] = field(default_factory=list)
    """Streams that were not there."""
    groups: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """Streams of the broker's own topics, which nobody may publish to."""
    differing: list[str] = field(default_factory=list)
    """Streams that were there with other settings, and keep them."""
    loaded: dict[str, Loaded] = field(default_factory=dict)
    access: Added | None = None
    """None where no users and rules were added: the backup has none, or the cluster has its own."""


def _keeps_log(spec: dict[str, Any]) -> bool:
    return bool(spec["replication"] != "routed" and spec["capture"] != "none")


def _is_brokers(spec: dict[str, Any]) -> bool:
    filters = spec["filters"]
    return bool(filters) and all(one.startswith("$") for one in filters)


def read_definitions(directory: Path) -> Definitions | None:
    """None where no backup was begun here."""
    path = directory / _FILE
    if not path.exists():
        return None
    try:
        fields = json.loads(path.read_text())
        if fields["version"] != _VERSION:
            raise LocalError(f"{path} has version {fields['version']}; this Millrace reads {_VERSION}")
        return Definitions(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise LocalError(f"{path} is damaged ({error})") from None


def _stream_directory(directory: Path, name: str) -> Path:
    return directory / "streams" / name


# -------------------------------------------------------------------------------------------- backup


def back_up(http: Http, directory: Path, told: Told) -> tuple[Definitions, dict[str, Manifest]]:
    """Write a backup, or go on with one that was broken off; every file is proved at the end."""
    definitions = read_definitions(directory)
    if definitions is None:
        if directory.exists() and any(directory.iterdir()):
            raise ConfigError(f"{directory} is not empty and holds no backup: name another directory")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        definitions = _defined(http)
        _write(directory, definitions)
    elif definitions.is_done:
        raise ConfigError(f"{directory} holds a finished backup: name another directory")
    kind = format_named(definitions.suffix)
    (directory / "streams").mkdir(exist_ok=True)
    manifests = {}
    for name in definitions.kept():
        target = _stream_directory(directory, name)
        manifests[name] = StreamCopy(http, name, target, kind, told).run()
    wrong = next(backup_faults(directory, definitions, told), None)
    if wrong is not None:
        raise LocalError(f"the backup is not good: {wrong}")
    definitions.is_done = True
    _write(directory, definitions)
    return definitions, manifests


def _defined(http: Http) -> Definitions:
    streams = [{name: row[name] for name in StreamSpec.fields() if name in row} for row in http.streams()]
    groups = [
        {name: row[name] for name in DurableGroupSpec.fields() if name in row}
        for row in http.get("/v1/groups")["groups"]
    ]
    return Definitions(
        id=uuid.uuid4().hex,
        began_s=int(time.time()),
        suffix=best_format().suffix,
        streams=streams,
        groups=groups,
        access=read_access(http),
    )


def _write(directory: Path, definitions: Definitions) -> None:
    replace_durably(directory / _FILE, json.dumps(asdict(definitions), indent=1) + "\n", _OWNER_ONLY)


def backup_faults(directory: Path, definitions: Definitions, told: Told) -> Iterator[str]:
    """What is missing or was changed."""
    for name in definitions.kept():
        told(f"{name}: checking")
        target = _stream_directory(directory, name)
        manifest = read_manifest(target)
        if manifest is None:
            yield f"{target} is missing"
        else:
            yield from faults(target, manifest)


# ------------------------------------------------------------------------------------------- restore


def read_backup(directory: Path, told: Told) -> Definitions:
    """A finished backup, proved. LocalError says what is wrong with it."""
    definitions = read_definitions(directory)
    if definitions is None:
        raise ConfigError(f"{directory} holds no backup: there is no {_FILE}")
    if not definitions.is_done:
        raise LocalError(f"the backup in {directory} was not finished: run millrace backup {directory} again")
    wrong = next(backup_faults(directory, definitions, told), None)
    if wrong is not None:
        raise LocalError(f"{wrong}; nothing was restored")
    return definitions


def in_the_way(http: Http, definitions: Definitions) -> list[str]:
    """Streams of these names that the cluster has, with something in them or made by somebody."""
    names = {spec["name"] for spec in definitions.streams}
    return [
        row["name"]
        for row in http.streams()
        if row["name"] in names
        and (row["name"] != DEFAULT_STREAM or any(one["next_offset"] for one in row["shard_list"]))
    ]


def restore(
    cluster: ClusterWriter,
    directory: Path,
    definitions: Definitions,
    told: Told,
    *,
    groups_from: str,
    with_users: bool,
) -> Restored:
    """Make what is defined and not there, then publish what is not there yet. Users and rules are added to a
    cluster that has none, and `with_users` to any."""
    restored = Restored()
    _make_streams(cluster.http, definitions, restored)
    if groups_from == "earliest":
        # Before the messages: they get all of them.
        _make_groups(cluster.http, definitions, restored, groups_from)
    for name in definitions.kept():
        if name in restored.left_out:
            continue
        target = _stream_directory(directory, name)
        manifest = read_manifest(target)
        assert manifest is not None, "it was proved"
        # The name of a writer is short.
        words = hashlib.sha256(name.encode()).hexdigest()[:16]
        loading = Loading(cluster, name, f"restore-{definitions.id}-{words}", told)
        restored.loaded[name] = loaded = loading.run(manifest.paths(target))
        if loaded.rows != manifest.rows:
            raise LocalError(f"stream {name!r}: {loaded.rows} of {manifest.rows} messages were restored")
    if groups_from != "earliest":
        _make_groups(cluster.http, definitions, restored, groups_from)
    if definitions.access is not None and (with_users or not has_access(cluster.http)):
        restored.access = add_access(cluster.http, definitions.access)
    return restored


def _make_streams(http: Http, definitions: Definitions, restored: Restored) -> None:
    present = {row["name"]: row for row in http.streams()}
    for spec in definitions.streams:
        name = spec["name"]
        if _is_brokers(spec):
            restored.left_out.append(name)
        elif name not in present:
            http.call("POST", "/v1/streams", spec)
            restored.created.append(name)
        elif name == DEFAULT_STREAM:
            # Always there; it takes all topics that no other stream names.
            changed = {key: value for key, value in spec.items() if present[name].get(key) != value}
            changed.pop("filters", None)
            if changed:
                http.call("PATCH", stream_path(name), changed)
        elif any(present[name].get(key) != value for key, value in spec.items()):
            restored.differing.append(name)


def _make_groups(http: Http, definitions: Definitions, restored: Restored, start: str) -> None:
    present = {row["name"] for row in http.get("/v1/groups")["groups"]}
    for spec in definitions.groups:
        if spec["name"] not in present:
            http.call("POST", "/v1/groups", {**spec, "start": start})
            restored.groups.append(spec["name"])
