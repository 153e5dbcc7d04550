"""Which nodes a command talks to: --url, MILLRACE_URL, the context in use, the local cluster that runs, or
this machine's default ports, the first of them that says anything.

Every place holds addresses with commas between them. HOST:PORT is short for http:// or mqtt://, as the
command needs it. A command that speaks MQTT and is given HTTP addresses alone asks those nodes where their
MQTT ports are.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from millrace.errors import ConfigError

URL_VARIABLE = "MILLRACE_URL"
PASSWORD_VARIABLE = "MILLRACE_PASSWORD"
HTTP_DEFAULT = "http://127.0.0.1:18831"
MQTT_DEFAULT = "mqtt://127.0.0.1:1883"
_HTTP_SCHEMES = ("http", "https")
_MQTT_SCHEMES = ("mqtt", "mqtts", "ws", "wss")
_ANY_ADDRESS = ("0.0.0.0", "::", "")


class Contexts:
    """The named addresses of a user, in a file that only the user may read: a URL may hold a password."""

    def __init__(self) -> None:
        home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        self.path = Path(home) / "millrace" / "contexts.json"
        try:
            content: dict[str, Any] = json.loads(self.path.read_text())
            self.urls: dict[str, str] = dict(content["contexts"])
            self.current: str | None = content["current"]
        except FileNotFoundError:
            self.urls, self.current = {}, None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from None

    def url(self, name: str) -> str:
        if name not in self.urls:
            known = ", ".join(sorted(self.urls)) or "none yet"
            raise ConfigError(f"there is no context {name!r}; there are: {known}")
        return self.urls[name]

    def save(self) -> None:
        """Write the file whole, or leave it as it is."""
        content = {"current": self.current, "contexts": self.urls}
        aside = self.path.with_name(f"{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside.unlink(missing_ok=True)
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(json.dumps(content, indent=2) + "\n")
            aside.replace(self.path)
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror}") from None


def parts(url: str) -> list[str]:
    return [part.strip() for part in url.split(",") if part.strip()]


def in_force() -> tuple[list[str], str]:
    """The addresses that hold where --url says nothing, and where they come from; none for the defaults."""
    named = os.environ.get(URL_VARIABLE)
    if named:
        return parts(named), URL_VARIABLE
    contexts = Contexts()
    if contexts.current is not None:
        return parts(contexts.url(contexts.current)), f"context {contexts.current}"
    return _local_cluster()


def _local_cluster() -> tuple[list[str], str]:
    from millrace.errors import LocalError
    from millrace.local_cluster import state

    try:
        directory, record = state.find(None)
    except LocalError:
        return [], ""
    nodes = [node for node in record.nodes if node.state == "running"]
    if not nodes or not record.is_running:
        return [], ""
    urls = [f"http://{node.http}" for node in nodes] + [f"mqtt://{node.mqtt}" for node in nodes]
    return urls, f"the local cluster in {directory}"


def _given(urls: str | Sequence[str] | None) -> list[str]:
    texts = (urls,) if isinstance(urls, str) else urls or ()
    return [part for text in texts for part in parts(text)] or in_force()[0]


def _schemes(urls: Sequence[str], scheme: str) -> list[tuple[str, str]]:
    """Each address with its scheme, `scheme` where it has none."""
    return [(urlsplit(url).scheme, url) if "://" in url else (scheme, f"{scheme}://{url}") for url in urls]


def http_urls(urls: str | Sequence[str] | None) -> list[str]:
    """The HTTP addresses among those that were given, or that hold anyway."""
    given = _given(urls)
    found = [url for scheme, url in _schemes(given, "http") if scheme in _HTTP_SCHEMES]
    if given and not found:
        raise ConfigError(
            f"this command speaks HTTP: give the HTTP address of a node, such as {HTTP_DEFAULT}, "
            f"not {without_password(given[0])}"
        )
    return found or [HTTP_DEFAULT]


def mqtt_urls(urls: str | Sequence[str] | None) -> list[str]:
    """The MQTT addresses among those that were given, or that hold anyway. Where there are HTTP addresses
    alone, a node is asked for them."""
    given = _schemes(_given(urls), "mqtt")
    found = [url for scheme, url in given if scheme not in _HTTP_SCHEMES]
    if not found and given:
        return _ask_for_mqtt([url for _, url in given])
    return found or [MQTT_DEFAULT]


def _ask_for_mqtt(urls: Sequence[str]) -> list[str]:
    from millrace.client.connection.tls import files_of_environment
    from millrace.client.http import Http

    with Http(urls, password=os.environ.get(PASSWORD_VARIABLE), **files_of_environment()) as http:
        members = http.get("/v1/cluster")["members"]
        asked = urlsplit(http.urls[0])
    user = next((urlsplit(url).netloc.rpartition("@")[0] for url in urls if "@" in url), "")
    found = []
    for member in sorted(members, key=lambda row: str(row["state"] != "up")):
        host, _, port = (member["mqtt"] or "").rpartition(":")
        if port:
            reached = asked.hostname if host.strip("[]") in _ANY_ADDRESS else host
            found.append(f"mqtt://{f'{user}@' if user else ''}{reached}:{port}")
    if not found:
        raise ConfigError(
            f"{http.urls[0]} knows no node with an MQTT port; name one with --url mqtt://HOST:PORT"
        )
    return found


def without_password(url: str) -> str:
    """The address as it may be shown."""
    scheme, _, rest = url.rpartition("://")
    user, at, host = rest.rpartition("@")
    shown = f"{user.partition(':')[0]}{at}{host}"
    return f"{scheme}://{shown}" if scheme else shown
