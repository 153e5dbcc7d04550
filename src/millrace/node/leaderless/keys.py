"""What the messages of a leaderless stream leave behind at a node: retained values and producers' sequences.

Both are learned from what is stored here, whatever its origin. A retained message wins by its time, then by
the name of the node that took it; one that deletes is remembered as well, so that an older one that arrives
later does not come back. A repeat of a client's (producer, sequence) is known at a node that stores the
message; two nodes that cannot reach each other may both take it.
"""

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from millrace.broker.machine import Broker
from millrace.broker.messages.intake import Arrival
from millrace.broker.messages.message import payload_is_empty
from millrace.broker.shards.block_facts import RetainedValue, facts_of
from millrace.broker.shards.producers import Producers, SavedProducers, Verdict
from millrace.reasons import Reason
from millrace.replication.contract import PeerBody
from millrace.replication.leaderless.messages import Origin
from millrace.storage.block import Block

_VERSION = 1
# Deletions that are remembered; one more forgets the oldest.
_DELETED_MAX = 100_000
# Of retained messages in one message to another node, and one more message.
_TOLD_BYTES_MAX = 1 << 20


class Value(NamedTuple):
    """What is retained on a topic, and since when by whose clock."""

    topic: str
    time_us: int
    node: str
    packet: bytes | None
    """None: it was deleted."""
    qos: int = 0
    v5: bool = False


class Retained(PeerBody, frozen=True, kw_only=True):
    """To a node that does not get the entries which told of them: they are removed here."""

    values: tuple[Value, ...]


