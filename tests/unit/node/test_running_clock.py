"""The time of a node runs evenly, whatever is done to the clock of its machine [rule 37]."""

import pytest

from millrace.limits import STAMP_LEAD_US_MAX
from millrace.node.replicas.admission import Admission
from millrace.node.replicas.app import Pending
from millrace.node.running_clock import RunningClock
from millrace.replication.contract import EntryKind
from millrace.storage.block import Kind, opaque_block, parse_block

S = 1_000_000
HOUR = 3_600 * S
BEGIN = 1_800_000_000 * S


class Machine:
    """Its clocks are turned by hand."""

    def __init__(self) -> None:
        self.running = 0
        self.off = 0

    def wall_us(self) -> int:
        return BEGIN + self.running + self.off

    def running_us(self) -> int:
        return self.running

    def clock(self) -> RunningClock:
        return RunningClock(self.wall_us, self.running_us)


def test_a_clock_that_is_set_hours_ahead_and_back_moves_it_by_a_twentieth_of_the_time_between() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.off = 2 * HOUR
    for _ in range(60):
        machine.running += S
        clock()
    assert clock() == BEGIN + 63 * S
    machine.off = 0
    for _ in range(600):
        machine.running += S
        clock()
    assert clock() == BEGIN + 660 * S


def test_it_never_goes_back_and_follows_a_clock_that_is_behind() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.off = -S
    seen = []
    for _ in range(30):
        machine.running += S
        seen.append(clock())
    assert seen == sorted(seen) and seen[-1] == BEGIN + 29 * S


@pytest.mark.parametrize("ahead_s", [-1, 1])
def test_asked_many_times_in_a_millisecond_it_looks_at_the_wall_clock_once(ahead_s: int) -> None:
    """And goes on as it does when it is asked rarely, and never back."""
    machine = Machine()
    looks = 0

    def wall_us() -> int:
        nonlocal looks
        looks += 1
        return machine.wall_us()

    clock = RunningClock(wall_us, machine.running_us)
    machine.off = ahead_s * S
    seen = []
    for _ in range(100_000):
        machine.running += 7
        seen.append(clock())
    assert seen == sorted(seen)
    passed = 7 * 100_000
    assert seen[-1] == pytest.approx(BEGIN + passed + ahead_s * passed // 20, abs=500)
    assert looks <= passed // 1_000 + 2


def test_a_jump_is_told_once() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.look() is None
    machine.off = 2 * HOUR
    assert "7200.0 s ahead of" in str(clock.look())
    assert clock.look() is None
    machine.off = 0
    assert clock.look() is None
    machine.off = -2 * HOUR
    assert "7200.0 s behind" in str(clock.look())


# ------------------------------------------------------------------------------------------- in a log


class Log:
    """What a leader takes, and the times it gave them."""

    def __init__(self, machine: Machine) -> None:
        self.times: list[int] = []
        self.admission = Admission(
            None,  # type: ignore[arg-type]
            self._append,
            lambda: True,
            machine.wall_us,
            machine.running_us,
        )
        self.sequence = 0

    def _append(self, payloads: tuple[bytes, ...], kind: EntryKind) -> bool:
        self.times += [parse_block(payload).header.base_time_us for payload in payloads]
        return True

    def take(self, time_us: int, kind: EntryKind) -> int:
        self.sequence += 1
        block = opaque_block(Kind.CONTROL, b"{}").timed(time_us).offered(origin=5, sequence=self.sequence)
        assert self.admission.take([Pending(block, kind, None, False)])
        return self.times[-1]


def test_a_stamp_leads_the_leader_by_no_more_than_a_bound() -> None:
    machine = Machine()
    log = Log(machine)
    log.admission.begin_term()
    for kind in (EntryKind.DATA, EntryKind.CONTROL):
        assert log.take(BEGIN + 2 * HOUR, kind) == BEGIN + STAMP_LEAD_US_MAX
    machine.running += 2 * S
    assert log.take(BEGIN + 2 * S, EntryKind.DATA) == BEGIN + 2 * S


def test_a_message_that_waited_keeps_its_time_and_everything_else_gets_that_of_the_leader() -> None:
    machine = Machine()
    log = Log(machine)
    log.admission.begin_term()
    machine.running += HOUR
    assert log.take(BEGIN + S, EntryKind.DATA) == BEGIN + S
    assert log.take(BEGIN + S, EntryKind.CONTROL) == BEGIN + HOUR


def test_the_time_of_a_log_that_is_ahead_of_its_new_leader_goes_on() -> None:
    """Leases that stand in the log end in their time: a log whose time stood still would hold them until the
    clock of the leader has come that far."""
    machine = Machine()
    log = Log(machine)
    log.admission.time_us = BEGIN + 2 * HOUR
    log.admission.begin_term()
    machine.running += 100 * S
    assert log.take(machine.wall_us(), EntryKind.CONTROL) == BEGIN + 2 * HOUR + 95 * S


def test_a_group_that_keeps_no_time_is_left_alone() -> None:
    log = Log(Machine())
    log.admission.begin_term()
    assert log.take(0, EntryKind.CONTROL) == 0
