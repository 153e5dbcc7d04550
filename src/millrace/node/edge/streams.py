"""Streams with an edge function: what is delivered is what the function makes of what was published.

The log keeps the input; nobody is sent it. The node that leads a shard is one more reader of its log, with a
cursor like a durable group's: it takes messages in order, runs the function (messages of one topic one after
another, topics side by side) and publishes the results as ordinary messages, keyed by the input's offset. So
results are stored and delivered with every guarantee of the stream they belong to, and a function that runs
twice because a node died publishes once. A leader that is new gives back what the old one had taken.

A message that the function fails on goes to `dead/STREAM` with the error, and the ones after it go on. A
function that this node cannot run leaves everything waiting, and says so; nothing is taken meanwhile. Once
the stream has another function, that one gets what still waits in the sealed shards of the first.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from millrace.broker.entries.consume import Ack, Create, Nack, Take
from millrace.broker.groups.cursor import Cursor, Settings, State
from millrace.broker.groups.definitions import DurableGroup, DurableGroupSpec
from millrace.broker.shards.block_facts import EDGE_PRODUCER
from millrace.broker.shards.producers import PRODUCER
from millrace.errors import LocalError, MillraceError
from millrace.limits import EDGE_RESULTS_MAX, PRODUCER_RANGES_MAX
from millrace.node.edge.functions import EdgeFailed, EdgeFunctions, EdgeUnavailable
from millrace.node.groups.consumer_groups import ConsumerGroups, Taken
from millrace.node.groups.shard_consumers import Unavailable
from millrace.node.logs.reading import Reading
from millrace.node.logs.space import DiskSpace
from millrace.node.shards.publishing import NotStored
from millrace.node.shards.shard import Shard
from millrace.reasons import Reason
from millrace.types import Message, Properties

log = logging.getLogger("millrace.edge")

EDGE_CURSOR = 0
"""In place of a group's number, which begins at 1."""

_GROUP = DurableGroup(number=EDGE_CURSOR, spec=DurableGroupSpec(name="edge", filters=("#",)))
_BATCH = 32
# The leader alone takes, so a lease ends only with it; it must outlast a batch of slow calls.
_LEASE_US = 3600 * 1_000_000
_WAIT_S = 1.0
_PAUSE_S = 0.5
_UNAVAILABLE_PAUSE_S = 2.0
_COMPLAIN_EVERY_S = 60.0
assert _BATCH < PRODUCER_RANGES_MAX
# Results of one message are numbered below this, which is the dead letter's.
_DEAD_LETTER = 127
assert EDGE_RESULTS_MAX <= _DEAD_LETTER
_MARK = "millrace-edge"
# Of an error in a dead letter: a property of MQTT has a bound, and a person reads the beginning.
_ERROR_CHARACTERS_MAX = 1_000


