"""The configuration: one frozen tree, filled from four sources in rising order.

Defaults, one TOML file, environment variables `MILLRACE_SECTION__KEY`, and `section.key=value` from
`--set`. The structs below are the whole truth about a setting: its name, type, default, range and the line of
explanation that `describe` prints. Each value is checked where it came from, so that an error names the file,
variable or option to mend, and the tree is built once at the end. Relations between settings are checked when
the tree is made.

Nothing here reads the process environment or opens the files that settings name. Relative paths are meant
from the working directory.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from millrace.broker.streams.stream import StreamSpec
from millrace.errors import ConfigError, LocalError
from millrace.limits import KEEP_ALIVE_S_TOP, Limits
from millrace.settings import Field, Settings, nearest, says

ENVIRONMENT_PREFIX = "MILLRACE_"
USERS_FILE_NAME = "users.toml"
STREAMS = "streams"
SET = "(set)"
"""What is shown in place of a secret."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen or connect: a name or number and a port, 0 for any free one."""

    EXPECTED: ClassVar[str] = 'HOST:PORT, or "" for off'

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


class Node(Settings, frozen=True, kw_only=True):
    id: Annotated[
        str,
        says(
            "name of this node",
            pattern=r"\A[A-Za-z0-9._-]{1,64}\Z",
            expected="1 to 64 letters, digits, dots, dashes, underscores",
        ),
    ] = "n1"
    host: Annotated[
        str,
        says(
            "name of the machine, where several nodes share one: the replicas of a shard are put "
            "on different machines"
        ),
    ] = ""
    data: Annotated[
        str,
        says(
            "directory in which this node keeps everything",
            pattern="(?s).",
            expected="text that is not empty",
        ),
    ] = "millrace-data"


class Listeners(Settings, frozen=True, kw_only=True):
    mqtt: Annotated[Address | None, says("MQTT over TCP")] = Address("127.0.0.1", 1883)
    mqtts: Annotated[Address | None, says("MQTT over TLS; needs tls.certificate and tls.key")] = None
    ws: Annotated[Address | None, says("MQTT over WebSocket")] = None
    wss: Annotated[
        Address | None, says("MQTT over WebSocket over TLS; needs tls.certificate and tls.key")
    ] = None
    http: Annotated[Address | None, says("HTTP: status, metrics, queue, dashboard")] = Address(
        "127.0.0.1", 18831
    )
    peer: Annotated[Address | None, says("links from the other nodes of the cluster")] = None
    https: Annotated[Address | None, says("HTTP over TLS; needs tls.certificate and tls.key")] = None
    text: Annotated[Address | None, says("the text protocol, for netcat and telnet")] = None
    texts: Annotated[
        Address | None, says("the text protocol over TLS; needs tls.certificate and tls.key")
    ] = None
    ws_origins: Annotated[
        str, says("origins of other web pages that may use ws and wss, comma separated; *: any")
    ] = ""
    hosts: Annotated[
        str,
        says(
            "names with a dot under which clients may call http and ws, comma separated; "
            "addresses, localhost and names without a dot need not be named; *.NAME: all names "
            "below NAME; *: any"
        ),
    ] = ""
    shared: Annotated[
        bool,
        says(
            "several nodes on this machine listen on the same ports for MQTT, WebSocket and "
            "text; the system gives each connection to one of them"
        ),
    ] = False
    proxy_protocol: Annotated[
        bool, says("connections without TLS begin with a PROXY header; only behind a balancer that sends it")
    ] = False


class Tls(Settings, frozen=True, kw_only=True):
    certificate: Annotated[str, says("PEM file with the certificate chain of this node")] = ""
    key: Annotated[str, says("PEM file with the private key of the certificate")] = ""
    client_ca: Annotated[
        str, says("PEM file with the authorities whose client certificates are accepted")
    ] = ""
    require_client_certificate: Annotated[bool, says("refuse clients without a certificate")] = False
    client_name: Annotated[
        Literal["cn", "san-dns", "san-email", "san-uri"],
        says(
            "field of a client certificate that holds the name of the user: the CN of its "
            "subject, or an alternative name"
        ),
    ] = "cn"


