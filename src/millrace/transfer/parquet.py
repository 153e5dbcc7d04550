"""Messages as Parquet, with the columns of the Spark source, block by block and not message by message."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import LocalError
from millrace.spark.arrow import Choice, batches
from millrace.spark.offsets import Span
from millrace.spark.packets import Packer
from millrace.spark.routes import Routes
from millrace.spark.staging import Section
from millrace.transfer.formats import CHUNK_ROWS
from millrace.transfer.lines import publish_form
from millrace.types import Message, Properties

_GIVEN_BY_THE_NODE = ("shard", "offset", "timestamp", "publisher")
_USER = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("shard", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("payload", pa.binary()),
        ("qos", pa.int32()),
        ("retain", pa.bool_()),
        ("publisher", pa.string()),
        ("content_type", pa.string()),
        (
            "properties",
            pa.struct(
                [
                    ("payload_format", pa.int32()),
                    ("message_expiry_s", pa.int64()),
                    ("response_topic", pa.string()),
                    ("correlation_data", pa.binary()),
                    ("user", _USER),
                ]
            ),
        ),
    ]
)


class ParquetPart:
    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA)

    def add(self, data: bytes, shard: int, start: int, end: int) -> int:
        rows = 0
        for batch in batches(data, Choice(span=Span(shard=shard, start=start, end=end)), SCHEMA):
            self._writer.write_batch(batch)
            rows += batch.num_rows
        return rows

    def close(self) -> None:
        self._writer.close()


@dataclass(frozen=True, slots=True)
class ParquetChunk:
    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    def sections(self, routes: Routes) -> Iterator[Section]:
        packer = Packer(topic=None, qos=1, retain=False, find_route=routes.find)
        given = [name for name in self.batch.schema.names if name in _GIVEN_BY_THE_NODE]
        yield from packer.add(self.batch.drop_columns(given) if given else self.batch)
        yield from packer.finish()

    def forms(self) -> list[dict[str, Any]]:
        return [publish_form(_message(row)) for row in self.batch.to_pylist()]


def _message(row: dict[str, Any]) -> Message:
    fields = row.get("properties") or {}
    return Message(
        topic=row["topic"],
        payload=row["payload"],
        qos=row.get("qos") or 0,
        retain=bool(row.get("retain")),
        properties=Properties(
            message_expiry_s=fields.get("message_expiry_s"),
            response_topic=fields.get("response_topic"),
            content_type=row.get("content_type"),
            user=tuple((pair["name"], pair["value"]) for pair in fields.get("user") or ()),
        ),
    )


class Parquet:
    suffix = ".parquet"

    def begin(self, path: Path) -> ParquetPart:
        return ParquetPart(path)

    def count(self, path: Path) -> int:
        return int(_opened(path).metadata.num_rows)

    def join(self, parts: Sequence[Path], target: Path) -> None:
        with pq.ParquetWriter(target, SCHEMA) as writer:
            for part in parts:
                for batch in _opened(part).iter_batches():
                    writer.write_batch(batch)

    def chunks(self, path: Path) -> Iterator[ParquetChunk]:
        file = _opened(path)
        missing = [name for name in ("topic", "payload") if name not in file.schema_arrow.names]
        if missing:
            raise LocalError(f"{path} has no column {missing[0]!r}: a message has a topic and a payload")
        for batch in file.iter_batches(batch_size=CHUNK_ROWS):
            yield ParquetChunk(batch)


def _opened(path: Path) -> Any:
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise LocalError(f"{path} cannot be read as Parquet: {error}") from None
