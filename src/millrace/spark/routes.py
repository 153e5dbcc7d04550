"""Which stream and shard a topic belongs to, found out by who writes instead of asked for each topic."""

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.broker.streams.stream import Stream, StreamSpec, StreamTable
from millrace.errors import ConfigError, LocalError

Route = tuple[str, int]
"""Stream and shard of a topic."""


class Routes:
    """Which stream and shard a topic belongs to, by the rule of the nodes."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], only: str | None) -> None:
        streams = {}
        for row in rows:
            settings = {key: row[key] for key in ("name", "filters", "shards", "capture")}
            spec = StreamSpec.read(settings)
            shards = tuple(one["shard"] for one in row["shard_list"] if not one["sealed"])
            streams[spec.name] = Stream(spec=spec, generation=row["generation"], shards=shards)
        self._table = StreamTable(streams)
        self._only = only
        if only is not None and only not in streams:
            raise ConfigError(f"there is no stream {only!r}")

    def find(self, topic: str) -> Route:
        stream = self._table.find(topic)
        if stream is None:
            raise LocalError(f"topic {topic!r} belongs to no stream: it begins with $")
        name = stream.spec.name
        if self._only is not None and name != self._only:
            raise LocalError(f"topic {topic!r} belongs to stream {name!r}, not to {self._only!r}")
        if not stream.shards:
            raise LocalError(f"topic {topic!r} belongs to stream {name!r}, which keeps no log")
        return name, self._table.shard(stream, topic.encode())
