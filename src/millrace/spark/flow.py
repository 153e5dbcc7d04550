"""What a pipeline file is given: the session, where to read and where to write.

A pipeline is a Python file with a function `build(flow)`, or a SQL file (see `sql`). It names sources and
sinks; when `build` returns, every sink is started as one streaming query under the name it was given. The
name is the query's identity: its checkpoint is kept under it, so a sink that is renamed begins anew.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from millrace.errors import ConfigError
from millrace.limits import PIPELINE_SINKS_MAX
from millrace.spark.options import UPDATE_MODE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FORMAT = "millrace"
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_SOURCES_S_MAX = 60.0
_POLL_S = 0.1

EachBatch = Callable[["DataFrame", int], None]


def _await_sources(query: "StreamingQuery") -> None:
    """Spark gives the Python process of a source ten seconds to come up. Many at once on a busy machine take
    longer, so the next query waits until this one has its sources."""
    deadline_s = time.monotonic() + _SOURCES_S_MAX
    while query.isActive and time.monotonic() < deadline_s:
        if query.recentProgress or "nitializ" not in str(query.status["message"]):
            return
        time.sleep(_POLL_S)


@dataclass(frozen=True, kw_only=True)
class Sink:
    frame: "DataFrame"
    format: str
    mode: str
    options: Mapping[str, str]
    each_batch: EachBatch | None


@dataclass(slots=True, kw_only=True)
class Flow:
    """Handed to `build`. `settings` are the pipeline's own, from `--set KEY=VALUE`."""

    spark: "SparkSession"
    url: str
    checkpoints: str
    settings: Mapping[str, str]
    is_once: bool = False
    trigger_ms: int = 2_000
    sinks: dict[str, Sink] = field(default_factory=dict)

    def source(self, stream: str = "default", **options: str) -> "DataFrame":
        """A stream as a streaming frame. Unlike plain Spark a pipeline begins at the earliest message, so
        that one that is started late misses nothing."""
        given = {"startingOffsets": "earliest", **self._from(stream, options)}
        return self.spark.readStream.format(FORMAT).options(**given).load()

    def _from(self, stream: str, options: Mapping[str, str]) -> dict[str, str]:
        several = {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in options}
        return {"url": self.url, **({} if several else {"stream": stream}), **options}

    def table(self, stream: str = "default", **options: str) -> "DataFrame":
        """What the stream holds now, as a static frame."""
        given = self._from(stream, options)
        return self.spark.read.format(FORMAT).options(**given).load()

    def sink(
        self,
        name: str,
        frame: "DataFrame",
        *,
        format: str = FORMAT,
        mode: str = "append",
        each_batch: EachBatch | None = None,
        **options: str,
    ) -> None:
        """Write a streaming frame, to topics unless `format` says otherwise. `each_batch` is called with a
        static frame and the number of the batch instead; a batch may come again, under its number."""
        if not name or not set(name) <= _NAME_CHARACTERS:
            raise ConfigError(f"sink {name!r}: a name is letters, digits, dot, dash, underscore")
        if name in self.sinks:
            raise ConfigError(
                f"there are two sinks {name!r}; each needs a name, and a checkpoint, of its own"
            )
        if len(self.sinks) >= PIPELINE_SINKS_MAX:
            raise ConfigError(f"a pipeline has at most {PIPELINE_SINKS_MAX} sinks")
        if not frame.isStreaming:
            raise ConfigError(
                f"sink {name!r} is given a frame that is not streaming: begin with flow.source()"
            )
        if format.lower() == FORMAT and mode != "append" and each_batch is None:
            raise ConfigError(f"sink {name!r}: {UPDATE_MODE}")
        given = {"url": self.url, **options} if format.lower() == FORMAT else options
        self.sinks[name] = Sink(frame=frame, format=format, mode=mode, options=given, each_batch=each_batch)

    def setting(self, name: str, default: str | None = None) -> str:
        """A setting of the pipeline; without a default it must be given."""
        value = self.settings.get(name, default)
        if value is None:
            raise ConfigError(f"this pipeline needs --set {name}=VALUE")
        return value

    def start(self) -> "dict[str, StreamingQuery]":
        """Start every sink; called once `build` has returned."""
        if not self.sinks:
            raise ConfigError("the pipeline has no sink: build must call flow.sink(), SQL must INSERT")
        queries = {}
        for name in self.sinks:
            queries[name] = self.start_sink(name)
            _await_sources(queries[name])
        return queries

    def start_sink(self, name: str) -> "StreamingQuery":
        """Start one, or start it again: it goes on from its checkpoint."""
        sink = self.sinks[name]
        writer: Any = sink.frame.writeStream.queryName(name).outputMode(sink.mode)
        writer = writer.option("checkpointLocation", f"{self.checkpoints}/{name}")
        interval = f"{self.trigger_ms} milliseconds"
        writer = (
            writer.trigger(availableNow=True) if self.is_once else writer.trigger(processingTime=interval)
        )
        if sink.each_batch is not None:
            return writer.foreachBatch(sink.each_batch).start()  # type: ignore[no-any-return]
        return writer.format(sink.format).options(**sink.options).start()  # type: ignore[no-any-return]
