"""The options of the source and of the sink: read from text once, checked at once, carried as plain values.

Spark keeps the options of a query in its plan, shows some of them and sends them to every executor. So no
secret may be one: a password comes from the environment of whoever reads, or from a file that an option
names.
"""

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from millrace.broker.topics.filters import is_valid
from millrace.client.connection.tls import CA_VARIABLE
from millrace.client.http import DEFAULT_URL
from millrace.errors import ConfigError
from millrace.spark.offsets import EARLIEST, LATEST, Start, parse_start, parse_time

PASSWORD_VARIABLE = "MILLRACE_PASSWORD"
TOKEN_VARIABLE = "MILLRACE_TOKEN"
ANY_USER = "token"
"""The name under which a token of the cluster is given as a password: it says itself whose it is."""
"""A token is USER:PASSWORD in one word: who reads and the proof of it, from one place."""
URL_VARIABLE = "MILLRACE_URL"
RUN_VARIABLE = "MILLRACE_PIPELINE_RUN"
"""Which run of a pipeline of the cluster a driver is: the cluster takes decisions of the newest alone."""

_COMMON = ("url", "connectTimeout", "requestTimeout", "passwordFile", "tokenFile", "caFile")
_KNOWN = (
    *_COMMON,
    "stream",
    "subscribe",
    "subscribePattern",
    "assign",
    "topics",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "group",
    "pushFilters",
    "traceEndpoint",
    "traceOneIn",
)
_SINK_KNOWN = (
    *_COMMON,
    "stream",
    "topic",
    "qos",
    "retain",
    "writer",
    "batch",
    # Spark hands a sink these of its own.
    "checkpointLocation",
    "path",
    "queryName",
)
ALIASES = {
    "kafka.bootstrap.servers": "url",
    "kafka.group.id": "group",
    "maxOffsetsPerTrigger": "maxRowsPerTrigger",
    "startingOffsetsByTimestamp": "startingTimestamp",
    "endingOffsetsByTimestamp": "endingTimestamp",
}
"""Names that Kafka's connector has for the same thing."""
SINK_ALIASES = {
    "kafka.bootstrap.servers": "url",
    # Delta Lake's names.
    "txnAppId": "writer",
    "txnVersion": "batch",
}
_NO_SECRET = (
    f"a secret in an option is written into the plan: set {PASSWORD_VARIABLE} or {TOKEN_VARIABLE} where the "
    "executors run, or name a file there in passwordFile or tokenFile"
)
NO_URL = (
    "name the nodes to write to: give the option url, or set the environment variable "
    f"{URL_VARIABLE} (in a Spark session: spark.executorEnv.{URL_VARIABLE}); a table of Spark's catalog "
    "gets no options from Spark"
)
NO_OPTIONS = (
    "name what to read: give the option stream, subscribe, subscribePattern or assign; a table of Spark's "
    "catalog gets no options from Spark, CREATE TEMPORARY VIEW ... USING millrace OPTIONS (...) does"
)
NO_TABLE = (
    "Spark does not hand the options of a table in its catalog to this source: use CREATE TEMPORARY VIEW ... "
    "USING millrace OPTIONS (...)"
)
UPDATE_MODE = (
    "Spark offers the output mode update to no Python data source, and complete would write all rows again "
    "with every batch: use foreachBatch and write each batch with the options writer and batch"
)
"""Said by pipelines, by the sink and in docs/reference/spark.md."""
# What Spark adds by itself when a table is created in its catalog.
_CATALOG_NAMES = frozenset(
    ("provider", "owner", "location", "comment", "external", "is_managed_location", "collation")
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_WRITER = re.compile(r"[A-Za-z0-9._-]{1,100}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_NOT_HERE = {
    "password": _NO_SECRET,
    "token": _NO_SECRET,
    "includeheaders": "the columns content_type and properties are always there",
    "startingoffsetsbytimestampstrategy": "a time after the last message means the end of the shard",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    urls: tuple[str, ...] = (DEFAULT_URL,)
    streams: tuple[str, ...] = ("default",)
    pattern: str | None = None
    """A regular expression: every stream whose whole name matches is read, instead of `streams`."""
    shards: frozenset[int] | None = None
    """The only shards to read; None for all."""
    topics: tuple[str, ...] = ()
    """MQTT filters; none for every topic of the stream."""
    start: Start | None = None
    end: Start | None = None
    rows_max: int | None = None
    bytes_max: int | None = None
    rows_min: int | None = None
    """A micro-batch waits for so many offsets, at most for `delay_s_max`."""
    delay_s_max: float = 900.0
    partitions_min: int | None = None
    partition_rows_max: int | None = None
    is_loss_fatal: bool = True
    group: str | None = None
    """A durable group that shows how far a streaming query has come, and holds the log for it."""
    connect_s: float | None = None
    request_s: float | None = None
    password_file: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    is_pushing: bool = False
    trace_endpoint: str | None = None
    """Where spans of the traced messages that a task reads are sent; None for nowhere."""
    trace_one_in: int = 0
    """`tracing.one_in` of the nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    urls: tuple[str, ...] = (DEFAULT_URL,)
    stream: str | None = None
    """Every topic must belong to it; None for whichever streams the topics belong to."""
    topic: str | None = None
    """Of rows in a frame without the column."""
    qos: int = 1
    retain: bool = False
    writer: str | None = None
    """Names a batch write: of all writes with this writer and this batch one is carried out."""
    batch: int | None = None
    connect_s: float | None = None
    request_s: float | None = None
    password_file: str | None = None
    token_file: str | None = None
    ca_file: str | None = None


def access(options: Options | SinkOptions) -> tuple[tuple[str, ...], str | None]:
    """The addresses with the user's name in them, and the password. Secrets are read where and when they are
    needed, and never kept."""
    token = _secret("tokenFile", options.token_file, TOKEN_VARIABLE)
    is_token_meant = options.token_file is not None or options.password_file is None
    if token is None or not is_token_meant:
        return options.urls, _secret("passwordFile", options.password_file, PASSWORD_VARIABLE)
    name, colon, password = token.partition(":")
    if not colon and _is_token(token):
        name, colon, password = ANY_USER, ":", token
    if not colon or not name:
        raise ConfigError("a token is what `millrace token create` shows, or USER:PASSWORD of a user")
    return tuple(_with_user(url, name) for url in options.urls), password


def _is_token(text: str) -> bool:
    """Whether the cluster made this. The import is for those who have one: it costs a new process time."""
    from millrace.node.access.tokens import is_token

    return is_token(text.encode())


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
    if not given:
        raise ConfigError(NO_OPTIONS)
    options = _named(given, _KNOWN, ALIASES)
    streams, pattern, shards = _what(options)
    return Options(
        urls=_urls(options.get("url") or os.environ.get(URL_VARIABLE) or DEFAULT_URL),
        streams=streams,
        pattern=pattern,
        shards=shards,
        topics=_topics(options.get("topics", "")),
        start=_place("starting", options),
        end=_place("ending", options, refused=EARLIEST),
        rows_max=_number("maxRowsPerTrigger", options),
        bytes_max=_number("maxBytesPerTrigger", options),
        rows_min=_number("minOffsetsPerTrigger", options),
        delay_s_max=_duration("maxTriggerDelay", options) or 900.0,
        partitions_min=_number("minPartitions", options),
        partition_rows_max=_number("maxRecordsPerPartition", options),
        is_loss_fatal=_switch("failOnDataLoss", options, True),
        group=_group(options.get("group")),
        connect_s=_duration("connectTimeout", options),
        request_s=_duration("requestTimeout", options),
        password_file=options.get("passwordfile"),
        token_file=options.get("tokenfile"),
        ca_file=options.get("cafile") or os.environ.get(CA_VARIABLE),
        is_pushing=_switch("pushFilters", options, False),
        trace_endpoint=_collector(options),
        trace_one_in=_number("traceOneIn", options) or 0,
    )


def parse_sink(given: Mapping[str, str], *, is_view: bool = False) -> SinkOptions:
    """The same for writing. There is no address by default: rows that go to a node that nobody named are
    lost to whoever wrote them. The options of a view are for reading too: those say nothing here."""
    if is_view:
        reading = {name.lower() for name in _KNOWN} - {name.lower() for name in _SINK_KNOWN}
        given = {name: value for name, value in given.items() if name.lower() not in reading}
    options = _named(given, _SINK_KNOWN, SINK_ALIASES)
    url = options.get("url") or os.environ.get(URL_VARIABLE)
    if url is None:
        raise ConfigError(NO_URL)
    qos = options.get("qos", "1")
    if qos not in ("0", "1", "2"):
        raise ConfigError(f"qos = {qos!r} is not 0, 1 or 2")
    topic = options.get("topic")
    if topic is not None and (not is_valid(topic) or "+" in topic or "#" in topic or topic.startswith("$")):
        raise ConfigError(f"topic = {topic!r} is not a topic to publish to")
    writer, batch = options.get("writer"), options.get("batch")
    if (writer is None) != (batch is None):
        raise ConfigError("writer and batch name a write together: give both or neither")
    if writer is not None and not _WRITER.fullmatch(writer):
        raise ConfigError(f"writer = {writer!r} is not up to 100 letters, digits, dots, dashes, underscores")
    if batch is not None and not (batch.isascii() and batch.isdigit()):
        raise ConfigError(f"batch = {batch!r} is not a number from 0 on, such as the one of foreachBatch")
    return SinkOptions(
        urls=_urls(url),
        stream=options.get("stream"),
        topic=topic,
        qos=int(qos),
        retain=_switch("retain", options, False),
        writer=writer,
        batch=None if batch is None else int(batch),
        connect_s=_duration("connectTimeout", options),
        request_s=_duration("requestTimeout", options),
        password_file=options.get("passwordfile"),
        token_file=options.get("tokenfile"),
        ca_file=options.get("cafile") or os.environ.get(CA_VARIABLE),
    )


def batch_start(options: Options) -> Start:
    if options.group is not None:
        raise ConfigError("group shows the progress of a streaming query; a batch query has none")
    if options.start == LATEST:
        raise ConfigError("startingOffsets = latest reads nothing in a batch query")
    return EARLIEST if options.start is None else options.start


def stream_start(options: Options) -> Start:
    if options.end is not None:
        raise ConfigError("endingOffsets and endingTimestamp are for batch queries; a stream has no end")
    return LATEST if options.start is None else options.start


def _named(given: Mapping[str, str], names: Sequence[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """The options under their own names in small letters, without what Spark added; ConfigError for one that
    does not exist, and for one that is there under two names."""
    known = {name.lower(): name for name in names}
    meanings = {name: name for name in known} | {
        alias.lower(): name.lower() for alias, name in aliases.items()
    }
    is_table = any(name.lower() == "provider" for name in given)
    options: dict[str, str] = {}
    for original, value in given.items():
        name = original.lower()
        if name.startswith(("spark.", "__", "option.")) or (is_table and name in _CATALOG_NAMES):
            continue
        if is_table:
            raise ConfigError(NO_TABLE)
        meaning = meanings.get(name)
        if meaning is None:
            raise ConfigError(_unknown(original, known))
        if meaning in options:
            raise ConfigError(f"option {known[meaning]!r} is given twice, the second time as {original!r}")
        options[meaning] = value
    return options


def _unknown(given: str, known: Mapping[str, str]) -> str:
    name = given.lower()
    if name in _NOT_HERE:
        return f"option {given!r}: {_NOT_HERE[name]}"
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {known[near[0]]!r}?" if near else f"there are {', '.join(known.values())}"
    return f"there is no option {given!r}; {hint}"


def _what(options: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, frozenset[int] | None]:
    """The streams to read, or a pattern for them, and the shards if they are chosen."""
    names = ("stream", "subscribe", "subscribePattern", "assign")
    given = [name for name in names if name.lower() in options]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} say the same thing: give one of them")
    text = options[given[0].lower()].strip() if given else "default"
    if given == ["subscribe"]:
        streams = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not streams:
            raise ConfigError("subscribe names no stream; give names with commas between them")
        return streams, None, None
    if given == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern = {text!r} is no regular expression: {error}") from None
        return (), text, None
    if given == ["assign"]:
        return _assigned(text)
    return (text,), None, None


def _assigned(text: str) -> tuple[tuple[str, ...], None, frozenset[int]]:
    try:
        fields = json.loads(text)
        shards = frozenset(shard for numbers in fields.values() for shard in numbers)
    except (ValueError, TypeError, AttributeError):
        fields, shards = {}, frozenset()
    if not shards or not all(isinstance(shard, int) for shard in shards):
        raise ConfigError(
            f'assign = {text!r} does not map streams to shards, as {{"sensors": [17, 18]}} does'
        )
    return tuple(fields), None, shards


def _urls(text: str) -> tuple[str, ...]:
    urls = tuple(part.strip() for part in text.split(",") if part.strip())
    # Kafka's connector has addresses without a scheme.
    urls = tuple(url if "://" in url else f"http://{url}" for url in urls)
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url: {url!r} is not an HTTP address such as {DEFAULT_URL}")
        if parts.password is not None:
            raise ConfigError(f"url: {_NO_SECRET}")
    if not urls:
        raise ConfigError(f"url is empty; give an address such as {DEFAULT_URL}")
    return urls


def _collector(options: Mapping[str, str]) -> str | None:
    url = options.get("traceendpoint")
    if url is None and "traceonein" in options:
        raise ConfigError("traceOneIn says which messages are traced; without traceEndpoint they go nowhere")
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ConfigError(f"traceEndpoint = {url!r} is not an address such as http://127.0.0.1:4318")
    return url


def _topics(text: str) -> tuple[str, ...]:
    filters = tuple(part.strip() for part in text.split(",") if part.strip())
    for filter in filters:
        if not is_valid(filter):
            raise ConfigError(f"topics: {filter!r} is not a topic filter")
    return filters


def _group(name: str | None) -> str | None:
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigError(f"group = {name!r} is not a group name: letters, digits, dot, dash, underscore")
    return name


def _place(word: str, options: Mapping[str, str], refused: str | None = None) -> Start | None:
    """Where to start or to end. A time goes before offsets, as in Kafka's connector."""
    name = f"{word}Timestamp"
    if name.lower() in options:
        return parse_time(name, options[name.lower()])
    name = f"{word}Offsets"
    if name.lower() not in options:
        return None
    value = parse_start(name, options[name.lower()])
    if value == refused:
        raise ConfigError(f"{name} = {refused} reads nothing")
    return value


def trigger_ms(text: str) -> int:
    """The time between two micro-batches of a pipeline."""
    return round(_seconds("trigger", text) * 1000)


def _duration(name: str, options: Mapping[str, str]) -> float | None:
    text = options.get(name.lower())
    return None if text is None else _seconds(name, text)


def _seconds(name: str, text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"{name} = {text!r} is not a time such as 500ms, 3s or 15m")
    return float(found[1]) * _UNITS_S[found[2]]


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
