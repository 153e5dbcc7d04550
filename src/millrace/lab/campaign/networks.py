"""A network of its own for every node, and rules that drop what one sends to another.

Every node lives in a network namespace with one address; a bridge in a namespace for the clients joins them.
Packets from A to B are dropped where A sends them, by nftables: silently, as a broken cable does, and one
way only if only one way is asked for. Needs root, `ip` and `nft`; nothing outside these namespaces changes.
"""

import os
import shutil
import subprocess
import sys

from millrace.errors import LocalError

_SUBNET = "10.77.0"
_INSIDE = "MILLRACE_CAMPAIGN_NETWORK"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LocalError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


def why_not() -> str:
    """Why there can be no networks here; empty where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "nft"):
        if shutil.which(tool, path=_path()) is None:
            return f"{tool} is not installed (Debian: iproute2, nftables)"
    return ""


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class Networks:
    """Namespaces for `count` nodes. The clients' process must run in `hub`: see `enter`."""

    def __init__(self, count: int) -> None:
        self._prefix = os.environ[_INSIDE]
        self.count = count
        self._names: list[str] = []

    def host(self, number: int) -> str:
        return f"{_SUBNET}.{number + 1}"

    def wrap(self, number: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", f"{self._prefix}n{number}")

    def __enter__(self) -> "Networks":
        try:
            _run("ip", "link", "set", "lo", "up")
            _run("ip", "link", "add", "bridge", "type", "bridge")
            _run("ip", "address", "add", f"{_SUBNET}.254/24", "dev", "bridge")
            _run("ip", "link", "set", "bridge", "up")
            for number in range(self.count):
                self._add(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _add(self, number: int) -> None:
        name = f"{self._prefix}n{number}"
        _run("ip", "netns", "add", name)
        self._names.append(name)
        _run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", f"v{number}", "master", "bridge", "up")
        inside = self.wrap(number)
        _run(*inside, "ip", "address", "add", f"{self.host(number)}/24", "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run(*inside, "nft", "add", "table", "inet", "millrace")
        _run(
            *inside, "nft", "add", "chain", "inet", "millrace", "out",
            "{ type filter hook output priority 0; policy accept; }",
        )  # fmt: skip

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            subprocess.run(("ip", "netns", "delete", name), capture_output=True, check=False)

    def drop(self, sender: int, receiver: int) -> None:
        """From now on nothing that `sender` sends reaches `receiver`."""
        rule = ("ip", "daddr", self.host(receiver), "drop")
        _run(*self.wrap(sender), "nft", "add", "rule", "inet", "millrace", "out", *rule)

    def heal(self) -> None:
        for number in range(self.count):
            _run(*self.wrap(number), "nft", "flush", "chain", "inet", "millrace", "out")


def enter() -> int | None:
    """Run this very command again inside a namespace for the clients, and give its exit status; None where
    this process is the one inside."""
    if os.environ.get(_INSIDE):
        return None
    prefix = f"millrace{os.getpid()}"
    hub = f"{prefix}hub"
    _run("ip", "netns", "add", hub)
    try:
        command = ["ip", "netns", "exec", hub, sys.executable, "-m", "millrace.lab.campaign", *sys.argv[1:]]
        return subprocess.run(
            command, env={**os.environ, _INSIDE: prefix, "PATH": _path()}, check=False
        ).returncode
    finally:
        subprocess.run(("ip", "netns", "delete", hub), capture_output=True, check=False)
