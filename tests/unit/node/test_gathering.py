"""Which arrivals wait a moment for more of their kind, in virtual time."""

from collections.abc import Callable

from millrace.broker.messages.intake import LEISURE_MS, Intake
from millrace.broker.messages.message import Run
from millrace.node.gathering import Gathering
from unit.node.house import House
from unit.node.stand_ins import IntakesBy

PACKET = b"\x32\x06\0\1t\0\1x"
GATHER_US = 2_000


class Timer:
    def __init__(self, due_us: int, call: Callable[[], None]) -> None:
        self.due_us = due_us
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Fleet:
    """Devices that publish at their own pace, and the end of each turn of the loop."""

    def __init__(self) -> None:
        self.now_us = 1_000_000
        self.waiting: list[int] = []
        self.blocks: list[int] = []
        """How many messages each had."""
        self.waits_us: list[int] = []
        self._timers: list[Timer] = []
        self.gathering = Gathering(self.end_turn, self._call_later)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self._timers.append(Timer(self.now_us + round(delay_s * 1_000_000), call))
        return self._timers[-1]

    def pass_time(self, to_us: int) -> None:
        for timer in sorted(self._timers, key=lambda one: one.due_us):
            if timer.due_us <= to_us:
                self._timers.remove(timer)
                self.now_us = timer.due_us
                if not timer.is_cancelled:
                    timer.call()
        self.now_us = to_us

    def publish(self, *, is_urgent: bool = False) -> None:
        self.waiting.append(self.now_us)
        self.end_turn(is_urgent=is_urgent)

    def end_turn(self, *, is_urgent: bool = False) -> None:
        if not self.gathering.holds(len(self.waiting), self.now_us, is_urgent=is_urgent):
            self.blocks.append(len(self.waiting))
            self.waits_us += [self.now_us - one for one in self.waiting]
            self.waiting.clear()

    def publish_every(self, gap_us: int, count: int) -> None:
        for _ in range(count):
            self.publish()
            self.pass_time(self.now_us + gap_us)
        self.pass_time(self.now_us + GATHER_US)


def test_many_devices_share_a_block_and_none_waits_longer_than_its_bound() -> None:
    fleet = Fleet()
    fleet.publish_every(500, 400)
    assert sum(fleet.blocks) == 400
    assert set(fleet.blocks[50:-1]) <= {4, 5}, fleet.blocks
    assert max(fleet.waits_us) <= GATHER_US


def test_who_is_one_of_few_does_not_wait() -> None:
    fleet = Fleet()
    fleet.publish_every(1_500, 200)
    assert fleet.blocks == [1] * 200
    assert max(fleet.waits_us) == 0


def test_whoever_waits_for_an_answer_takes_along_what_is_there() -> None:
    fleet = Fleet()
    fleet.publish_every(500, 100)
    fleet.publish()
    fleet.publish()
    assert len(fleet.waiting) == 2
    fleet.publish(is_urgent=True)
    assert fleet.blocks[-1] == 3
    fleet.publish()
    assert fleet.blocks[-1] == 3, "the next one waits"
    before = len(fleet.blocks)
    fleet.pass_time(fleet.now_us + GATHER_US - 1)
    assert len(fleet.blocks) == before, "for its own time: the timer of those that left is not its"
    fleet.pass_time(fleet.now_us + 1)
    assert fleet.blocks[-1] == 1


def test_a_pause_is_forgotten_soon() -> None:
    fleet = Fleet()
    fleet.publish_every(200, 100)
    fleet.pass_time(fleet.now_us + 60_000_000)
    before = len(fleet.blocks)
    fleet.publish_every(200, 200)
    assert max(fleet.blocks[before:]) >= 10
    assert fleet.blocks[before:].count(1) < 40


def test_a_large_number_goes_at_once() -> None:
    fleet = Fleet()
    fleet.publish_every(1, 1_000)
    assert max(fleet.blocks) == 256


def test_only_a_client_that_was_silent_may_wait() -> None:
    """Nor does anything that comes in another way than in a run of a leisurely client."""
    house, intake = House(), Intake(16, False)
    broker = house.broker
    broker.router.intakes = IntakesBy(lambda topic: intake)
    house.connect("device")
    session = broker.sessions["device"]
    route = broker.router.route("t")
    inbound = broker.inbound

    def publish(pause_ms: int) -> bool:
        inbound.publish_runs(session, 0x32, route, PACKET, 1, 0, pause_ms)
        return inbound.is_urgent

    assert not publish(LEISURE_MS)
    assert not broker.has_work, "the loop would turn without end"
    assert publish(LEISURE_MS - 1)
    assert broker.has_work
    assert inbound.take_waiting() == [intake]
    intake.arrivals.clear()
    assert not publish(LEISURE_MS)
    assert inbound.waiting_count == 1
    inbound.accept(session, "t", Run(PACKET, 1, 1, False), 1, 0)
    assert inbound.is_urgent


def test_a_log_with_deadlines_lets_nobody_wait() -> None:
    house, intake = House(), Intake(16, False)
    intake.gathers = False
    house.broker.router.intakes = IntakesBy(lambda topic: intake)
    house.connect("device")
    session, route = house.broker.sessions["device"], house.broker.router.route("t")
    house.broker.inbound.publish_runs(session, 0x32, route, PACKET, 1, 0, LEISURE_MS)
    assert house.broker.inbound.is_urgent