class StreamKeys:
    def __init__(self, broker: Broker, now_ms: Callable[[], int], wall_us: Callable[[], int]) -> None:
        self._broker = broker
        self._now_ms = now_ms
        self._wall_us = wall_us
        self._producers = Producers()
        self._in_flight: set[tuple[bytes, int]] = set()
        self._stamps: dict[str, tuple[int, str]] = {}
        self.newest_us = 0
        """Of all that is or was retained."""

    # ------------------------------------------------------------------------------------- arrivals

    def admitted(self, arrivals: list[Arrival]) -> Iterator[Arrival]:
        """Those that go on; of one that is stored already only the answer does."""
        inbound = self._broker.inbound
        for arrival in arrivals:
            if arrival.arrival_number <= inbound.refused_until and inbound.is_overtaking(arrival):
                self.refuse([arrival], Reason.SERVER_BUSY)
                continue
            if not arrival.is_doubtful or arrival.producer is None:
                yield arrival
                continue
            key = (arrival.producer, arrival.sequence)
            verdict = self._producers.judge(*key)
            if verdict is Verdict.TOO_OLD and not arrival.producer.startswith(b"qos2/"):
                self.refuse([arrival], Reason.IMPLEMENTATION_SPECIFIC)
                continue
            if verdict is not Verdict.NEW or key in self._in_flight:
                inbound.forget(arrival)
            else:
                self._in_flight.add(key)
            yield arrival

    def let_go(self, arrivals: list[Arrival]) -> None:
        """These were admitted and did not get into a log. One that did is on its way to the disk, whatever
        its publisher was told; and of a repeat that is refused the message itself may be."""
        for arrival in arrivals:
            if arrival.producer is not None and arrival.run is not None:
                self._in_flight.discard((arrival.producer, arrival.sequence))

    def refuse(self, arrivals: list[Arrival], reason: Reason) -> None:
        for session in self._broker.inbound.refused(arrivals, reason):
            if session.connection is not None:
                session.connection.fail(reason, "the message could not be stored as asked for")

    # --------------------------------------------------------------------------------------- stored

    def learn(self, origin: Origin, block: Block) -> None:
        facts = facts_of(block.columns(), block.topics(), block.header.base_time_us)
        for topic, value in facts.retained:
            self._retain(topic, value, origin.node)
        for key in facts.keys:
            self._producers.store(*key)
            self._in_flight.discard(key)

    def _retain(self, topic: str, value: RetainedValue, node: str) -> None:
        if not self._is_newest(topic, (value.time_us, node)):
            return
        run = value.run(self._now_ms(), self._wall_us())
        self._broker.retained.keep(topic, run, is_empty=payload_is_empty(run))

    def _is_newest(self, topic: str, stamp: tuple[int, str]) -> bool:
        """It is what counts from now on."""
        known = self._stamps.get(topic)
        if known is not None and known >= stamp:
            return False
        self._stamps.pop(topic, None)
        self._stamps[topic] = stamp
        self.newest_us = max(self.newest_us, stamp[0])
        if len(self._stamps) > self._broker.limits.retained_messages_max + _DELETED_MAX:
            self._forget_a_deletion()
        return True

    def _forget_a_deletion(self) -> None:
        """The oldest. The stamp of a message that is there stays; its turn comes again, so that few are
        looked at."""
        for _ in range(len(self._stamps) - 1):
            topic = next(iter(self._stamps))
            stamp = self._stamps.pop(topic)
            if self._broker.retained.logged(topic) is None:
                return
            self._stamps[topic] = stamp

    def inherit(self, topic: str) -> None:
        """A value that is there already: whatever is published from now on is newer."""
        self._stamps.setdefault(topic, (0, ""))

    # ------------------------------------------------------------------------------- to other nodes

    def _value(self, topic: str) -> Value:
        run, stamp = self._broker.retained.logged(topic), self._stamps[topic]
        return Value(topic, *stamp, None) if run is None else Value(topic, *stamp, run.data, run.qos, run.v5)

    def told_by(self, node: str) -> Iterator[Retained]:
        """All that this node's entries said, and what was there before every log. Sequences of producers are
        left out: a repeat is answered by what is held here, and these would be known before they are."""
        values: list[Value] = []
        size = 0
        for topic, (_, teller) in self._stamps.items():
            if teller not in (node, ""):
                continue
            value = self._value(topic)
            size += len(topic) + len(value.packet or b"")
            values.append(value)
            if size > _TOLD_BYTES_MAX:
                yield Retained(values=tuple(values))
                values, size = [], 0
        if values:
            yield Retained(values=tuple(values))

    def take_in(self, told: Retained) -> None:
        for topic, time_us, node, packet, qos, v5 in told.values:
            stamp = (time_us, node)
            if packet is not None:
                self._retain(topic, RetainedValue(packet, qos, v5, time_us), node)
            elif self._is_newest(topic, stamp):
                self._broker.retained.drop(topic)

    # ------------------------------------------------------------------------------------- snapshots

    def to_bytes(self, machine: bytes, applied: dict[Origin, int]) -> bytes:
        """Everything a start needs but the logs."""
        retained: list[Any] = []
        for value in map(self._value, self._stamps):
            packet = None if value.packet is None else base64.b64encode(value.packet).decode()
            retained.append([*value[:3], packet, *value[4:]])
        fields = {
            "version": _VERSION,
            "machine": machine.decode(),
            "applied": sorted([*origin, index] for origin, index in applied.items()),
            "retained": retained,
            "producers": msgspec.to_builtins(self._producers.save()),
        }
        return zlib.compress(json.dumps(fields).encode(), 1)

    def load(self, saved: bytes | None) -> dict[Origin, int]:
        """What the saved state covers of each log."""
        if saved is None:
            return {}
        fields = json.loads(zlib.decompress(saved))
        self._producers = Producers.restored(msgspec.convert(fields["producers"], SavedProducers))
        for topic, time_us, node, packet, qos, v5 in fields["retained"]:
            stamp = (time_us, node)
            if packet is None:
                self._is_newest(topic, stamp)
            else:
                value = RetainedValue(base64.b64decode(packet), qos, v5, time_us)
                self._retain(topic, value, node)
        return {Origin(node, incarnation): index for node, incarnation, index in fields["applied"]}

    @staticmethod
    def machine_state(saved: bytes | None) -> bytes | None:
        if saved is None:
            return None
        machine: str = json.loads(zlib.decompress(saved))["machine"]
        return machine.encode()