class Access(Settings, frozen=True, kw_only=True):
    anonymous: Annotated[
        Literal["loopback", "always", "never"],
        says("clients without a user name: only from this machine, from anywhere, or not at all"),
    ] = "loopback"
    users_file: Annotated[
        str,
        says(
            "file with users and access rules for a cluster that has none; empty: "
            f"{USERS_FILE_NAME} in node.data"
        ),
    ] = ""
    users_import: Annotated[
        Literal["once", "always"],
        says(
            "load users_file into a cluster that never had users, or at every start and SIGHUP of this node, "
            "in place of all users and rules of the cluster"
        ),
    ] = "once"
    hook: Annotated[str, says("Python function that is asked about every login, as module:function")] = ""
    hook_timeout_ms: Annotated[
        int, says("how long the hook may take; then the login is refused", 1, 60_000)
    ] = 2_000
    scram: Annotated[bool, says("keep keys for SCRAM-SHA-256 beside the hash of each new password")] = True
    scram_iterations: Annotated[
        int,
        says("rounds of hashing that a SCRAM key costs, and so each guess of a password", 4_096, 10_000_000),
    ] = 16_384


class Jwt(Settings, frozen=True, kw_only=True):
    keys_file: Annotated[
        str,
        says(
            "file with the keys that sign JSON web tokens: JWKS, PEM or a secret; empty: such "
            "tokens are not accepted"
        ),
    ] = ""
    issuer: Annotated[str, says("value that the claim iss of a token must have; empty: any")] = ""
    audience: Annotated[
        str, says("value that the claim aud of a token must have; empty: only tokens without this claim")
    ] = ""
    user_claim: Annotated[str, says("claim with the name of the user")] = "sub"
    rules_claim: Annotated[
        str, says('claim with rules such as "publish:home/%u/#", granted beside those of the cluster')
    ] = ""
    roles_claim: Annotated[str, says("claim with roles, granted beside those of the user")] = ""
    known_users_only: Annotated[bool, says("accept a token only if its user is a user of the cluster")] = True
    clock_skew_s: Annotated[
        int, says("how far the clock of the issuer may be from the node's own", 0, 600)
    ] = 30


class Mqtt(Settings, frozen=True, kw_only=True):
    sys_interval_s: Annotated[int, says("time between two rounds of $SYS messages; 0 is off", 0, 86_400)] = 10
    server_keep_alive_s: Annotated[
        int, says("keep-alive that every client is told to use; 0: each uses its own", 0, KEEP_ALIVE_S_TOP)
    ] = 0
    response_information: Annotated[
        str, says("topic prefix told to clients that ask for response information")
    ] = ""
    retain: Annotated[bool, says("accept retained messages; if false, a retained publish is refused")] = True


class Cluster(Settings, frozen=True, kw_only=True):
    join: Annotated[
        str,
        says(
            "addresses HOST:PORT of the nodes of the cluster, comma separated; if it is empty, "
            "or begins with this node's own address, this node forms the cluster"
        ),
    ] = ""
    takeover: Annotated[
        bool,
        says(
            "when a client connects at another node, its connection at the old node is closed, "
            "and its unfinished messages come along"
        ),
    ] = True
    secret: Annotated[
        str,
        says(
            "secret that all nodes of the cluster share; nodes prove to each other that they know it",
            secret=True,
        ),
    ] = ""
    secret_file: Annotated[
        str, says("file that holds the secret, readable only by its owner; millrace init makes one")
    ] = ""
    advertise: Annotated[
        Address | None, says("address under which other nodes reach this one; empty: that of listeners.peer")
    ] = None
    replace_after_s: Annotated[
        int,
        says(
            "how long a node may be away before other nodes, where there are any, get the "
            "replicas that it keeps; 0: for ever",
            0,
            31_536_000,
        ),
    ] = 600
    tls_cert: Annotated[str, says("PEM file with the certificate that this node shows to other nodes")] = ""
    tls_key: Annotated[str, says("PEM file with the private key of cluster.tls_cert")] = ""
    tls_ca: Annotated[str, says("PEM file with the authority whose certificates other nodes must show")] = ""


