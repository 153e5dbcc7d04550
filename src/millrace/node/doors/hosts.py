"""By which names a browser may call this node: the defence against DNS rebinding.

A page of evil.example may read what comes from evil.example, and whoever owns that name can point it to the
address of a node that the browser reaches. The name in `Host` gives it away. So only names are served that
others cannot point somewhere: numbers, localhost and names without a dot, which are in no public DNS. And
those that the configuration names: where the node listens and is advertised, and `listeners.hosts`.

Over TLS nothing is checked: the certificate has to be for the name.
"""

import ipaddress
import re

from millrace.node.config import Config

_PORT = re.compile(r":[0-9]{0,5}\Z")
_ANY = "*"


class Hosts:
    def __init__(self, config: Config) -> None:
        listeners = config.listeners
        named = [part.strip().lower() for part in listeners.hosts.split(",") if part.strip()]
        own = (listeners.http, listeners.ws, config.cluster.advertise)
        self._is_open = _ANY in named
        self._names = {name for name in named if not name.startswith("*.")}
        self._names |= {address.host.lower() for address in own if address is not None}
        self._ends = tuple(name[1:] for name in named if name.startswith("*."))

    def allow(self, host: str) -> bool:
        """Whether a request with this header is served."""
        if self._is_open:
            return True
        name = _PORT.sub("", host.strip().lower()).removesuffix(".")
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        if not bare:
            return False
        if "." not in bare and ":" not in bare:
            return True
        if bare.endswith(".localhost") or bare in self._names or (self._ends and bare.endswith(self._ends)):
            return True
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            return False
        return True


def refusal(host: str) -> str:
    shown = host[:100]
    return f"this node is not {shown!r}; the setting listeners.hosts names what it may be called"
