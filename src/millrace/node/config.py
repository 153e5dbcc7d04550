"""The configuration: one frozen tree, filled from four sources in rising order.

Defaults, one TOML file, environment variables `MILLRACE_SECTION__KEY`, and `section.key=value` from
`--set`. The dataclasses below are the whole truth about a setting: its name, type, default, range and the
line of explanation that `describe` prints. Sources are read into one flat table of `section.key`, each
value is checked where it came from, so that an error names the file, variable or option to mend, and the
tree is built once at the end. Relations between settings are checked when the tree is made.

Nothing here reads the process environment or opens the files that settings name. Relative paths are meant
from the working directory.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

from millrace.broker.streams.stream import StreamSpec
from millrace.errors import ConfigError, LocalError
from millrace.limits import KEEP_ALIVE_S_TOP, STRING_BYTES_TOP, Limits

ENVIRONMENT_PREFIX = "MILLRACE_"
USERS_FILE_NAME = "users.toml"
STREAMS = "streams"

_NODE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or connect: a name or number and a port, 0 for any free one."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> "Address":
        """Reads HOST:PORT or [IPV6]:PORT; raises ValueError."""
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("an IPv6 address stands in brackets")
        if not colon or not host or set(host) & set(" []/") or not re.fullmatch("[0-9]{1,5}", port):
            raise ValueError("not HOST:PORT")
        if int(port) > 65_535:
            raise ValueError("port above 65535")
        return Address(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _setting(default: Any, doc: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"doc": doc, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    id: str = _setting("n1", "name of this node: letters, digits, dot, dash, underscore", pattern=_NODE_ID)
    data: str = _setting("millrace-data", "directory of everything this node keeps", nonempty=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    mqtt: Address | None = field(default=Address("127.0.0.1", 1883), metadata={"doc": "MQTT over TCP"})
    mqtts: Address | None = field(
        default=None, metadata={"doc": "MQTT over TLS; needs tls.certificate and tls.key"}
    )
    ws: Address | None = field(default=None, metadata={"doc": "MQTT over WebSocket"})
    wss: Address | None = field(
        default=None, metadata={"doc": "MQTT over WebSocket over TLS; needs tls.certificate and tls.key"}
    )
    http: Address | None = field(
        default=Address("127.0.0.1", 18831), metadata={"doc": "HTTP: status, metrics, queue, dashboard"}
    )
    peer: Address | None = field(default=None, metadata={"doc": "links from the other nodes of the cluster"})
    text: Address | None = field(default=None, metadata={"doc": "the pipe-separated text protocol"})
    ws_origins: str = _setting(
        "", "origins of web pages that may use ws and wss beside our own, comma separated; * is any"
    )
    proxy_protocol: bool = _setting(
        False, "connections without TLS begin with a PROXY header; only behind a balancer that sends it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    certificate: str = _setting("", "PEM file with the certificate chain of this node")
    key: str = _setting("", "PEM file with the private key of the certificate")
    client_ca: str = _setting("", "PEM file with the authorities whose client certificates are taken")
    require_client_certificate: bool = _setting(False, "refuse clients without a certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    anonymous: Literal["loopback", "always", "never"] = _setting(
        "loopback", "clients without a user name: only from this machine, from anywhere, or not at all"
    )
    users_file: str = _setting(
        "", f"users and access rules for a cluster that has none; empty is {USERS_FILE_NAME} in node.data"
    )
    users_import: Literal["once", "always"] = _setting(
        "once",
        "load users_file into a cluster that never had users, or at every start and SIGHUP of this node, "
        "in place of all users and rules of the cluster",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Mqtt:
    sys_interval_s: int = _setting(
        10, "time between two rounds of $SYS messages; 0 is off", minimum=0, maximum=86_400
    )
    server_keep_alive_s: int = _setting(
        0, "keep-alive imposed on every client; 0 takes theirs", minimum=0, maximum=KEEP_ALIVE_S_TOP
    )
    response_information: str = _setting(
        "", "topic prefix told to clients that ask for response information", bytes_max=STRING_BYTES_TOP
    )
    retain: bool = _setting(True, "keep retained messages; without it a retained publish is refused")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    join: str = _setting("", "addresses HOST:PORT of nodes to join, comma separated; empty: form a cluster")
    takeover: bool = _setting(
        True,
        "a client that connects at another node leaves the old one, and what it had under way comes along",
    )
    secret: str = _setting("", "what nodes prove to each other that they know, the same on all of them")
    secret_file: str = _setting("", "the file that holds it, readable by its owner alone; see millrace init")
    advertise: Address | None = field(
        default=None, metadata={"doc": "where other nodes reach this one; empty: as it listens"}
    )
    tls_cert: str = _setting("", "PEM file with the certificate that this node shows to other nodes")
    tls_key: str = _setting("", "PEM file with the private key of cluster.tls_cert")
    tls_ca: str = _setting("", "PEM file with the authority whose certificates other nodes must show")


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    sync: Literal["always", "interval", "never"] = _setting(
        "always",
        "always: acknowledged means on disk; interval: on disk a moment later, see storage.sync_interval_ms;"
        " never: when the system likes",
    )
    sync_interval_ms: int = _setting(
        1_000,
        'how long after it is acknowledged a message is on disk, with sync = "interval"',
        minimum=1,
        maximum=3_600_000,
    )
    sync_in_place: bool = _setting(True, "sync a lone small commit on the event loop while the disk is quick")
    free_bytes_min: int = _setting(
        64 * 1024 * 1024, "free disk below which publishing to logs is refused", minimum=0, maximum=2**50
    )

    @property
    def sync_every_s(self) -> float | None:
        """0: before anything is acknowledged; None: never."""
        return {"always": 0.0, "interval": self.sync_interval_ms / 1000, "never": None}[self.sync]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    modules: str = _setting("", "Python modules whose functions streams may name, comma separated")
    workers: int = _setting(2, "processes for each edge function", minimum=1, maximum=64)
    timeout_ms: int = _setting(
        5_000, "how long a call may take before its process is killed", minimum=1, maximum=3_600_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    level: Literal["debug", "info", "warning", "error"] = _setting("info", "least severity written")
    format: Literal["text", "json"] = _setting("text", "lines for people or one JSON object each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration. Raises ConfigError where settings contradict each other."""

    node: Node = field(default_factory=Node)
    listeners: Listeners = field(default_factory=Listeners)
    tls: Tls = field(default_factory=Tls)
    limits: Limits = field(default_factory=Limits)
    access: Access = field(default_factory=Access)
    mqtt: Mqtt = field(default_factory=Mqtt)
    cluster: Cluster = field(default_factory=Cluster)
    storage: Storage = field(default_factory=Storage)
    edge: Edge = field(default_factory=Edge)
    log: Log = field(default_factory=Log)
    # Streams by name, each with the settings of `millrace stream create`; made or changed at start.
    streams: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [bool(value) for value in (self.cluster.tls_cert, self.cluster.tls_key, self.cluster.tls_ca)]
        if any(given) and not all(given):
            raise ConfigError("cluster.tls_cert, tls_key and tls_ca belong together: set all or none")
        if self.cluster.secret and self.cluster.secret_file:
            raise ConfigError("cluster.secret and cluster.secret_file say the same: set one of them")
        if self.listeners.peer is not None and not (
            self.cluster.secret or self.cluster.secret_file or self.cluster.tls_cert
        ):
            raise ConfigError(
                "listeners.peer needs cluster.secret_file (make one with: millrace init) or cluster.tls_*: "
                "without either whoever reaches the port would be a node of the cluster"
            )
        tls = self.tls
        if bool(tls.certificate) != bool(tls.key):
            raise ConfigError("tls.certificate and tls.key belong together: set both or none")
        if tls.require_client_certificate and not tls.client_ca:
            raise ConfigError("tls.require_client_certificate needs tls.client_ca to check them against")
        for key in ("mqtts", "wss"):
            if getattr(self.listeners, key) is not None and not tls.certificate:
                raise ConfigError(f"listeners.{key} needs tls.certificate and tls.key")
        taken: dict[Address, str] = {}
        for item in fields(Listeners):
            address = getattr(self.listeners, item.name)
            if isinstance(address, Address) and address.port:
                if address in taken:
                    raise ConfigError(
                        f"listeners.{item.name} and listeners.{taken[address]} are both {address}"
                    )
                taken[address] = item.name
        for spec in self.stream_specs():
            assert spec.name in self.streams

    def stream_specs(self) -> list[StreamSpec]:
        """The streams that the configuration asks for; ConfigError names what is wrong with one."""
        try:
            return [StreamSpec.read({"name": name, **given}) for name, given in self.streams.items()]
        except LocalError as error:
            raise ConfigError(f"streams: {error}") from None

    @property
    def users_path(self) -> Path:
        """The file of users and access rules."""
        return Path(self.access.users_file or Path(self.node.data) / USERS_FILE_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One leaf of the tree, as the sources see it."""

    section: str
    key: str
    type: Any
    default: Any
    metadata: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        return f"{ENVIRONMENT_PREFIX}{self.section}__{self.key}".upper()

    @property
    def expected(self) -> str:
        """What a right value looks like, for people."""
        if self.type is bool:
            return "true or false"
        if self.type is int:
            return f"a whole number from {self.metadata['minimum']} to {self.metadata['maximum']}"
        if self.type is str:
            if "pattern" in self.metadata:
                return f"text that matches {self.metadata['pattern'].pattern}"
            if "bytes_max" in self.metadata:
                return f"text of at most {self.metadata['bytes_max']} bytes"
            return "text that is not empty" if "nonempty" in self.metadata else "text"
        if choices := get_args(self.type):
            if Address in choices:
                return 'HOST:PORT, or "" for off'
            return "one of " + ", ".join(choices)
        raise AssertionError(self)

    def check(self, value: Any) -> Any:
        """The value in its own type, from TOML or already converted; raises ValueError."""
        if self.type is bool or self.type is int:
            if type(value) is not self.type:
                raise ValueError
            if self.type is int and not self.metadata["minimum"] <= value <= self.metadata["maximum"]:
                raise ValueError
            return value
        if not isinstance(value, str):
            raise ValueError
        # UnicodeEncodeError is a ValueError: bytes that are no UTF-8 come as surrogates from the environment.
        size_bytes = len(value.encode())
        if "\0" in value or size_bytes > self.metadata.get("bytes_max", STRING_BYTES_TOP):
            raise ValueError
        if self.type is str:
            if "pattern" in self.metadata and not self.metadata["pattern"].fullmatch(value):
                raise ValueError
            if "nonempty" in self.metadata and not value:
                raise ValueError
            return value
        if Address in get_args(self.type):
            return Address.parse(value) if value else None
        if value not in get_args(self.type):
            raise ValueError
        return value

    def convert(self, text: str) -> Any:
        """The value from the text of a variable or an option; raises ValueError."""
        if self.type is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        if self.type is int:
            return int(text)
        return text


def _collect() -> dict[str, Setting]:
    found = {}
    for section in fields(Config):
        if section.name == STREAMS:
            continue
        assert isinstance(section.type, type)
        for item in fields(section.type):
            setting = Setting(
                section=section.name,
                key=item.name,
                type=item.type,
                default=item.default,
                metadata=item.metadata,
            )
            found[setting.name] = setting
    return found


SETTINGS: Mapping[str, Setting] = _collect()
SECTIONS: Mapping[str, Any] = {
    section.name: section.type for section in fields(Config) if section.name != STREAMS
}


def load(
    path: Path | None = None, environ: Mapping[str, str] | None = None, overrides: Iterable[str] = ()
) -> Config:
    """Reads all sources; raises ConfigError with the place, the key and what is expected there."""
    values: dict[str, Any] = {}
    if path is not None:
        values.update(_from_file(path))
    values.update(_from_environment(environ or {}))
    streams = {name: dict(given) for name, given in values.pop(STREAMS, {}).items()}
    plain = []
    for override in overrides:
        if override.startswith(f"{STREAMS}."):
            _set_stream(streams, override)
        else:
            plain.append(override)
    values.update(_from_overrides(plain))
    return build({**values, STREAMS: streams})


def _set_stream(streams: dict[str, dict[str, Any]], override: str) -> None:
    """`streams.NAME.KEY=VALUE`; several filters stand with commas between."""
    name, equals, text = override.removeprefix(f"{STREAMS}.").partition("=")
    stream, dot, key = name.rpartition(".")
    if not equals or not dot or not stream:
        raise ConfigError(f"--set {override}: expected streams.NAME.KEY=VALUE")
    value: Any = text.split(",") if key == "filters" else int(text) if text.isdecimal() else text
    streams.setdefault(stream, {})[key] = value


def build(values: Mapping[str, Any]) -> Config:
    """The tree from a flat table of checked values; what is absent keeps its default."""
    sections: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        given = {
            setting.key: values[setting.name]
            for setting in SETTINGS.values()
            if setting.section == name and setting.name in values
        }
        sections[name] = kind(**given)
    return Config(**sections, streams=values.get(STREAMS, {}))


def _from_file(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"configuration {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"configuration {path}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration {path}: not TOML: {error}") from error
    values = {}
    for section, content in document.items():
        if section == STREAMS:
            if not isinstance(content, dict) or not all(isinstance(v, dict) for v in content.values()):
                raise ConfigError(f"configuration {path}: a stream is written [streams.NAME]")
            values[STREAMS] = content
            continue
        if section not in SECTIONS:
            near = _nearest(section, SECTIONS)
            raise ConfigError(f"configuration {path}: unknown section [{section}]; the nearest is [{near}]")
        if not isinstance(content, dict):
            raise ConfigError(f"configuration {path}: {section} is a section, written [{section}]")
        for key, value in content.items():
            setting = _find(f"{section}.{key}", f"configuration {path}")
            values[setting.name] = _checked(setting, value, f"configuration {path}: {setting.name}")
    return values


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    variables = {setting.variable: setting for setting in SETTINGS.values()}
    # Written with one underscore a setting would be passed over in silence.
    misspelt = {variable.replace("__", "_"): variable for variable in variables}
    values = {}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable in misspelt:
            raise ConfigError(f"environment {variable}: write {misspelt[variable]}, with two underscores")
        if "__" not in variable:
            continue
        if variable not in variables:
            near = _nearest(variable, variables)
            raise ConfigError(f"environment {variable}: unknown setting; the nearest is {near}")
        setting = variables[variable]
        values[setting.name] = _converted(setting, text, f"environment {variable}")
    return values


def _from_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    values = {}
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override}: expected section.key=value")
        setting = _find(name.strip(), f"--set {override}")
        values[setting.name] = _converted(setting, text, f"--set {setting.name}")
    return values


def _find(name: str, place: str) -> Setting:
    setting = SETTINGS.get(name)
    if setting is None:
        raise ConfigError(f"{place}: unknown key {name}; the nearest is {_nearest(name, SETTINGS)}")
    return setting


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


def _converted(setting: Setting, text: str, place: str) -> Any:
    try:
        value = setting.convert(text)
    except ValueError:
        raise ConfigError(f"{place} = {text!r}: expected {setting.expected}") from None
    return _checked(setting, value, place)


def _checked(setting: Setting, value: Any, place: str) -> Any:
    try:
        return setting.check(value)
    except ValueError:
        raise ConfigError(f"{place} = {value!r}: expected {setting.expected}") from None


def as_table(config: Config) -> dict[str, dict[str, str | int | bool]]:
    """The tree as plain values, section by section. A secret is left out."""
    table: dict[str, dict[str, str | int | bool]] = {name: {} for name in SECTIONS}
    for setting in SETTINGS.values():
        value = getattr(getattr(config, setting.section), setting.key)
        if value is None or isinstance(value, Address):
            value = str(value or "")
        table[setting.section][setting.key] = "" if setting.name == "cluster.secret" else value
    return table


def describe(config: Config | None = None) -> str:
    """Commented TOML of every setting, which `load` reads back to an equal tree."""
    lines = []
    for section, content in as_table(config or Config()).items():
        lines.append(f"[{section}]")
        for key, value in content.items():
            setting = SETTINGS[f"{section}.{key}"]
            lines.append(f"# {setting.metadata['doc']} ({setting.expected})")
            lines.append(f"{key} = {toml_value(value)}")
        lines.append("")
    for name, given in (config or Config()).streams.items():
        lines.append(f"[{STREAMS}.{toml_value(name)}]")
        lines += [
            f"{key} = [{', '.join(map(toml_value, value))}]"
            if isinstance(value, list)
            else f"{key} = {toml_value(value)}"
            for key, value in given.items()
        ]
        lines.append("")
    return "\n".join(lines)


def toml_value(value: str | int | bool) -> str:
    """One TOML scalar."""
    if isinstance(value, str):
        # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
