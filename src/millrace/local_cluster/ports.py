"""Which ports of this machine are free for a local cluster, and who has those that are not."""

import socket
from collections.abc import Iterable

from millrace.errors import ConfigError
from millrace.node.doors.port_holder import holder

HOST = "127.0.0.1"
DEFAULT_BASE_PORT = 18830
_BASE_STEP = 100
_BASES_TRIED = 100
PORTS_PER_NODE = 10
_PORTS_USED = 5


def is_free(port: int) -> bool:
    """Whether a node could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def check_free(ports: Iterable[int]) -> None:
    """ConfigError that names the first port which somebody has, and who it is."""
    for port in ports:
        if not is_free(port):
            who = holder(port) or "another process"
            raise ConfigError(
                f"port {port} is taken by {who}; stop it, or choose other ports with --base-port"
            )


def ports_of(base_port: int, count: int) -> list[int]:
    """Every port that the first `count` nodes of a cluster listen on."""
    return [
        base_port + PORTS_PER_NODE * number + port for number in range(count) for port in range(_PORTS_USED)
    ]


def taken(base_port: int, count: int) -> int | None:
    """The first port of a cluster that is not free."""
    return next((port for port in ports_of(base_port, count) if not is_free(port)), None)


def next_free_base(count: int) -> int:
    """The first base from the default one on at which the whole cluster has its ports to itself."""
    for step in range(_BASES_TRIED):
        base_port = DEFAULT_BASE_PORT + step * _BASE_STEP
        if taken(base_port, count) is None:
            return base_port
    raise ConfigError("no free ports were found for a cluster; name some with --base-port")
