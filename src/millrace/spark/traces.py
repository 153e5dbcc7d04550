"""What a task of Spark tells of the traced messages that it reads: the last part of their traces.

A span `read STREAM` reaches from the moment when the task had the message to the moment when Spark had taken
all rows of the task from it. It is a child of the span of the node that took the message in, whose id follows
from the block (`tracing/sampling.py`). A task that runs again tells it again.
"""

import time
from functools import lru_cache

from millrace.client.http_node import AnswerBody
from millrace.spark.arrow import Choice
from millrace.storage.block import HEAD_BYTES, Block, Kind, parse_header
from millrace.tracing.export import Span, SpanExporter
from millrace.tracing.sampling import TracedMessage, traced_messages

_SERVICE = "millrace-spark"
_MESSAGES_MAX = 100
_FLUSH_S = 1.0


@lru_cache(1)
def _exporter(endpoint: str) -> SpanExporter:
    """One for the process of a worker, which serves many tasks."""
    return SpanExporter(endpoint, _SERVICE, "")


class ReadTraces:
    """Of one task: `look` at each answer before its rows go to Spark, `send` at the end."""

    def __init__(self, endpoint: str, one_in: int, group: str | None) -> None:
        self._endpoint = endpoint
        self._one_in = one_in
        self._group = group
        self._found: list[tuple[TracedMessage, int, str, int]] = []

    def look(self, data: AnswerBody, choice: Choice) -> None:
        """Remember the traced messages among the rows that are chosen."""
        now_us, span, position = time.time_ns() // 1000, choice.span, 0
        view = memoryview(data)
        while position < len(view) and len(self._found) < _MESSAGES_MAX:
            header = parse_header(bytes(view[position : position + HEAD_BYTES]))
            after = position + header.block_bytes
            if header.kind is Kind.DATA and header.base_offset < span.end and header.next_offset > span.start:
                # Proved by its checksum where its rows are made.
                block = Block(header=header, body=bytes(view[position + HEAD_BYTES : after]))
                room = _MESSAGES_MAX - len(self._found)
                for message in traced_messages(block, span.shard, self._one_in, room):
                    is_chosen = choice.takes is None or choice.takes(message.topic.encode())
                    if span.start <= message.offset < span.end and is_chosen:
                        self._found.append((message, span.shard, span.stream, now_us))
            position = after

    def send(self) -> None:
        """Spark has taken all rows. Waits a moment for the collector: the process may end with the task."""
        if not self._found:
            return
        now_us = time.time_ns() // 1000
        task = _task()
        exporter = _exporter(self._endpoint)
        exporter.put(
            Span(
                f"read {stream}",
                "CONSUMER",
                message.trace_id,
                message.receive_id,
                since_us,
                now_us,
                {
                    "messaging.system": "millrace",
                    "messaging.destination.name": message.topic,
                    "messaging.destination.partition.id": str(shard),
                    **({"messaging.consumer.group.name": self._group} if self._group else {}),
                    "millrace.stream": stream,
                    "millrace.offset": message.offset,
                    **task,
                },
            )
            for message, shard, stream, since_us in self._found
        )
        exporter.flush(_FLUSH_S)


def _task() -> dict[str, str | int]:
    """Where in Spark this runs."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return {}
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    return {
        "spark.stage": context.stageId(),
        "spark.partition": context.partitionId(),
        "spark.attempt": context.attemptNumber(),
        **({"spark.batch": batch} if batch else {}),
        **({"spark.query": query} if query else {}),
    }