class Storage(Settings, frozen=True, kw_only=True):
    sync: Annotated[
        Literal["always", "interval", "never"],
        says(
            "when a message is synced to disk. always: before it is acknowledged; interval: at "
            "most storage.sync_interval_ms later; never: when the operating system does it"
        ),
    ] = "always"
    sync_interval_ms: Annotated[
        int,
        says('how long after it is acknowledged a message is on disk, with sync = "interval"', 1, 3_600_000),
    ] = 1_000
    sync_in_place: Annotated[
        bool,
        says("sync a single small write on the event loop, without a thread, as long as the disk is fast"),
    ] = True
    free_bytes_min: Annotated[
        int, says("free bytes on the disk below which publishing to logs is refused", 0, 2**50)
    ] = 64 * 1024 * 1024

    @property
    def sync_every_s(self) -> float | None:
        """0: before anything is acknowledged; None: never."""
        return {"always": 0.0, "interval": self.sync_interval_ms / 1000, "never": None}[self.sync]


class Audit(Settings, frozen=True, kw_only=True):
    topic: Annotated[
        str,
        says(
            "topic below which the node publishes who connected, who was refused and who changed "
            "what; clients may not publish there; empty: no audit"
        ),
    ] = ""


class Tracing(Settings, frozen=True, kw_only=True):
    endpoint: Annotated[
        str,
        says(
            "URL of an OpenTelemetry collector that takes traces by OTLP over HTTP, such as "
            "http://127.0.0.1:4318; needs the extra millrace[otel]; empty: off",
            pattern=r"\A(https?://[!-~]+)?\Z",
            expected='an address that begins with http:// or https://, or "" for off',
        ),
    ] = ""
    one_in: Annotated[
        int,
        says(
            "trace one message in so many, besides those whose publishers ask for it by "
            "traceparent; 0: only those",
            0,
            1_000_000_000,
        ),
    ] = 0
    per_second_max: Annotated[int, says("messages that a node traces in one second at most", 1, 10_000)] = 100
    service: Annotated[str, says("name of the cluster in traces (service.name)")] = "millrace"


class Edge(Settings, frozen=True, kw_only=True):
    modules: Annotated[str, says("Python modules whose functions streams may use, comma separated")] = ""
    workers: Annotated[int, says("processes for each edge function", 1, 64)] = 2
    timeout_ms: Annotated[
        int, says("how long a call may take before its process is killed", 1, 3_600_000)
    ] = 5_000


class Pipelines(Settings, frozen=True, kw_only=True):
    run: Annotated[
        bool,
        says(
            "this node may run pipelines of the cluster; their code comes from administrators of "
            "the broker and runs under the account of the node"
        ),
    ] = False
    python: Annotated[
        str, says("Python interpreter with millrace[spark] that runs the pipelines; empty: the node's own")
    ] = ""
    token_file: Annotated[
        str, says("file with the token, or USER:PASSWORD, by which the drivers of pipelines log in")
    ] = ""
    urls: Annotated[
        str,
        says(
            "HTTP addresses of nodes that the drivers of pipelines use, comma separated; empty: "
            "those of all nodes"
        ),
    ] = ""


class Log(Settings, frozen=True, kw_only=True):
    level: Annotated[
        Literal["debug", "info", "warning", "error"], says("lowest severity that is written")
    ] = "info"
    format: Annotated[Literal["text", "json"], says("lines for people, or one JSON object per line")] = "text"


