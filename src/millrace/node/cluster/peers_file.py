"""What is written down beside the meta group for a start at which nobody can be asked: where the other nodes
are, and the level of the cluster."""

import json
from collections.abc import Mapping

from millrace.broker.meta.state import META_GROUP
from millrace.storage import files
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import Disk

_PEERS = "peers"
_PEERS_TAG = b"MRPE"
_LEVEL = "level"
_LEVEL_TAG = b"MRLV"


def read_peers(disk: Disk, directory: DataDirectory) -> dict[str, str]:
    """The address of each node by its identity; empty where nothing was written. This node is one of them
    where it has others."""
    known = files.read_record(disk, f"{directory.shard_path(META_GROUP)}/{_PEERS}", _PEERS_TAG)
    return {} if known is None else dict(json.loads(known))


def write_peers(disk: Disk, directory: DataDirectory, peers: Mapping[str, str]) -> None:
    path = f"{directory.shard_path(META_GROUP)}/{_PEERS}"
    files.write_record(disk, path, _PEERS_TAG, json.dumps(dict(peers)).encode())


def read_level(disk: Disk, directory: DataDirectory) -> int:
    """Of the release that is needed to read what this directory may hold; 0 where nothing was written."""
    known = files.read_record(disk, f"{directory.shard_path(META_GROUP)}/{_LEVEL}", _LEVEL_TAG)
    return 0 if known is None else int(json.loads(known))


def write_level(disk: Disk, directory: DataDirectory, level: int) -> None:
    path = f"{directory.shard_path(META_GROUP)}/{_LEVEL}"
    files.write_record(disk, path, _LEVEL_TAG, json.dumps(level).encode())
