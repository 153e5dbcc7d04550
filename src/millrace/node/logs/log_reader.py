"""Reading logs for MQTT sessions that are behind: from a cursor to packets on a connection.

A session falls behind when a committed message cannot be sent at once: the client was away, its window was
full, or it did not read. From then on it is fed from the log, first from the blocks still in memory, else
from disk in a worker thread, as fast as it acknowledges. When it has reached the end it is live again. Only
topics that the session subscribes to leave the log; the filter works on the block's topic dictionary.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple

from millrace.broker.entries.sessions import Unanswered
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Segment, stored_run
from millrace.broker.sessions.session import Session
from millrace.broker.shards.block_facts import edge_inputs
from millrace.broker.topics.filters import matches
from millrace.broker.topics.routing import merge, taking
from millrace.errors import StorageError
from millrace.kernels.blocks import FLAG_RETAIN, FLAG_VERSION_SHIFT, Columns, select_rows
from millrace.node.logs.reading import read_blocks
from millrace.node.shards.shard import Shard
from millrace.storage.block import Block, Kind
from millrace.storage.log import Trimmed
from millrace.storage.records import UNKNOWN
from millrace.storage.scan import Damage, RangeDamaged

log = logging.getLogger("millrace.reader")

# How long a client waits for messages that it was sent at QoS 1 and that this replica has yet to apply.
_LATE_MS_MAX = 1_000
# What one session is fed in one turn of the loop.
_FEED_BYTES_MAX = 512 * 1024

# QoS, retain as published, encoded identifiers; None where nothing of the topic is wanted.
Wish = tuple[int, bool, bytes] | None


class Found(NamedTuple):
    """What was read of messages that were sent before, each run with the block that holds it."""

    pieces: list[tuple[Unanswered, Block]]
    damaged: dict[Unanswered, RangeDamaged]
    failed: dict[int, StorageError]
    """By shard."""


class LogReader:
    def __init__(
        self,
        broker: Broker,
        shards: Mapping[int, Shard],
        pool: Executor,
        now_ms: Callable[[], int],
        wall_us: Callable[[], int],
        wake: Callable[[], None],
        repaired: Callable[[int], Coroutine[Any, Any, bool]],
    ) -> None:
        """`repaired`: wait until the damage in a shard is repaired; False where it cannot be."""
        self._broker = broker
        self._shards = shards
        self._pool = pool
        self._repaired = repaired
        self._repairs: set[asyncio.Task[None]] = set()
        self._now_ms = now_ms
        self._wall_us = wall_us
        self._wake = wake
        self._reading: set[Session] = set()
        # Their clients have more than this replica has applied so far; a dict for its order.
        self._early: dict[Session, None] = {}
        # Those of them that wait for what was sent before, since when, as of the last turn and this one.
        self._late_before: dict[Session, int] = {}
        self._late: dict[Session, int] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._broker.outbound.behind or self._early)

    def serve_behind(self) -> None:
        """Feed every session that is behind and could take more."""
        sessions, self._broker.outbound.behind = self._broker.outbound.behind, {}
        sessions.update(self._early)
        self._early.clear()
        self._late_before, self._late = self._late, {}
        for session in sessions:
            self._serve(session)

    def _serve(self, session: Session) -> None:
        """Go on with the first log in which it is behind."""
        if session in self._reading or session.blocked:
            return
        if session.restored:
            self._serve_restored(session)
            return
        # What it was sent before a reconnect comes again before anything new (MQTT 4.6).
        if not session.lag or session.queue or session.resending:
            return
        number = self._next_log(session, session.lag)
        if number is None:
            self._early[session] = None
            return
        offset = session.lag[number]
        shard = self._shards.get(number)
        if shard is None:
            # The stream was deleted, and with it what this session still wanted of it.
            del session.lag[number]
            self._broker.outbound.pump(session, self._now_ms())
            return
        if offset < shard.first_offset:
            self._broker.stats.trimmed += shard.first_offset - offset
            session.lag[number] = offset = shard.first_offset
        if offset >= shard.next_offset:
            self._caught_up(session, number)
            return
        recent = shard.recent(offset)
        if recent is not None:
            self._feed(session, shard, offset, recent)
            return
        self._reading.add(session)
        epoch = session.epoch
        loop = asyncio.get_running_loop()

        def arrived(future: "Future[list[Block]]") -> None:
            try:
                loop.call_soon_threadsafe(self._arrived, session, epoch, shard, offset, future)
            except RuntimeError:
                log.debug("a read finished after the node stopped")

        self._pool.submit(read_blocks, shard, offset).add_done_callback(arrived)

    def _next_log(self, session: Session, lag: dict[int, int]) -> int | None:
        """Sealed logs first, the oldest of them before the others [rule 16]; None: it has to wait."""
        outbound = self._broker.outbound
        sealed = outbound.sealed.keys() & lag.keys()
        candidates = (min(sealed, key=lambda n: (outbound.sealed[n], n)),) if sealed else lag
        ready = (n for n in candidates if n not in outbound.held and not self._is_early(session, n))
        return next(ready, None)

    def _serve_restored(self, session: Session) -> None:
        """What it was sent before its session came here. Where this replica lacks some of it, all else waits:
        not for long at QoS 1, as that may come under another id; at QoS 2 it must not be taken for new."""
        now_ms = self._now_ms()
        ends = {number: shard.next_offset for number, shard in self._shards.items()}
        late = {run.shard for run in session.restored or () if run.end > ends.get(run.shard, run.end)}
        record = self._broker.records.find(session.client_id)
        since_ms = self._late_before.get(session, now_ms)
        if late and record is not None and now_ms - since_ms >= _LATE_MS_MAX:
            for number in sorted(late):
                self._broker.recording.let_go(session, record, number)
        if any(run.shard in late for run in session.restored or ()):
            self._early[session] = None
            self._late[session] = since_ms
        elif session.restored:
            self._restore(session)
        else:
            self._broker.outbound.pump(session, now_ms)

    def _restore(self, session: Session) -> None:
        """Messages that were sent and not answered, again under their ids."""
        assert session.restored is not None
        # It stays until they are sent again: their ids are the client's, and nothing overtakes them.
        wanted = session.restored
        self._reading.add(session)
        epoch = session.epoch
        loop = asyncio.get_running_loop()
        reads = [(run, self._shards[run.shard]) for run in wanted if run.shard in self._shards]

        def arrived(future: "Future[Found]") -> None:
            try:
                loop.call_soon_threadsafe(self._restored, session, epoch, wanted, future)
            except RuntimeError:
                log.debug("a read finished after the node stopped")

        self._pool.submit(_read_sent, reads).add_done_callback(arrived)

    def _restored(
        self,
        session: Session,
        epoch: int,
        wanted: list[Unanswered],
        future: "Future[Found]",
    ) -> None:
        self._reading.discard(session)
        if session.epoch != epoch or session.restored is not wanted:
            self._again(session)
            return
        found = future.result()
        if found.damaged:
            self._wait_for(session, self._restore_after_repair(session, epoch, wanted, found.damaged))
            return
        failed = found.failed.keys() & self._shards.keys()
        if failed:
            number = min(failed)
            log.error("shard %d cannot be read: %s", number, found.failed[number])
            # In a later turn again, though nothing wakes it for that.
            self._early[session] = None
            return
        now_ms = self._now_ms()
        segments: list[Segment] = []
        # A stream may have been deleted while it was read.
        pieces = [piece for piece in found.pieces if piece[0].shard in self._shards]
        for run, block in pieces:
            segments += self._sent_segments(session, self._shards[run.shard], run, block, now_ms)
        self._give_up(session, wanted, [run for run, _ in pieces])
        self._broker.outbound.send_restored(session, segments, now_ms)
        self._again(session)
        self._wake()

    def _give_up(self, session: Session, runs: list[Unanswered], kept: list[Unanswered]) -> None:
        """Of these runs only `kept` can be sent again: retention has removed the rest, say."""
        ids = {one for run in kept for one in range(run.first_id, run.first_id + run.count)}
        for run in runs:
            for one in range(run.first_id, run.first_id + run.count):
                if run.qos == 2 and one not in ids:
                    self._broker.outbound.give_up(session, one)

    def _sent_segments(
        self, session: Session, shard: Shard, sent: Unanswered, block: Block, now_ms: int
    ) -> list[Segment]:
        """The messages of a run as they were sent. Whether the client may still have them is asked when they
        leave."""
        columns, topics = block.columns(), block.topics()
        first = sent.offset - block.header.base_offset
        wishes: dict[bytes, Wish] = {}
        for topic in {topics[topic_id] for topic_id in columns.topic_ids[first : first + sent.count]}:
            _, retain_as_published, extra = _wish(session, topic.decode()) or (0, False, b"")
            wishes[topic] = sent.qos, retain_as_published, extra
        segments: list[Segment] = []
        row, end = first, first + sent.count
        while row < end:
            wish = wishes[topics[columns.topic_ids[row]]]
            last = self._run_end(columns, topics, wishes, row, end)
            segment = self._segment(shard, block, columns, wish, row, last, now_ms)
            segment.first_id = sent.first_id + row - first
            segments.append(segment)
            row = last
        return segments

    async def _restore_after_repair(
        self,
        session: Session,
        epoch: int,
        wanted: list[Unanswered],
        damaged: dict[Unanswered, RangeDamaged],
    ) -> None:
        """As `_after_repair`, for messages that were sent before."""
        for run, error in damaged.items():
            is_repaired = await self._repaired(run.shard)
            # Else it is read anew for the next connection.
            is_wanted = session.epoch == epoch and session.restored is wanted
            if not is_repaired and is_wanted:
                log.error("%s is not sent again what is damaged: %s", session.client_id, error)
                at = wanted.index(run)
                spared = wanted[at : at + 1] = _spared(run, error.damage)
                self._give_up(session, [run], spared)
        self._reading.discard(session)
        # Where nothing of it is left: what waited behind it.
        self._broker.outbound.pump(session, self._now_ms())
        self._again(session)

    def _arrived(
        self, session: Session, epoch: int, shard: Shard, offset: int, future: "Future[list[Block]]"
    ) -> None:
        self._reading.discard(session)
        if session.epoch != epoch or not session.lag or session.lag.get(shard.number) != offset:
            self._again(session)
            return
        try:
            blocks = future.result()
        except Trimmed as error:
            log.warning("%s missed messages of shard %d: %s", session.client_id, shard.number, error)
            self._broker.stats.trimmed += int(error.first_offset) - offset
            session.lag[shard.number] = int(error.first_offset)
        except RangeDamaged as error:
            self._wait_for(session, self._after_repair(session, epoch, shard, offset, error))
            return
        except StorageError as error:
            if self._shards.get(shard.number) is shard:
                log.error("shard %d cannot be read: %s", shard.number, error)
                # In a later turn again, though nothing wakes it for that.
                self._early[session] = None
                return
            # Closed while it was read: what the session is behind in is looked up anew.
        else:
            self._feed(session, shard, offset, blocks)
            return
        self._again(session)

    def _wait_for(self, session: Session, repair: Coroutine[Any, Any, None]) -> None:
        self._reading.add(session)
        task = asyncio.get_running_loop().create_task(repair)
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)

    async def _after_repair(
        self, session: Session, epoch: int, shard: Shard, offset: int, error: RangeDamaged
    ) -> None:
        """Other replicas have what is damaged here. Only if none of them can be had is it passed over."""
        is_repaired = await self._repaired(shard.number)
        self._reading.discard(session)
        lag = session.lag if session.epoch == epoch else None
        if not is_repaired and lag and lag.get(shard.number) == offset:
            log.error(
                "%s is not served a damaged part of shard %d: %s", session.client_id, shard.number, error
            )
            lag[shard.number] = max(int(error.damage.next_offset), offset + 1)
        self._again(session)

    def _again(self, session: Session) -> None:
        if (session.lag or session.restored) and not session.blocked:
            self._broker.outbound.behind[session] = None
            self._wake()

    def _is_early(self, session: Session, number: int) -> bool:
        """Whether the client has what this replica has yet to apply: it must not be given that as new."""
        assert session.lag is not None
        shard = self._shards.get(number)
        if shard is None or session.lag[number] < shard.next_offset:
            return False
        done = (session.skip or {}).get(number, ())
        return session.lag[number] > shard.next_offset or any(b > shard.next_offset for _, b in done)

    def _caught_up(self, session: Session, number: int) -> None:
        assert session.lag is not None
        del session.lag[number]
        if session.skip is not None:
            session.skip.pop(number, None)
        if session.is_recorded:
            self._broker.touched[session] = None
        self._again(session)

    def _feed(self, session: Session, shard: Shard, offset: int, blocks: list[Block]) -> None:
        """Send what these blocks hold for the session, as far as it goes."""
        assert session.lag is not None
        now_ms = self._now_ms()
        outbound = self._broker.outbound
        budget = _FEED_BYTES_MAX
        wishes: dict[bytes, Wish] = {}
        for block in blocks:
            if block.header.kind is not Kind.DATA or block.header.next_offset <= offset:
                continue
            for segment in self._segments(session, shard, block, offset, wishes, now_ms):
                if segment.qos == 0:
                    # What is not acknowledged is for those who are there, not for those who come later.
                    continue
                if segment.run.expires_ms is not None and segment.run.expires_ms <= now_ms:
                    self._broker.stats.expired += 1
                    continue
                budget -= segment.size_bytes
                if not outbound.send_some(session, segment, now_ms):
                    session.lag[shard.number] = segment.offset
                    self._wake()
                    return
            offset = block.header.next_offset
            session.lag[shard.number] = offset
            if budget <= 0:
                break
        if offset >= shard.next_offset and not self._is_early(session, shard.number):
            self._caught_up(session, shard.number)
        else:
            self._again(session)
        self._wake()

    def _segments(
        self,
        session: Session,
        shard: Shard,
        block: Block,
        offset: int,
        wishes: dict[bytes, Wish],
        now_ms: int,
    ) -> list[Segment]:
        """The part of a block from `offset` on that the session wants, in order."""
        topics = block.topics()
        wanted = bytearray(len(topics))
        for topic_id, topic in enumerate(topics):
            if topic not in wishes:
                wishes[topic] = _wish(session, topic.decode())
            wanted[topic_id] = wishes[topic] is not None
        if 1 not in wanted:
            return []
        columns = block.columns()
        base = block.header.base_offset
        first = max(0, offset - base)
        done = [(a - base, b - base) for a, b in (session.skip or {}).get(shard.number, ())]
        if shard.edge:
            done += edge_inputs(block.columns())
        segments: list[Segment] = []
        no_local = any(s.no_local for s in session.subscriptions.values())
        for start, end in select_rows(columns.topic_ids, bytes(wanted), first, block.header.count):
            row = start
            while row < end:
                after = next((b for a, b in done if a <= row < b), 0)
                if after:
                    row = after
                    continue
                limit = min([end, *(a for a, _ in done if a > row)])
                last = self._run_end(columns, topics, wishes, row, limit)
                wish = wishes[topics[columns.topic_ids[row]]]
                if not (no_local and self._is_own(session, columns, topics, row)):
                    segments.append(self._segment(shard, block, columns, wish, row, last, now_ms))
                row = last
        return segments

    @staticmethod
    def _run_end(
        columns: Columns, topics: tuple[bytes, ...], wishes: dict[bytes, Wish], row: int, end: int
    ) -> int:
        """The first row after `row` that cannot go in the same run."""
        flags, ids = columns.flags, columns.topic_ids
        flag, wish = flags[row], wishes[topics[ids[row]]]
        publishers = columns.publisher_ids
        if flag & FLAG_RETAIN or flag >> FLAG_VERSION_SHIFT == 5:
            # One by one: a retained flag or an expiry is of one message.
            return row + 1
        at = row + 1
        topic_id = ids[row]
        while at < end and flags[at] == flag and (ids[at] == topic_id or wishes[topics[ids[at]]] == wish):
            if publishers and publishers[at] != publishers[row]:
                break
            at += 1
        return at

    def _segment(
        self,
        shard: Shard,
        block: Block,
        columns: Columns,
        wish: Wish,
        row: int,
        end: int,
        now_ms: int,
    ) -> Segment:
        assert wish is not None
        qos, retain_as_published, extra = wish
        flag = columns.flags[row]
        start = columns.packet_positions[row]
        stop = columns.packet_positions[end - 1] + columns.packet_sizes[end - 1]
        data = bytes(columns.packets[start:stop])
        sent_us = block.header.base_time_us + columns.deltas_us[row]
        run = stored_run(data, end - row, flag, sent_us, now_ms, self._wall_us())
        run.shard = shard.number
        run.offset = block.header.base_offset + row
        return Segment(run, end - row, min(run.qos, qos), run.retain and retain_as_published, extra)

    @staticmethod
    def _is_own(session: Session, columns: Columns, topics: tuple[bytes, ...], row: int) -> bool:
        """[MQTT-3.8.3-3]: its own message, and every subscription that takes it says no local."""
        if not columns.publisher_ids:
            return False
        name = columns.publisher_ids[row]
        if name >= len(columns.names) or columns.names[name] != session.client_id.encode():
            return False
        topic = topics[columns.topic_ids[row]].decode()
        own = session.subscriptions.items()
        return all(one.no_local for filter, one in own if matches(filter, topic))


def _wish(session: Session, topic: str) -> Wish:
    """What the session's subscriptions ask of a topic, merged."""
    found = [options for _, options in taking(session, topic)]
    if not found or not session.principal.may_receive(topic):
        return None
    qos, retain, extra = merge(found)
    return qos, retain, extra if session.v5 else b""


