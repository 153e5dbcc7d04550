"""Messages as lines of JSON, which need nothing installed and cost a Python step each.

A line has the fields of a message as the HTTP interface shows it, and `payload_format`.
"""

import base64
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from millrace.errors import LocalError
from millrace.limits import BLOCK_MESSAGES_MAX
from millrace.node.doors.http.forms import from_stored
from millrace.node.logs.reading import Stored, stored_rows
from millrace.spark.routes import Route, Routes
from millrace.spark.staging import Section
from millrace.storage.block import BLOCK_BYTES_AIM, Kind, parse_block
from millrace.transfer.formats import CHUNK_ROWS
from millrace.types import NO_PROPERTIES, Message, Properties, Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Publish

# Head, columns, dictionaries and key of a block take their part of its bounds.
_SECTION_BYTES = BLOCK_BYTES_AIM - 64 * 1024
_ROW_BYTES = 32
# Anything but zero; a log keeps it and nobody looks at it.
_PACKET_ID = 1
_OF_THE_BROKER = "millrace-"


class LinesPart:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")

    def add(self, data: bytes, shard: int, start: int, end: int) -> int:
        position = rows = 0
        while position < len(data):
            block = parse_block(data, position)
            header = block.header
            position += header.block_bytes
            if header.kind is not Kind.DATA:
                continue
            first, after = max(0, start - header.base_offset), min(header.count, end - header.base_offset)
            for message in stored_rows(shard, block, range(first, after)):
                self._file.write(json.dumps(_line(message), ensure_ascii=False) + "\n")
                rows += 1
        return rows

    def close(self) -> None:
        self._file.close()


def _line(message: Stored) -> dict[str, Any]:
    shown = from_stored(message)
    if message.properties.payload_format is not None:
        shown["payload_format"] = message.properties.payload_format
    return shown


@dataclass(slots=True)
class _Gathering:
    """What a shard gets next."""

    packets: list[memoryview]
    size_bytes: int = 0

    def is_full_with(self, packet: memoryview) -> bool:
        """A message that is larger than a block has one of its own."""
        is_long = self.size_bytes + len(packet) + _ROW_BYTES > _SECTION_BYTES
        return bool(self.packets) and (is_long or len(self.packets) >= BLOCK_MESSAGES_MAX)

    def add(self, packet: memoryview) -> None:
        self.packets.append(packet)
        self.size_bytes += len(packet) + _ROW_BYTES

    def section(self, route: Route) -> Section:
        return Section(route, int(Version.MQTT_5), tuple(self.packets), len(self.packets))


@dataclass(frozen=True, slots=True)
class LinesChunk:
    messages: list[Message]

    @property
    def rows(self) -> int:
        return len(self.messages)

    def sections(self, routes: Routes) -> Iterator[Section]:
        gathered: dict[Route, _Gathering] = {}
        for message in self.messages:
            route = routes.find(message.topic)
            publish = Publish(message=message, packet_id=_PACKET_ID if message.qos else None)
            packet = memoryview(encode(publish, Version.MQTT_5))
            gathering = gathered.setdefault(route, _Gathering([]))
            if gathering.is_full_with(packet):
                yield gathering.section(route)
                gathering = gathered[route] = _Gathering([])
            gathering.add(packet)
        for route, gathering in gathered.items():
            yield gathering.section(route)

    def forms(self) -> list[dict[str, Any]]:
        return [publish_form(message) for message in self.messages]


def publish_form(message: Message) -> dict[str, Any]:
    """As the HTTP interface takes it, which has no QoS 0, correlation data and payload format, and no
    properties of the broker's."""
    properties = message.properties
    form = {
        "topic": message.topic,
        "payload": base64.b64encode(message.payload).decode(),
        "encoding": "base64",
        "qos": max(1, message.qos),
        "retain": message.retain,
        "content_type": properties.content_type,
        "response_topic": properties.response_topic,
        "expiry_s": properties.message_expiry_s,
        "user_properties": [pair for pair in properties.user if not pair[0].startswith(_OF_THE_BROKER)],
    }
    return {name: value for name, value in form.items() if value is not None}


def _message(path: Path, number: int, line: str) -> Message:
    """What a line says; LocalError names the line."""
    try:
        row = json.loads(line)
        text = row["payload"]
        is_base64 = row.get("encoding") == "base64"
        correlation = row.get("correlation_data")
        properties = Properties(
            payload_format=row.get("payload_format"),
            message_expiry_s=row.get("expiry_s"),
            response_topic=row.get("response_topic"),
            correlation_data=None if correlation is None else base64.b64decode(correlation),
            content_type=row.get("content_type"),
            user=tuple((str(name), str(value)) for name, value in row.get("user_properties") or ()),
        )
        return Message(
            topic=str(row["topic"]),
            payload=base64.b64decode(text) if is_base64 else str(text).encode(),
            qos=int(row.get("qos", 1)),
            retain=bool(row.get("retain", False)),
            properties=NO_PROPERTIES if properties == Properties() else properties,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalError(
            f"{path}, line {number}: not a message with topic and payload ({type(error).__name__}: {error})"
        ) from None


class Lines:
    suffix = ".ndjson"

    def begin(self, path: Path) -> LinesPart:
        return LinesPart(path)

    def count(self, path: Path) -> int:
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip())

    def join(self, parts: Sequence[Path], target: Path) -> None:
        with target.open("wb") as out:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, out)

    def chunks(self, path: Path) -> Iterator[LinesChunk]:
        with closing(path.open(encoding="utf-8")) as file:
            lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
            while taken := list(islice(lines, CHUNK_ROWS)):
                yield LinesChunk([_message(path, number, line) for number, line in taken])
