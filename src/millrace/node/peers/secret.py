"""The secret by which the nodes of a cluster know each other: where it stands, and how one is made."""

import os
import secrets
from pathlib import Path

from millrace.errors import ConfigError
from millrace.node.config import Cluster

_SECRET_BYTES = 32


def secret_of(cluster: Cluster) -> bytes:
    """The secret as the settings name it, empty where nodes know each other by TLS alone. Raises ConfigError
    where the file cannot be read or says nothing."""
    if not cluster.secret_file:
        return cluster.secret.encode()
    try:
        secret = Path(cluster.secret_file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"cluster.secret_file {cluster.secret_file}: {error.strerror}") from None
    if not secret:
        raise ConfigError(f"cluster.secret_file {cluster.secret_file} is empty")
    return secret


def make_secret_file(path: Path) -> bool:
    """Write a fresh secret that only its owner may read. A file that is there stays; whether one was made."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(_SECRET_BYTES) + "\n")
    return True