def _read_sent(reads: list[tuple[Unanswered, Shard]]) -> Found:
    """In a worker thread: these messages, in their order; those that retention has removed are left out."""
    found = Found([], {}, {})
    blocks: dict[int, list[Block]] = {}
    for run, shard in reads:
        try:
            found.pieces.extend(_read_run(run, shard, blocks))
        except RangeDamaged as error:
            found.damaged[run] = error
        except StorageError as error:
            found.failed[shard.number] = error
    return found


def _read_run(
    run: Unanswered, shard: Shard, blocks: dict[int, list[Block]]
) -> Iterator[tuple[Unanswered, Block]]:
    """The parts of a run with their blocks. `blocks`: what was last read of each shard, where its next run
    mostly is too."""
    at = run.offset
    while at < run.end:
        block = _holding(blocks.get(run.shard, ()), at)
        if block is None:
            try:
                blocks[run.shard] = read_blocks(shard, at)
            except Trimmed as error:
                at = max(at + 1, int(error.first_offset))
                continue
            block = _holding(blocks[run.shard], at)
            if block is None:
                return
        after = min(run.end, block.header.next_offset)
        first_id = run.first_id + at - run.offset
        yield Unanswered(first_id, after - at, run.shard, at, run.qos), block
        at = after


def _spared(run: Unanswered, damage: Damage) -> list[Unanswered]:
    """What is left of a run that could not be read."""
    first, after = damage.first_offset, damage.next_offset
    if after == UNKNOWN:
        after = run.end
    if after <= run.offset or first >= run.end:
        # Not told apart from what is damaged: nothing is.
        return []
    return [
        Unanswered(run.first_id + start - run.offset, end - start, run.shard, start, run.qos)
        for start, end in ((run.offset, first), (after, run.end))
        if start < end
    ]


def _holding(blocks: Iterable[Block], offset: int) -> Block | None:
    for block in blocks:
        header = block.header
        if header.kind is Kind.DATA and header.base_offset <= offset < header.next_offset:
            return block
    return None
