"""Where the other nodes are, written down beside the meta group, for a start at which nobody can be asked."""

import json
from collections.abc import Mapping

from millrace.broker.meta.state import META_GROUP
from millrace.storage import files
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import Disk

_PEERS = "peers"
_PEERS_TAG = b"MRPE"


def read_peers(disk: Disk, directory: DataDirectory) -> dict[str, str]:
    """The address of each node by its identity; empty where nothing was written. This node is one of them
    where it has others."""
    known = files.read_record(disk, f"{directory.shard_path(META_GROUP)}/{_PEERS}", _PEERS_TAG)
    return {} if known is None else dict(json.loads(known))


def write_peers(disk: Disk, directory: DataDirectory, peers: Mapping[str, str]) -> None:
    path = f"{directory.shard_path(META_GROUP)}/{_PEERS}"
    files.write_record(disk, path, _PEERS_TAG, json.dumps(dict(peers)).encode())
