"""What a node tells of the publishes that it takes in, commits and delivers.

Everything here happens once for a block or for a turn of the loop, never for a message, and only where
tracing is on: without it a shard has no `PublishTraces`, and asks once for each block whether it has one.

    receive   from the turn of the loop that brought the message until its acknowledgement was written
      commit  from the same moment until the message was committed, and known to be here
      deliver from then until it was written to the subscribers of a node, at each node that has some
"""

from collections.abc import Callable
from typing import NamedTuple

from millrace.broker.streams.stream import StreamSpec
from millrace.broker.topics.routing import Route, Router
from millrace.storage.block import Block
from millrace.tracing.export import Span, SpanExporter
from millrace.tracing.sampling import TracedMessage, traced_messages

_SECOND_US = 1_000_000


class _Traced(NamedTuple):
    """A traced message whose bytes are still to be written."""

    message: TracedMessage
    stream: str
    attributes: dict[str, str | int]
    since_us: int
    committed_us: int
    receivers: int


class PublishTraces:
    def __init__(
        self,
        exporter: SpanExporter,
        router: Router,
        *,
        node: str,
        one_in: int,
        per_second_max: int,
        wall_us: Callable[[], int],
    ) -> None:
        self.exporter = exporter
        self._router = router
        self._node = node
        self._one_in = one_in
        self._per_second_max = per_second_max
        self._wall_us = wall_us
        self._second = 0
        self._traced_in_second = 0
        self._under_way: list[_Traced] = []

    def on_block(self, spec: StreamSpec, number: int, block: Block, since_us: int) -> None:
        """A data block is committed and was handed to the subscribers here. `since_us` says when it was cut
        from what clients of this node sent; 0: it came in at another node."""
        now_us = self._wall_us()
        if now_us // _SECOND_US != self._second:
            self._second, self._traced_in_second = now_us // _SECOND_US, 0
        room = self._per_second_max - self._traced_in_second
        if room <= 0:
            return
        for message in traced_messages(block, number, self._one_in, room):
            receivers = _count(self._router.delivery_route(message.topic.encode()))
            if not since_us and not receivers:
                continue
            self._traced_in_second += 1
            attributes = self._attributes(spec, number, block, message)
            self._under_way.append(_Traced(message, spec.name, attributes, since_us, now_us, receivers))

    def flushed(self) -> None:
        """What was delivered and acknowledged until now is written. Called at the end of a turn."""
        if not self._under_way:
            return
        under_way, self._under_way = self._under_way, []
        now_us = self._wall_us()
        for one in under_way:
            self.exporter.put(_spans(one, now_us))

    def close(self) -> None:
        """Waits for the collector, so it is not for the loop."""
        self.exporter.close()

    def _attributes(
        self, spec: StreamSpec, number: int, block: Block, message: TracedMessage
    ) -> dict[str, str | int]:
        named = {"messaging.client.id": message.publisher} if message.publisher else {}
        return {
            "messaging.system": "millrace",
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": str(number),
            "messaging.message.body.size": message.payload_bytes,
            **named,
            "millrace.node": self._node,
            "millrace.stream": spec.name,
            "millrace.replication": str(spec.replication),
            "millrace.offset": message.offset,
            "millrace.qos": message.qos,
            "millrace.term": block.header.term,
        }


def _count(route: Route) -> int:
    """The sessions of this node that get it, of a shared group one."""
    return sum(len(receivers.sessions) for receivers in route.receivers) + len(route.groups)


def _spans(one: _Traced, now_us: int) -> list[Span]:
    message, receive_id = one.message, one.message.receive_id
    spans = []
    if one.since_us:
        spans += [
            Span(
                f"receive {one.stream}",
                "SERVER",
                message.trace_id,
                message.parent_id,
                one.since_us,
                now_us,
                one.attributes,
                receive_id,
            ),
            Span(
                f"commit {one.stream}",
                "INTERNAL",
                message.trace_id,
                receive_id,
                one.since_us,
                one.committed_us,
                one.attributes,
            ),
        ]
    if one.receivers:
        attributes = {**one.attributes, "millrace.receivers": one.receivers}
        name = f"deliver {one.stream}"
        spans.append(
            Span(name, "PRODUCER", message.trace_id, receive_id, one.committed_us, now_us, attributes)
        )
    return spans
