"""A client appears at another node: what it had under way at the old one comes along [E4].

The new node asks the owner of the session's record before it opens the session. The owner closes the old
connection and answers with the messages that no log holds; it keeps its copy until the record says that the
session moved, so nothing is lost if the new node dies in between, and nothing is sent twice because whoever
does not own the record does not send. What reached the old node between its answer and that moment follows
in a notice. What is published while no node has the subscription, after the old one let go and before the
others know of the new one, reaches nobody: routed messages are not stored.

A node that does not answer in time is not waited for: the session opens with what its record and the logs
hold.
"""

import asyncio
import logging
from collections.abc import Callable

from millrace.broker.entries.sessions import Qos2Received
from millrace.broker.machine import Broker
from millrace.broker.messages.message import Segment
from millrace.broker.sessions.journal import ResumeConnection
from millrace.broker.sessions.session import Session
from millrace.broker.sessions.unfinished import pack, put_back, received_unlogged, unfinished, unpack
from millrace.errors import LocalError, MalformedPacket
from millrace.node.peers.messages import HandedOn, HandedOver, HandOver
from millrace.node.replicas.replicas import Replicas
from millrace.reasons import Reason

log = logging.getLogger("millrace.handover")

_ANSWER_S = 1.0
# Less than the new node waits: without a majority the client is not kept from what no log holds.
_WRITTEN_S = 0.5
# A session that did not open this long after its messages came will not: its record could not be written.
_HELD_MS_MAX = 30_000
# Entries about sessions that are gone before it is worth to look for them.
_GIVEN_SPARE = 64


class _Written:
    """In place of a connection: told when the journal is on disk."""

    peer = "a node"

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def resume(self, duty: None) -> None:
        self.event.set()


class Handover:
    def __init__(
        self,
        broker: Broker,
        replicas: Replicas,
        *,
        is_on: bool,
        now_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._replicas = replicas
        self._is_on = is_on
        self._now_ms = now_ms
        self._wake = wake
        # Answers for sessions that are about to open here, with the time at which they came.
        self._arrived: dict[str, tuple[int, HandedOver]] = {}
        # Sessions whose messages were given away: their epoch then, and how many segments.
        self._given: dict[str, tuple[int, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # ------------------------------------------------------------------------------- the new node

    def fetch(self, client_id: str, username: str | None, then: Callable[[], None]) -> None:
        """Call `then` once the client's messages are here, or there are none to wait for."""
        links = self._replicas.links
        record = self._broker.records.find(client_id)
        owner = "" if record is None else record.owner
        is_here = owner in ("", self._replicas.replica)
        if not self._is_on or links is None or is_here or not links.is_reached(owner):
            then()
            return
        task = asyncio.get_running_loop().create_task(self._fetch(HandOver(client_id, username), owner, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(self, request: HandOver, owner: str, then: Callable[[], None]) -> None:
        client_id = request.client
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await self._replicas.messenger.request(owner, request, HandedOver)
            if answer.messages or answer.received:
                self._hold(client_id, answer)
        except (LocalError, TimeoutError) as error:
            log.warning("the messages that %s had under way did not come along: %s", client_id, error)
        then()

    def _hold(self, client_id: str, answer: HandedOver) -> None:
        now_ms = self._now_ms()
        while self._arrived:
            oldest = next(iter(self._arrived))
            if self._arrived[oldest][0] + _HELD_MS_MAX > now_ms:
                break
            del self._arrived[oldest]
        self._arrived.pop(client_id, None)
        self._arrived[client_id] = (now_ms, answer)

    def opened(self, session: Session, is_present: bool) -> None:
        """The session is open and not yet resumed: give it what was under way, and queue the rest."""
        self._send(session, self._take(session, is_present))

    def _take(self, session: Session, is_present: bool) -> list[Segment]:
        held = self._arrived.pop(session.client_id, None)
        if held is None or not is_present:
            return []
        answer = held[1]
        try:
            waiting = put_back(session, unpack(answer.messages, self._now_ms()))
            session.received = (session.received or set()) | set(answer.received) or None
        except (ValueError, IndexError) as error:
            log.error("the messages of %s cannot be read: %s", session.client_id, error)
            return []
        return waiting

    def on_rest(self, replica: str, _: int, rest: HandedOn) -> None:
        """What still reached the old node."""
        session = self._broker.sessions.get(rest.client)
        if session is not None:
            try:
                segments = unpack(rest.messages, self._now_ms())
            except (ValueError, IndexError) as error:
                raise MalformedPacket(f"messages of a session that cannot be read: {error}") from None
            self._send(session, segments)
            return
        # That node heard before this one that the session is this one's.
        _, answer = self._arrived.get(rest.client, (0, HandedOver()))
        self._hold(rest.client, HandedOver((*answer.messages, *rest.messages), answer.received))

    def _send(self, session: Session, segments: list[Segment]) -> None:
        for segment in segments:
            segment.first_id = 0
            # That node may not have applied the rules of this one [rule 31].
            self._broker.outbound.send(session, segment, self._now_ms(), is_cleared=False)

    # ------------------------------------------------------------------------------- the old node

    async def on_request(self, replica: str, request: HandOver) -> HandedOver:
        client_id = request.client
        session = self._asked_for(request)
        if session is None:
            return HandedOver()
        if session.connection is not None:
            session.connection.fail(Reason.SESSION_TAKEN_OVER, "the client connected at another node")
        await self._written(client_id)
        session = self._asked_for(request)
        if session is None:
            return HandedOver()
        segments = unfinished(session)
        messages, left_out = pack(segments, self._now_ms())
        if left_out:
            log.warning("%d messages of %s are left behind: too many to move", left_out, client_id)
            self._broker.stats.dropped_queue += left_out
        if len(self._given) > 2 * len(self._broker.sessions) + _GIVEN_SPARE:
            self._given = {name: v for name, v in self._given.items() if name in self._broker.sessions}
        self._given[client_id] = (session.epoch, len(segments))
        return HandedOver(tuple(messages), tuple(received_unlogged(session)))

    def _asked_for(self, request: HandOver) -> Session | None:
        session = self._broker.sessions.get(request.client)
        if session is None or not session.is_recorded:
            return None
        # Of another user where the node that asks has not applied its record yet [rule 31].
        return session if session.username in (None, request.username) else None

    async def _written(self, client_id: str) -> None:
        """Wait until the record says what the client has not answered: once the new node opens the session,
        what this one writes is void."""
        written = _Written()
        self._broker.journal.add(Qos2Received(client_id), ResumeConnection(written, None))
        self._wake()
        try:
            async with asyncio.timeout(_WRITTEN_S):
                await written.event.wait()
        except TimeoutError:
            log.warning("%s goes on at another node by an old record: no majority wrote the last", client_id)

    def released(self, session: Session, owner: str) -> None:
        """The record says that another node serves this session: what came since follows."""
        epoch, count = self._given.pop(session.client_id, (-1, 0))
        if not self._is_on or epoch != session.epoch:
            return
        rest, _ = pack(unfinished(session)[count:], self._now_ms())
        if rest:
            self._replicas.messenger.send(owner, HandedOn(session.client_id, tuple(rest)))
