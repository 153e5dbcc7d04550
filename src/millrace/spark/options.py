"""The options of the source: read from text once, checked at once, carried as plain values.

Spark keeps the options of a query in its plan, shows some of them and sends them to every executor. So no
secret may be one: a password comes from the environment of whoever reads, or from a file that an option
names.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from millrace.broker.filters import is_valid
from millrace.client.http import DEFAULT_URL
from millrace.errors import ConfigError
from millrace.spark.offsets import EARLIEST, LATEST, Start, parse_start

PASSWORD_VARIABLE = "MILLRACE_PASSWORD"

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
    "passwordFile",
    "pushFilters",
)
_NO_SECRET = (
    f"a secret in an option is written into the plan: set {PASSWORD_VARIABLE} where the executors run, "
    "or name a file there in passwordFile"
)
_NOT_HERE = {
    "password": _NO_SECRET,
    "token": _NO_SECRET,
    "group": "progress is not committed to a group; Spark's checkpoint holds it",
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
    password_file: str | None = None
    is_pushing: bool = False

    def password(self) -> str | None:
        """Read where and when it is needed; never kept."""
        if self.password_file is not None:
            try:
                return Path(self.password_file).read_text().strip()
            except OSError as error:
                raise ConfigError(f"passwordFile: {error}") from None
        return os.environ.get(PASSWORD_VARIABLE)


def parse(given: Mapping[str, str]) -> Options:
    """ConfigError names the option that is wrong and what would be right."""
    options = {name.lower(): value for name, value in given.items()}
    _check_names(options)
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
        password_file=options.get("passwordfile"),
        is_pushing=_switch("pushFilters", options, False),
    )


def batch_start(options: Options) -> Start:
    if options.start == LATEST:
        raise ConfigError("startingOffsets = latest reads nothing in a batch query")
    return EARLIEST if options.start is None else options.start


def stream_start(options: Options) -> Start:
    if options.end is not None:
        raise ConfigError("endingOffsets is for batch queries; a stream has no end")
    return LATEST if options.start is None else options.start


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _KNOWN}
    for name in options:
        if name in known or name.startswith(("spark.", "__")):
            continue
        if name in _NOT_HERE:
            raise ConfigError(f"option {name!r}: {_NOT_HERE[name]}")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {known[near[0]]!r}?" if near else f"there are {', '.join(_KNOWN)}"
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
