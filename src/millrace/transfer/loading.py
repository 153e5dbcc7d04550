"""Files into a stream, each message once, however often it is tried.

A file is taken in steps of so many messages. Into a log with quorum replication a step is a batch of a writer
(staged publishing, `broker.meta.writers`): staged, then decided under its number, and the cluster knows the
last number that was decided, so a repeated step changes nothing. Other streams take messages one by one
under the key of a producer, which is stored once. The names of writer and producer come from the content of
the file and the stream.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millrace.client.http import HttpError
from millrace.errors import ConfigError, LocalError
from millrace.spark.routes import Routes
from millrace.spark.staging import Stager
from millrace.spark.writing import ClusterWriter
from millrace.transfer.copying import Told
from millrace.transfer.formats import CHUNK_ROWS, Chunk
from millrace.transfer.kinds import format_of

_NO_WRITER = 404
_QUORUM = "quorum"
# Of messages that are published one by one, about.
_REQUEST_BYTES = 1 << 20
_FORM_BYTES = 200


@dataclass(slots=True)
class Loaded:
    rows: int = 0
    repeated: int = 0
    """Of these, how many were in the stream before."""
    shards: Counter[int] = field(default_factory=Counter)
    """Messages that went to each shard now."""


class Loading:
    """Into one stream, in the name of one writer."""

    def __init__(self, cluster: ClusterWriter, stream: str, writer: str, told: Told) -> None:
        self._cluster, self._stream, self._told = cluster, stream, told
        self._writer = f"{writer}-{CHUNK_ROWS}"
        rows = cluster.streams()
        self._routes = Routes(rows, stream)
        (self._row,) = (row for row in rows if row["name"] == stream)
        if self._row["capture"] == "none" or self._row["replication"] == "routed":
            raise ConfigError(f"stream {stream!r} keeps no log: there is nothing to import into")
        self._is_staged = self._row["replication"] == _QUORUM

    def run(self, files: Sequence[Path]) -> Loaded:
        loaded, number = Loaded(), 0
        last = self._last_batch() if self._is_staged else -1
        with ThreadPoolExecutor(1, "millrace-import") as pool:
            for path in files:
                for chunk in format_of(path).chunks(path):
                    if number <= last:
                        loaded.repeated += chunk.rows
                    elif self._is_staged:
                        self._stage(chunk, number, loaded, pool)
                    else:
                        self._publish(chunk, loaded)
                    loaded.rows += chunk.rows
                    number += 1
                    self._told(f"{self._stream}: {loaded.rows} messages")
        return loaded

    def _last_batch(self) -> int:
        """The last step that was decided, -1 for none."""
        try:
            found = self._cluster.http.get(f"/v1/writers/{quote(self._writer, safe='')}")["last_batch"]
        except HttpError as error:
            if error.status != _NO_WRITER:
                raise
            return -1
        return -1 if found is None else int(found)

    def _stage(self, chunk: Chunk, number: int, loaded: Loaded, pool: ThreadPoolExecutor) -> None:
        stager = Stager(self._cluster, self._writer, number, pool)
        shards: Counter[int] = Counter()
        for section in chunk.sections(self._routes):
            shards[section.route[1]] += section.rows
            stager.add(section)
        stager.send()
        stager.wait()
        if stager.rows != chunk.rows:
            raise LocalError(f"{stager.rows} of {chunk.rows} messages of step {number} were staged")
        # The cluster takes the decision only where as many blocks are staged as it names.
        answer = self._cluster.commit(self._writer, number, {stager.attempt: stager.blocks})
        if answer["repeated"]:
            # Another import of the same file runs beside this one.
            loaded.repeated += chunk.rows
        else:
            loaded.shards.update(shards)

    def _publish(self, chunk: Chunk, loaded: Loaded) -> None:
        sequence = loaded.rows
        for forms in _requests(chunk.forms()):
            headers = {"Millrace-Producer": self._writer, "Millrace-Sequence": str(sequence)}
            answer: dict[str, Any] = self._cluster.http.call(
                "POST", "/v1/publish/batch", {"messages": forms}, headers=headers, is_repeatable=True
            )
            sequence += len(forms)
            for row in answer["published"]:
                if row["duplicate"]:
                    loaded.repeated += 1
                else:
                    loaded.shards[row["shard"]] += 1


def _requests(forms: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """So many at a time that a request stays small."""
    first = size = 0
    for position, form in enumerate(forms):
        size += len(form["payload"]) + len(form["topic"]) + _FORM_BYTES
        if size > _REQUEST_BYTES and position > first:
            yield forms[first:position]
            first, size = position, len(form["payload"])
    if first < len(forms):
        yield forms[first:]
