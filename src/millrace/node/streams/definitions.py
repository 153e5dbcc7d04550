"""What the cluster agreed on: the meta group's state at this node, and the way to change it.

Members, streams, placement, durable groups, pairs and writers change only through the log of the meta group,
so every node comes to the same definitions. Who acts on a change is told while the group applies it
(`on_change`), and does nothing but remember it; whoever proposed the change then brings the node in line
(`after_command`)."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from millrace.broker.entries.meta import META_ENTRIES, MetaEntry
from millrace.broker.freezing import Freezing
from millrace.broker.meta import state as meta
from millrace.broker.meta.state import MetaState
from millrace.broker.streams.stream import StreamTable
from millrace.errors import LocalError
from millrace.node.replicas import waiting
from millrace.node.replicas.moment import Moment
from millrace.node.replicas.replicas import Replicas
from millrace.node.replicas.replication_group import ReplicationGroup
from millrace.replication.contract import EntryKind, Status
from millrace.storage.block import Block, Kind, opaque_block

_COMMAND_S = 10.0
_AGAIN_S = 5.0


class Refused(LocalError):
    """The change was applied and makes no sense, everywhere alike."""


class _MetaApp:
    """Implements `App` for the meta group."""

    def __init__(
        self,
        changed: Callable[[meta.Result], None],
        restored: Callable[[], None],
        leads: Callable[[], None],
    ) -> None:
        self.state = meta.MetaState()
        self._changed = changed
        self._restored = restored
        self._leads = leads

    def apply(self, block: Block, token: Any) -> None:
        result = self._result(block)
        self._changed(result)
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_result(result)

    def _result(self, block: Block) -> meta.Result:
        """A block has one entry, or none: a mark that everything before it is applied."""
        try:
            entries = META_ENTRIES.decode(block.payload())
        except LocalError as error:
            # Written by a newer version: refused alike by every node of this one.
            return meta.Result(error=str(error))
        result = meta.Result()
        for entry in entries:
            result = self.state.apply(entry)
        return result

    def begin_term(self) -> None:
        """Of the entries none depends on who leads."""
        self._leads()

    def admit(self, block: Block, token: Any) -> Block:
        return block

    def withdraw(self, block: Block) -> None:
        """Nothing is remembered of what is admitted."""

    def freeze(self) -> Freezing:
        return self.state.freeze()

    def load(self, state: bytes, rows: Iterable[tuple[str, bytes]]) -> Iterator[None]:
        fresh = meta.MetaState()
        yield from fresh.load(state, rows)
        self.state = fresh
        self._restored()

    def covered(self, token: Any) -> None:
        self.lost(token)

    def lost(self, token: Any) -> None:
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_exception(
                LocalError("no majority of the cluster is there; the change may still happen")
            )


class Definitions:
    """The definitions as this node knows them. `open` comes before everything else."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._next_change = Moment()
        self._app = _MetaApp(self._changed, self._restored, self._next_change.come)
        self.on_change: list[Callable[[meta.Result], None]] = []
        """Called for every entry while the meta group applies it: nothing may be proposed from there."""
        self.on_restore: list[Callable[[], None]] = []
        """Called when a snapshot took the place of the state, under the same condition."""
        self.after_command: Callable[[], None] = _nothing

    def _changed(self, result: meta.Result) -> None:
        for call in self.on_change:
            call(result)
        self._next_change.come()

    async def next_change(self) -> None:
        """Wait until the meta group applies another entry or a snapshot here, or begins to be led here."""
        await self._next_change.next()

    def _restored(self) -> None:
        for call in self.on_restore:
            call()
        self._next_change.come()

    @property
    def state(self) -> MetaState:
        return self._app.state

    @property
    def table(self) -> StreamTable:
        return self._app.state.table

    @property
    def group(self) -> ReplicationGroup:
        """The meta group itself."""
        return self._replicas.groups[meta.META_GROUP]

    @property
    def is_leader(self) -> bool:
        return self.group.is_leader

    def status(self) -> Status:
        return self.group.status()

    def open(self, voters: tuple[str, ...]) -> None:
        """Open the meta group from disk, or begin it with these voters; none for one that others will add."""
        self._replicas.open(meta.META_GROUP, self._app, voters)

    async def serving(self) -> None:
        """Wait until the meta group has a leader; StorageError after a while."""
        await waiting.serving(self.group)

    async def caught_up(self) -> None:
        """Wait until everything is applied here that was committed before. An entry of our own comes after
        it; a leader that is known says nothing about how far this replica is."""
        while True:
            answer: asyncio.Future[meta.Result] = asyncio.get_running_loop().create_future()
            block = opaque_block(Kind.CONTROL, META_ENTRIES.encode([]))
            self.group.propose([block], [answer], EntryKind.CONTROL)
            # Again, should this one be given up for want of a leader.
            with contextlib.suppress(TimeoutError, LocalError):
                await asyncio.wait_for(answer, _AGAIN_S)
                return

    async def command(self, entry: MetaEntry) -> meta.Result:
        """Change what the meta group keeps; LocalError says why not, Refused if trying again is in vain."""
        answer: asyncio.Future[meta.Result] = asyncio.get_running_loop().create_future()
        block = opaque_block(Kind.CONTROL, META_ENTRIES.encode([entry]))
        if not self.group.propose([block], [answer], EntryKind.CONTROL):
            raise LocalError("the node cannot change the cluster right now; try again")
        try:
            result = await asyncio.wait_for(answer, _COMMAND_S)
        except TimeoutError:
            raise LocalError("no majority of the cluster answered; it may still happen") from None
        self.after_command()
        if result.error is not None:
            raise Refused(result.error)
        return result


def _nothing() -> None:
    """Nobody follows the definitions yet."""