class Config(Settings, frozen=True, kw_only=True):
    """The whole configuration. Raises ConfigError where settings contradict each other."""

    ERROR: ClassVar[type[LocalError]] = ConfigError

    node: Node = Node()
    listeners: Listeners = Listeners()
    tls: Tls = Tls()
    limits: Limits = Limits()
    access: Access = Access()
    jwt: Jwt = Jwt()
    mqtt: Mqtt = Mqtt()
    cluster: Cluster = Cluster()
    storage: Storage = Storage()
    audit: Audit = Audit()
    tracing: Tracing = Tracing()
    edge: Edge = Edge()
    pipelines: Pipelines = Pipelines()
    log: Log = Log()
    streams: dict[str, dict[str, Any]] = {}
    """Streams by name, each with the settings of `millrace stream create`; made or changed at start."""

    def refusals(self) -> Iterator[str]:
        cluster, tls = self.cluster, self.tls
        if len({bool(value) for value in (cluster.tls_cert, cluster.tls_key, cluster.tls_ca)}) > 1:
            yield "cluster.tls_cert, tls_key and tls_ca belong together: set all or none"
        if cluster.secret and cluster.secret_file:
            yield "cluster.secret and cluster.secret_file say the same: set one of them"
        if self.listeners.peer and not (cluster.secret or cluster.secret_file or cluster.tls_cert):
            yield (
                "listeners.peer needs cluster.secret_file (make one with: millrace init) or cluster.tls_*: "
                "without either whoever reaches the port would be a node of the cluster"
            )
        if bool(tls.certificate) != bool(tls.key):
            yield "tls.certificate and tls.key belong together: set both or none"
        if tls.require_client_certificate and not tls.client_ca:
            yield "tls.require_client_certificate needs tls.client_ca to check them against"
        for key in ("mqtts", "wss", "https", "texts"):
            if getattr(self.listeners, key) is not None and not tls.certificate:
                yield f"listeners.{key} needs tls.certificate and tls.key"
        taken: dict[Address, str] = {}
        for key in Listeners.fields():
            address = getattr(self.listeners, key)
            if isinstance(address, Address) and address.port and taken.setdefault(address, key) != key:
                yield f"listeners.{key} and listeners.{taken[address]} are both {address}"
        self.stream_specs()

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


SECTIONS: Mapping[str, type[Settings]] = {
    field.name: field.type for field in Config.fields().values() if field.name != STREAMS
}
SETTINGS: Mapping[str, Field] = {
    f"{section}.{field.name}": field.under(section)
    for section, kind in SECTIONS.items()
    for field in kind.fields().values()
}
_VARIABLES = {ENVIRONMENT_PREFIX + name.replace(".", "__").upper(): name for name in SETTINGS}

# The place of a value, the name of its setting, and the value.
Source = Iterator[tuple[str, str, Any]]


def load(
    path: Path | None = None, environ: Mapping[str, str] | None = None, overrides: Iterable[str] = ()
) -> Config:
    """Reads all sources; raises ConfigError with the place, the key and what is expected there."""
    values: dict[str, Any] = {}
    streams: dict[str, dict[str, Any]] = {}
    for source, is_text in (
        (_file(path), False),
        (_environment(environ or {}), True),
        (_set(overrides), True),
    ):
        for place, name, given in source:
            try:
                setting = _find(name)
                value = setting.from_text(given) if is_text else given
                values[name] = setting.read(value)
            except LocalError as error:
                raise ConfigError(f"{place}: {error}") from None
            if name.startswith(f"{STREAMS}."):
                stream, _, key = name.removeprefix(f"{STREAMS}.").rpartition(".")
                streams.setdefault(stream, {})[key] = value
    return build({**values, STREAMS: streams})


def _find(name: str) -> Field:
    """The setting of a name: `section.key`, or `streams.NAME.KEY`."""
    if name in SETTINGS:
        return SETTINGS[name]
    table, _, key = name.rpartition(".")
    if table.startswith(f"{STREAMS}."):
        return StreamSpec.field(key).under(table)
    raise LocalError(f"unknown key {name}; the nearest is {nearest(name, SETTINGS)}")


