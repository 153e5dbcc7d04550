"""The duties of a driver, each shown with a machine that says what the test wants."""

from collections.abc import Callable
from typing import Any

import pytest

from millrace.driver.effects import EffectDriver
from millrace.driver.replica import ReplicaDriver
from millrace.errors import StorageError
from millrace.replication.contract import (
    NO_INDEX,
    Accepted,
    Applied,
    Commit,
    Config,
    InstallSnapshot,
    PeerBody,
    Persist,
    Persisted,
    Propose,
    ReplicaId,
    Reply,
    RequestId,
    RoleChanged,
    Send,
    Snapshot,
    Tick,
)
from millrace.types import Index, Term

PEER = ReplicaId("b")
FOLLOWS = RoleChanged(role="follower", term=Term(1), leader=PEER)


class Word(PeerBody):
    pass


def persist(number: int) -> Persist:
    return Persist(number=number)


SEND = Send(to=PEER, body=Word())


class Scripted:
    """A machine that answers the events of its script, and everything else with nothing; and whatever else a
    driver needs. `story` is what happened, in order."""

    def __init__(self, **script: list[Any]) -> None:
        self.script = script
        self.story: list[str] = []
        self.writes: list[Persist] = []
        self.during_role: Callable[[], None] = lambda: None
        self.driver = ReplicaDriver(self, network=self, log=self, state=self, applied=NO_INDEX)

    # machine
    def step(self, event: Any) -> list[Any]:
        name = event if isinstance(event, str) else type(event).__name__
        if isinstance(event, Persisted):
            name += str(event.number)
        elif isinstance(event, Applied):
            name += str(event.index)
        self.story.append(f"step {name}")
        return self.script.get(name, [])

    # network
    def send(self, to: ReplicaId, body: PeerBody) -> None:
        self.story.append("send")

    # log
    def write(self, write: Persist) -> None:
        self.story.append(f"write {write.number}")
        self.writes.append(write)

    def stage(self, snapshot: Snapshot, position: int, data: bytes) -> None:
        self.story.append("stage")

    def repaired(self) -> None:
        self.story.append("repaired")

    def committed(self, first: Index, last: Index) -> list[int]:
        """At most two at a time."""
        return list(range(first, min(first + 1, last) + 1))

    # state
    def apply(self, entry: int) -> None:
        assert self.driver.applied == entry
        self.story.append(f"apply {entry}")

    def restore(self, snapshot: Snapshot, loaded: Callable[[], None]) -> None:
        self.story.append(f"restore {snapshot.index}")
        loaded()

    def has_applied(self) -> None:
        self.driver.tell_applied()

    def on_reply(self, reply: Reply) -> None:
        self.story.append("reply")

    def on_role_changed(self, change: RoleChanged) -> None:
        self.story.append("role")
        self.during_role()


def test_what_stands_behind_a_write_waits_and_later_lists_do_not() -> None:
    at = Scripted(a=[SEND, persist(1), FOLLOWS], b=[SEND])
    at.driver.step("a")  # type: ignore[arg-type]
    at.driver.step("b")  # type: ignore[arg-type]
    assert at.story == ["step a", "send", "write 1", "step b", "send"]
    assert at.driver.writes_waiting == 1
    at.driver.persisted(1)
    assert at.story[5:] == ["role", "step Persisted1"]
    assert at.driver.writes_waiting == 0


def test_one_report_covers_several_writes_and_none_that_came_later() -> None:
    at = Scripted(a=[persist(1), SEND], b=[persist(2), FOLLOWS], c=[persist(3), SEND])
    for event in "abc":
        at.driver.step(event)  # type: ignore[arg-type]
    at.story.clear()
    at.driver.persisted(2)
    assert at.story == ["send", "role", "step Persisted2"]
    at.driver.persisted(3, tells_first=True)
    assert at.story[3:] == ["step Persisted3", "send"]


def test_a_log_that_is_done_at_once_reports_from_inside_the_write() -> None:
    at = Scripted(a=[persist(1), SEND, FOLLOWS])
    at.write = lambda write: at.driver.persisted(write.number)  # type: ignore[method-assign]
    at.driver.step("a")  # type: ignore[arg-type]
    assert at.story == ["step a", "send", "role", "step Persisted1"]