class EdgeStreams:
    def __init__(
        self,
        shards: Mapping[int, Shard],
        reading: Reading,
        space: DiskSpace,
        groups: ConsumerGroups,
        functions: EdgeFunctions,
    ) -> None:
        self._shards = shards
        self._reading = reading
        self._space = space
        self._groups = groups
        self.functions = functions
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.unavailable: dict[int, None] = {}
        """Shards that wait because their function cannot be run here."""
        self._complaint_due_s = 0.0

    def tick(self) -> None:
        """Work for every shard that this node leads, unless the disk is full: each take is an entry of a log.
        Called about once a second."""
        for number, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[number]
        if self._space.is_refusing:
            return
        for number in [n for n in self.unavailable if n not in self._shards or not self._leads(n)]:
            del self.unavailable[number]
        for number, shard in self._shards.items():
            if shard.edge and shard.group.is_leader and shard.group.is_serving and number not in self._tasks:
                self._tasks[number] = asyncio.get_running_loop().create_task(self._run(shard))

    def _leads(self, number: int) -> bool:
        return self._shards[number].group.is_leader

    async def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self.functions.stop()

    async def _run(self, shard: Shard) -> None:
        try:
            cursor, function = await self._cursor(shard), ""
            left = [(o, i.deliveries) for o, i in cursor.items.items() if i.state is State.LEASED]
            while shard.edge and shard.group.is_leader and not self._space.is_refusing:
                if not left and not await self._has_some(shard):
                    continue
                function = function or await self._runnable(shard)
                self.unavailable.pop(shard.number, None)
                if left:
                    await shard.consumers.do(Nack(EDGE_CURSOR, cursor.epoch, left, 0))
                    left = []
                taken = await self._take(shard, cursor)
                if taken:
                    await self._process(shard, function, taken)
        except EdgeUnavailable as error:
            self.unavailable[shard.number] = None
            self._complain(shard, str(error))
            # Each try is a process that is started.
            await asyncio.sleep(_UNAVAILABLE_PAUSE_S)
        except (Unavailable, NotStored) as error:
            log.info("the edge function of shard %d waits: %s", shard.number, error)
            await asyncio.sleep(_PAUSE_S)
        except MillraceError as error:
            self._complain(shard, str(error))
            await asyncio.sleep(_PAUSE_S)

    async def _runnable(self, shard: Shard) -> str:
        """The function of this shard; where it cannot be run, the one that its stream has now."""
        try:
            await self.functions.ready(shard.edge)
            return shard.edge
        except EdgeUnavailable as error:
            function = shard.stream.spec.edge
            if function in ("", shard.edge):
                raise
            await self.functions.ready(function)
            log.warning("shard %d: %s gets what is left there: %s", shard.number, function, error)
            return function

    async def _cursor(self, shard: Shard) -> Cursor:
        """Where the reader of this shard is."""
        consumers = shard.consumers
        if EDGE_CURSOR not in consumers.state.cursors:
            await consumers.do(Create(EDGE_CURSOR, shard.first_offset, Settings(in_flight_max=10 * _BATCH)))
        return consumers.state.cursors[EDGE_CURSOR]

    async def _has_some(self, shard: Shard) -> bool:
        """Whether there is something to take; otherwise after a while."""
        with self._groups.watching(_GROUP, [shard]) as watcher:
            if await shard.consumers.has_some(_GROUP, _BATCH, True, self._reading.blocks):
                return True
            # Not `wait_for`: it takes a cancellation for an answer where both come at once.
            with suppress(TimeoutError):
                async with asyncio.timeout(_WAIT_S):
                    await watcher.wait()
        return False

    async def _take(self, shard: Shard, cursor: Cursor) -> list[Taken]:
        found = await shard.consumers.do(Take(EDGE_CURSOR, "", _BATCH, _LEASE_US))
        taken = await self._groups.fetch(shard, cursor, found)
        if len(taken) < len(found):
            # What cannot be read any more was reported; it must not hold up the rest for ever.
            there = {one.message.offset for one in taken}
            gone = [(offset, delivery) for offset, delivery in found if offset not in there]
            await shard.consumers.do(Ack(EDGE_CURSOR, cursor.epoch, gone))
        return taken

    async def _process(self, shard: Shard, function: str, taken: list[Taken]) -> None:
        chains: dict[str, list[Taken]] = {}
        for one in taken:
            chains.setdefault(one.message.topic, []).append(one)
        results = await asyncio.gather(
            *(self._chain(shard, function, chain) for chain in chains.values()), return_exceptions=True
        )
        failed = next((result for result in results if isinstance(result, BaseException)), None)
        if failed is not None:
            raise failed

    async def _chain(self, shard: Shard, function: str, chain: list[Taken]) -> None:
        """Messages of one topic, in order."""
        cursor = shard.consumers.state.cursors[EDGE_CURSOR]
        for one in chain:
            if not _is_result(one):
                await self._transform(shard, function, one)
            pairs = [(one.message.offset, one.delivery)]
            await shard.consumers.do(Ack(EDGE_CURSOR, cursor.epoch, pairs))

    async def _transform(self, shard: Shard, function: str, one: Taken) -> None:
        stored = one.message
        try:
            rows = await self.functions.run(function, stored.topic, stored.payload)
        except EdgeFailed as error:
            # U+0000 stands in no string of MQTT [MQTT-1.5.4-2].
            told = str(error)[:_ERROR_CHARACTERS_MAX].replace("\0", " ")
            log.warning("shard %d, offset %d: %s", shard.number, stored.offset, told)
            letter = Message(
                topic=f"dead/{shard.stream.spec.name}",
                payload=stored.payload,
                qos=1,
                properties=Properties(
                    user=((_MARK, function), ("millrace-dead-topic", stored.topic), ("error", told))
                ),
            )
            await self._publish(shard, stored.offset, _DEAD_LETTER, letter)
            return
        for number, (topic, payload) in enumerate(rows):
            # Several messages of one input must not look like repeats of each other.
            user = tuple(
                (name, f"{value}/{number}" if name == PRODUCER and number else value)
                for name, value in stored.properties.user
            )
            properties = Properties(
                content_type=stored.properties.content_type, user=(*user, (_MARK, function))
            )
            message = Message(
                topic=topic, payload=payload, qos=1, retain=stored.retain, properties=properties
            )
            await self._publish(shard, stored.offset, number, message)

    async def _publish(self, shard: Shard, offset: int, number: int, message: Message) -> None:
        # Each number is a producer of its own, so that a log need remember no more ranges of one than there
        # are inputs in a batch, however the results of an input are spread over logs.
        key = (EDGE_PRODUCER + b"%d/%d" % (shard.number, number), offset)
        try:
            self._groups.publishing.check(message)
        except MillraceError as error:
            log.warning("a result of %s is no message: %s", shard.edge, error)
            return
        try:
            await self._groups.publishing.publish(message, key)
        except NotStored as error:
            if error.reason is not Reason.IMPLEMENTATION_SPECIFIC:
                raise
            log.warning("a result of shard %d, offset %d is too old to tell: %s", shard.number, offset, error)
        except LocalError as error:
            # Its properties, the publisher's with ours, fit no packet; tried again they would not either.
            log.warning("a result of %s is no message: %s", shard.edge, error)

    def _complain(self, shard: Shard, text: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._complaint_due_s:
            self._complaint_due_s = now_s + _COMPLAIN_EVERY_S
            log.error("stream %s waits for its edge function: %s", shard.stream.spec.name, text)


def _is_result(one: Taken) -> bool:
    """By the producer, as delivery tells them apart: a client may set any property, and no such producer."""
    return one.message.producer.startswith(EDGE_PRODUCER)
