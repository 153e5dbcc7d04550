"""Where a broker is: a URL taken apart.

`mqtt://`, `mqtts://`, `ws://` and `wss://`, with `user:password@` where wanted (percent-encoded). The text
form leaves the credentials out, so that an address may stand in a log or an error.
"""

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from millrace.errors import ConfigError

# Scheme: default port, TLS, WebSocket.
_SCHEMES = {
    "mqtt": (1883, False, False),
    "mqtts": (8883, True, False),
    "ws": (80, False, True),
    "wss": (443, True, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    scheme: str
    host: str
    port: int
    path: str = ""
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    @property
    def tls(self) -> bool:
        return _SCHEMES[self.scheme][1]

    @property
    def websocket(self) -> bool:
        return _SCHEMES[self.scheme][2]

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse(url: str) -> BrokerAddress:
    """Raises ConfigError that says what is wrong, never showing the password."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        # The parser's own words may quote a piece of the password.
        raise ConfigError(
            "the broker's URL cannot be read: the port is a number from 1 to 65535, and special characters "
            "in a user name or password are percent-encoded"
        ) from None
    if parts.scheme not in _SCHEMES:
        raise ConfigError("a broker's URL begins with mqtt://, mqtts://, ws:// or wss://")
    if not host:
        raise ConfigError("the broker's URL names no host; an example is mqtt://127.0.0.1:1883")
    if port == 0:
        raise ConfigError("port 0 in the broker's URL: a broker listens on 1 to 65535")
    default_port, _, websocket = _SCHEMES[parts.scheme]
    path = parts.path
    if websocket:
        path = (path or "/") + (f"?{parts.query}" if parts.query else "")
    elif path.strip("/") or parts.query:
        raise ConfigError(f"a {parts.scheme}:// URL ends with the port")
    else:
        path = ""
    if parts.fragment:
        raise ConfigError("a broker's URL has no # part; a # in a password is written %23")
    return BrokerAddress(
        scheme=parts.scheme,
        host=host,
        port=port or default_port,
        path=path,
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
    )
