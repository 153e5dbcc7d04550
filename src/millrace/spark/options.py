"""The options of the source and of the sink: read from text once, checked at once, carried as plain values.

Spark keeps the options of a query in its plan, shows some of them and sends them to every executor. So no
secret may be one: a password comes from the environment of whoever reads, or from a file that an option
names.
"""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from millrace.broker.topics.filters import is_valid
from millrace.client.http import DEFAULT_URL
from millrace.errors import ConfigError
from millrace.spark.offsets import EARLIEST, LATEST, Start, parse_start

PASSWORD_VARIABLE = "MILLRACE_PASSWORD"
TOKEN_VARIABLE = "MILLRACE_TOKEN"
"""A token is USER:PASSWORD in one word: who reads and the proof of it, from one place."""

_KNOWN = (
    "url",
    "stream",
    "topics",
    "startingOffsets",
    "endingOffsets",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "group",
    "passwordFile",
    "tokenFile",
    "pushFilters",
)
_SINK_KNOWN = (
    "url",
    "stream",
    "topic",
    "qos",
    "retain",
    "passwordFile",
    "tokenFile",
    # Spark hands a sink these of its own.
    "checkpointLocation",
    "path",
    "queryName",
)
_NO_SECRET = (
    f"a secret in an option is written into the plan: set {PASSWORD_VARIABLE} or {TOKEN_VARIABLE} where the "
    "executors run, or name a file there in passwordFile or tokenFile"
)
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NOT_HERE = {
    "password": _NO_SECRET,
    "token": _NO_SECRET,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    urls: tuple[str, ...] = (DEFAULT_URL,)
    stream: str = "default"
    topics: tuple[str, ...] = ()
    """MQTT filters; none for every topic of the stream."""
    start: Start | None = None
    end: Start | None = None
    rows_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int = 1
    is_loss_fatal: bool = True
    group: str | None = None
    """A durable group that shows how far a streaming query has come, and holds the log for it."""
    password_file: str | None = None
    token_file: str | None = None
    is_pushing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    urls: tuple[str, ...] = (DEFAULT_URL,)
    stream: str | None = None
    """Every topic must belong to it; None for whichever streams the topics belong to."""
    topic: str | None = None
    """Of rows in a frame without the column."""
    qos: int = 1
    retain: bool = False
    password_file: str | None = None
    token_file: str | None = None


def access(options: Options | SinkOptions) -> tuple[tuple[str, ...], str | None]:
    """The addresses with the user's name in them, and the password. Secrets are read where and when they are
    needed, and never kept."""
    token = _secret("tokenFile", options.token_file, TOKEN_VARIABLE)
    is_token_meant = options.token_file is not None or options.password_file is None
    if token is None or not is_token_meant:
        return options.urls, _secret("passwordFile", options.password_file, PASSWORD_VARIABLE)
    name, colon, password = token.partition(":")
    if not colon or not name:
        raise ConfigError("a token is USER:PASSWORD of a user of the cluster")
    return tuple(_with_user(url, name) for url in options.urls), password


def _secret(option: str, file: str | None, variable: str) -> str | None:
    if file is not None:
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise ConfigError(f"{option}: {error}") from None
    return os.environ.get(variable)


def _with_user(url: str, name: str) -> str:
    """The address with this user, unless it names one."""
    parts = urlsplit(url)
    if parts.username is not None:
        return url
    return parts._replace(netloc=f"{quote(name, safe='')}@{parts.netloc}").geturl()


def parse(given: Mapping[str, str]) -> Options:
    """ConfigError names the option that is wrong and what would be right."""
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options, _KNOWN)
    return Options(
        urls=_urls(options.get("url", DEFAULT_URL)),
        stream=options.get("stream", "default"),
        topics=_topics(options.get("topics", "")),
        start=_offsets("startingOffsets", options),
        end=_offsets("endingOffsets", options, refused=EARLIEST),
        rows_max=_number("maxRowsPerTrigger", options),
        bytes_max=_number("maxBytesPerTrigger", options),
        partitions_min=_number("minPartitions", options) or 1,
        is_loss_fatal=_switch("failOnDataLoss", options, True),
        group=_group(options.get("group")),
        password_file=options.get("passwordfile"),
        token_file=options.get("tokenfile"),
        is_pushing=_switch("pushFilters", options, False),
    )


def parse_sink(given: Mapping[str, str]) -> SinkOptions:
    """The same for writing."""
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options, _SINK_KNOWN)
    qos = options.get("qos", "1")
    if qos not in ("0", "1", "2"):
        raise ConfigError(f"qos = {qos!r} is not 0, 1 or 2")
    topic = options.get("topic")
    if topic is not None and (not is_valid(topic) or "+" in topic or "#" in topic or topic.startswith("$")):
        raise ConfigError(f"topic = {topic!r} is not a topic to publish to")
    return SinkOptions(
        urls=_urls(options.get("url", DEFAULT_URL)),
        stream=options.get("stream"),
        topic=topic,
        qos=int(qos),
        retain=_switch("retain", options, False),
        password_file=options.get("passwordfile"),
        token_file=options.get("tokenfile"),
    )


def batch_start(options: Options) -> Start:
    if options.group is not None:
        raise ConfigError("group shows the progress of a streaming query; a batch query has none")
    if options.start == LATEST:
        raise ConfigError("startingOffsets = latest reads nothing in a batch query")
    return EARLIEST if options.start is None else options.start


def stream_start(options: Options) -> Start:
    if options.end is not None:
        raise ConfigError("endingOffsets is for batch queries; a stream has no end")
    return LATEST if options.start is None else options.start


def _check_names(options: Mapping[str, str], names: Sequence[str]) -> None:
    known = {name.lower(): name for name in names}
    for name in options:
        if name in known or name.startswith(("spark.", "__")):
            continue
        if name in _NOT_HERE:
            raise ConfigError(f"option {name!r}: {_NOT_HERE[name]}")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {known[near[0]]!r}?" if near else f"there are {', '.join(names)}"
        raise ConfigError(f"there is no option {name!r}; {hint}")


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(part.strip() for part in text.split(",") if part.strip())
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url: {url!r} is not an HTTP address such as {DEFAULT_URL}")
        if parts.password is not None:
            raise ConfigError(f"url: {_NO_SECRET}")
    if not urls:
        raise ConfigError(f"url is empty; give an address such as {DEFAULT_URL}")
    return urls


def _topics(text: str) -> tuple[str, ...]:
    filters = tuple(part.strip() for part in text.split(",") if part.strip())
    for filter in filters:
        if not is_valid(filter):
            raise ConfigError(f"topics: {filter!r} is not a topic filter")
    return filters


def _group(name: str | None) -> str | None:
    if name is not None and not _GROUP.fullmatch(name):
        raise ConfigError(f"group = {name!r} is not a group name: letters, digits, dot, dash, underscore")
    return name


def _offsets(name: str, options: Mapping[str, str], refused: str | None = None) -> Start | None:
    text = options.get(name.lower())
    if text is None:
        return None
    value = parse_start(name, text)
    if value == refused:
        raise ConfigError(f"{name} = {refused} reads nothing")
    return value


def _number(name: str, options: Mapping[str, str]) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ConfigError(f"{name} = {text!r} is not a number above 0")
    return int(text)


def _switch(name: str, options: Mapping[str, str], default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{name} = {text!r} is not true or false")
    return text == "true"