def build(values: Mapping[str, Any]) -> Config:
    """The tree from a flat table of checked values; what is absent keeps its default."""
    given: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name in values.keys() & SETTINGS.keys():
        section, _, key = name.partition(".")
        given[section][key] = values[name]
    sections: dict[str, Any] = {section: kind(**given[section]) for section, kind in SECTIONS.items()}
    return Config(**sections, streams=values.get(STREAMS, {}))


def _file(path: Path | None) -> Source:
    if path is None:
        return
    place = f"configuration {path}"
    try:
        document = tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: not UTF-8 at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place}: not TOML: {error}") from error
    streams = document.pop(STREAMS, {})
    if not isinstance(streams, dict) or not all(isinstance(stream, dict) for stream in streams.values()):
        raise ConfigError(f"{place}: a stream is written [{STREAMS}.NAME]")
    for section, content in document.items():
        if section not in SECTIONS:
            near = nearest(section, SECTIONS)
            raise ConfigError(f"{place}: unknown section [{section}]; the nearest is [{near}]")
        if not isinstance(content, dict):
            raise ConfigError(f"{place}: {section} is a section, written [{section}]")
    document |= {f"{STREAMS}.{name}": stream for name, stream in streams.items()}
    for section, content in document.items():
        for key, value in content.items():
            yield place, f"{section}.{key}", value


def _environment(environ: Mapping[str, str]) -> Source:
    # Written with one underscore a setting would be passed over in silence.
    misspelt = {variable.replace("__", "_"): variable for variable in _VARIABLES}
    for variable, text in sorted(environ.items()):
        place = f"environment {variable}"
        if variable in misspelt:
            raise ConfigError(f"{place}: write {misspelt[variable]}, with two underscores")
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue
        if variable not in _VARIABLES:
            raise ConfigError(f"{place}: unknown setting; the nearest is {nearest(variable, _VARIABLES)}")
        yield place, _VARIABLES[variable], text


def _set(overrides: Iterable[str]) -> Source:
    for override in overrides:
        name, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override}: expected section.key=value")
        if name.strip() in SETTINGS and SETTINGS[name.strip()].extra.get("secret"):
            variable = next(one for one, setting in _VARIABLES.items() if setting == name.strip())
            raise ConfigError(
                f"--set {name.strip()}: everybody on this machine can read a secret on the command line; "
                f"set {variable}, or name a file that holds it"
            )
        yield f"--set {name.strip()}", name.strip(), text


def as_table(config: Config) -> dict[str, dict[str, str | int | bool]]:
    """The tree as plain values, section by section. Of a secret it only says that there is one."""
    table: dict[str, dict[str, str | int | bool]] = {name: {} for name in SECTIONS}
    for name, setting in SETTINGS.items():
        section, _, key = name.partition(".")
        value = getattr(getattr(config, section), key)
        if value is None or isinstance(value, Address):
            value = str(value or "")
        table[section][key] = SET if value and setting.extra.get("secret") else value
    return table


def describe(config: Config | None = None) -> str:
    """Commented TOML of every setting, which `load` reads back to an equal tree but for secrets."""
    lines = []
    for section, content in as_table(config or Config()).items():
        lines.append(f"[{section}]")
        for key, value in content.items():
            setting = SETTINGS[f"{section}.{key}"]
            lines.append(f"# {setting.description} ({setting.expected})")
            # Whoever starts a node with what is printed here must not get this word as the secret.
            is_hidden = value and setting.extra.get("secret")
            lines.append(f"# {key} = {value}" if is_hidden else f"{key} = {toml_value(value)}")
        lines.append("")
    for name, given in (config or Config()).streams.items():
        lines.append(f"[{STREAMS}.{toml_value(name)}]")
        lines += [f"{key} = {toml_value(value)}" for key, value in given.items()]
        lines.append("")
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """One value as TOML has it in a line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml_value(key)} = {toml_value(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, str):
        # A JSON string is a TOML basic string but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