def test_an_event_that_arises_while_effects_run_waits_its_turn() -> None:
    at = Scripted(a=[FOLLOWS, SEND], b=[SEND])
    returned: list[Any] = []
    at.during_role = lambda: returned.append(at.driver.step("b"))  # type: ignore[arg-type]
    assert at.driver.step("a") == [FOLLOWS, SEND]  # type: ignore[arg-type]
    assert at.story == ["step a", "role", "send", "step b", "send"]
    assert returned == [()]


def test_a_driver_that_is_stopped_in_the_middle_does_nothing_more() -> None:
    at = Scripted(a=[FOLLOWS, persist(1)], b=[SEND])

    def stop() -> None:
        at.driver.step("b")  # type: ignore[arg-type]
        at.driver.stop()

    at.during_role = stop
    at.driver.step("a")  # type: ignore[arg-type]
    at.driver.step("b")  # type: ignore[arg-type]
    at.driver.persisted(1)
    assert at.story == ["step a", "role"]


@pytest.mark.parametrize("script", [[persist(2)], [persist(1), persist(2)]])
def test_writes_are_numbered_one_by_one_and_a_list_has_one(script: list[Any]) -> None:
    at = Scripted(a=script)
    with pytest.raises(AssertionError):
        at.driver.step("a")  # type: ignore[arg-type]
        at.driver.persisted(1)


def test_an_answer_is_handed_back_if_it_comes_at_once() -> None:
    outcome = Accepted(term=Term(1), first_index=Index(1), last_index=Index(1))
    mine, other = RequestId(7), RequestId(8)
    at = Scripted(Propose=[Reply(request=other, outcome=outcome), Reply(request=mine, outcome=outcome)])
    assert at.driver.ask(Propose(request=mine, payloads=(b"x",))) is outcome
    assert at.driver.ask(Propose(request=RequestId(9), payloads=(b"x",))) is None


def test_entries_are_applied_once_and_in_order_and_the_machine_is_told() -> None:
    at = Scripted(a=[Commit(index=Index(3)), SEND], b=[Commit(index=Index(4))])
    at.driver.step("a")  # type: ignore[arg-type]
    at.driver.step("b")  # type: ignore[arg-type]
    applied = ["apply 1", "apply 2", "apply 3", "send", "step Applied3", "step b", "apply 4", "step Applied4"]
    assert at.story == ["step a", *applied]


def test_a_snapshot_takes_the_place_of_an_older_state_only() -> None:
    config = Config(voters=(PEER,))
    snapshot = Snapshot(index=Index(3), term=Term(1), config=config, size_bytes=0, checksum=0)
    at = Scripted(a=[InstallSnapshot(snapshot=snapshot)], b=[Commit(index=Index(4))])
    for event in "aba":
        at.driver.step(event)  # type: ignore[arg-type]
    wanted = ["step a", "restore 3", "step Applied3", "step b", "apply 4", "step Applied4", "step a"]
    assert at.story == wanted


def test_what_nobody_has_is_passed_over() -> None:
    at = Scripted(a=[Commit(index=Index(5))])

    def committed(first: Index, last: Index) -> list[int]:
        if first == 1:
            at.driver.pass_over(Index(3))
            return []
        return [first]

    at.driver._entries = committed
    at.driver.step("a")  # type: ignore[arg-type]
    assert at.story == ["step a", "apply 4", "apply 5", "step Applied5"]


def test_an_error_of_the_storage_goes_to_the_owner_who_may_raise_it() -> None:
    class Broken(StorageError):
        pass

    class Failing:
        def step(self, event: Tick) -> list[Any]:
            raise Broken("the disk is gone")

        def send(self, to: ReplicaId, body: PeerBody) -> None:
            """Nobody listens."""

    failing = Failing()
    heard: list[StorageError] = []

    def hear(error: StorageError) -> bool:
        heard.append(error)
        return len(heard) == 1

    driver: EffectDriver[Tick, Any] = EffectDriver(
        failing, network=failing, runners={}, on_storage_error=hear
    )
    assert driver.step(Tick()) == ()
    with pytest.raises(Broken):
        driver.step(Tick())
    assert len(heard) == 2 and not driver.is_stepping
