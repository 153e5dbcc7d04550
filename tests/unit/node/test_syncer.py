"""Group commit: what leaves before a sync, what gathers during one, and when a sync may keep the loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millrace.errors import LocalError, StorageError
from millrace.node.logs.syncer import Job, Syncer, ThreadSyncer
from millrace.replication.contract import Persist
from millrace.storage.block import Block
from millrace.storage.disk import DiskFull


class Paper:
    """A log that notes what is done to it; each sync takes as long as it is told."""

    def __init__(self, story: list[str]) -> None:
        self.story = story
        self.now_s = 0.0
        self.sync_s = 0.0001

    def write(self, persist: Persist, blocks: list[Block]) -> None:
        self.story.append(f"write {persist.number}")

    def sync(self) -> None:
        self.now_s += self.sync_s
        self.story.append("sync")


class ByHand(Syncer):
    """What is handed out is performed when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop, paper: Paper, sync_every_s: float = 0.0) -> None:
        super().__init__(loop, _fail, in_place=True, sync_every_s=sync_every_s)
        self.paper = paper
        self.handed: list[list[Job]] = []

    def close(self) -> None:
        """Nothing is held."""

    def _now_s(self) -> float:
        return self.paper.now_s

    def _hand_out(self, batch: list[Job]) -> None:
        self.paper.story.append("hand out")
        self.handed.append(batch)

    def perform(self) -> None:
        self._finish(self.handed.pop(0))


def _fail(error: StorageError) -> None:
    raise error


def run(play: Callable[[ByHand, Callable[[int], None]], None]) -> list[str]:
    """The story of one play; its second argument submits the `Persist` of this number."""
    story: list[str] = []

    async def scene() -> None:
        paper: Any = Paper(story)
        syncer = ByHand(asyncio.get_running_loop(), paper)
        syncer.before_sync = lambda: story.append("leave")

        def submit(number: int) -> None:
            def done(n: int) -> None:
                story.append(f"done {n}")

            syncer.submit(Job(paper, Persist(number=number), [], done))

        play(syncer, submit)

    asyncio.run(scene())
    return story


def test_what_others_wait_for_leaves_before_the_sync_begins() -> None:
    def play(syncer: ByHand, submit: Callable[[int], None]) -> None:
        submit(1)
        submit(2)
        assert syncer.start(), "a small batch is on disk at once"

    assert run(play) == ["leave", "write 1", "write 2", "sync", "done 1", "done 2"]


def test_what_comes_during_a_sync_gathers_into_one_batch() -> None:
    def play(syncer: ByHand, submit: Callable[[int], None]) -> None:
        syncer._mean_s = 1.0
        submit(1)
        assert not syncer.start(), "handed out: nothing is on disk yet"
        submit(2)
        submit(3)
        assert not syncer.start(), "one batch at a time"
        assert len(syncer.handed) == 1
        syncer.perform()
        syncer.start()
        assert [job.persist.number for job in syncer.handed[0]] == [2, 3]

    assert run(play) == ["leave", "hand out", "done 1", "leave", "hand out"]


def test_one_late_sync_keeps_its_place_and_the_second_in_a_row_moves_to_the_thread() -> None:
    def play(syncer: ByHand, submit: Callable[[int], None]) -> None:
        for number, sync_s in enumerate((0.0002, 0.05, 0.0002, 0.0002, 0.0002, 0.05, 0.05), 1):
            syncer.paper.sync_s = sync_s
            submit(number)
            assert syncer.start(), f"sync {number} is in place"
        submit(8)
        assert not syncer.start()

    assert run(play)[-1] == "hand out"


def test_at_an_interval_much_is_acknowledged_before_one_sync_and_nothing_stays_unsynced() -> None:
    story: list[str] = []

    async def scene() -> None:
        paper: Any = Paper(story)
        syncer = ByHand(asyncio.get_running_loop(), paper, sync_every_s=0.01)
        synced = asyncio.Event()
        paper.sync = lambda: (story.append("sync"), synced.set())
        for number in (1, 2, 3):
            syncer.submit(Job(paper, Persist(number=number), [], lambda n: story.append(f"done {n}")))
            assert syncer.start()
        async with asyncio.timeout(30):
            await synced.wait()

    asyncio.run(scene())
    assert story == ["write 1", "done 1", "write 2", "done 2", "write 3", "done 3", "sync"]


def test_a_log_is_let_go_while_the_disk_is_full_and_what_waited_of_it_is_not_written() -> None:
    """Whoever deletes a stream to make room must not have to make room before."""
    story: list[str] = []

    async def scene() -> None:
        paper: Any = Paper(story)
        other: Any = Paper([])
        syncer = ByHand(asyncio.get_running_loop(), paper)
        syncer._mean_s = 1.0

        def submit(log: Any, number: int) -> None:
            syncer.submit(Job(log, Persist(number=number), [], lambda n: story.append(f"done {n}")))

        submit(paper, 1)
        submit(other, 2)
        syncer.start()
        submit(paper, 3)
        (batch,) = syncer.handed
        syncer.release(paper, lambda: story.append("gone"))
        assert story == ["hand out", "done 3"], "the batch is under way"
        syncer._full(batch, DiskFull("no room"))
        assert story == ["hand out", "done 3", "done 1", "gone"]
        assert [job.log for job in batch] == [other], "the rest waits for room"
        syncer.perform()
        assert story[4:] == ["done 2"]

    asyncio.run(scene())


def test_a_fault_in_a_write_stops_the_node_and_not_only_the_thread() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[StorageError] = loop.create_future()
        syncer = ThreadSyncer(loop, failed.set_result, in_place=False, sync_every_s=0.0)
        paper: Any = Paper([])

        def write(persist: Persist, blocks: list[Block]) -> None:
            raise LocalError("block 2 does not follow")

        paper.write = write
        syncer.submit(Job(paper, Persist(number=1), [], lambda n: None))
        assert "does not follow" in str(await asyncio.wait_for(failed, 5))
        syncer.close()

    asyncio.run(scene())


def test_a_fault_of_one_group_keeps_none_of_the_others_from_hearing_that_theirs_is_on_disk() -> None:
    def play(syncer: ByHand, submit: Callable[[int], None]) -> None:
        def fault(number: int) -> None:
            raise LocalError("a fault in one group")

        paper: Any = syncer.paper
        submit(1)
        syncer.submit(Job(paper, Persist(number=2), [], fault))
        submit(3)
        with pytest.raises(LocalError, match="a fault in one group"):
            syncer.start()
        submit(4)
        assert syncer.start()

    story = run(play)
    assert [line for line in story if line.startswith("done")] == ["done 1", "done 3", "done 4"]


def test_nothing_is_written_or_let_go_after_the_close() -> None:
    """The word of the last batch comes afterwards; whoever closes has closed the logs and dropped the files
    himself by then."""
    story: list[str] = []

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        syncer = ThreadSyncer(loop, _fail, in_place=False, sync_every_s=0.0)
        paper, other = Paper(story), Paper(story)

        def submit(log: Any, number: int) -> None:
            syncer.submit(Job(log, Persist(number=number), [], lambda n: story.append(f"done {n}")))

        submit(paper, 1)
        syncer.start()
        submit(other, 2)
        syncer.release(paper, lambda: story.append("gone"))  # type: ignore[arg-type]
        syncer.close()
        submit(other, 3)
        for _ in range(3):
            await asyncio.sleep(0)
        assert not syncer._thread.is_alive()

    asyncio.run(scene())
    assert story == ["write 1", "sync", "done 1"]
