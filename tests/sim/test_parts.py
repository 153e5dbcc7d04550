"""The simulated machine itself: time, links, disk and state do what the world's checkers rely on."""

import random

import pytest

from millrace.errors import LocalError
from millrace.lab.sim.raft.plan import make_plan
from millrace.lab.sim.raft.state import State, encode_batch
from millrace.lab.sim.surroundings.clock import Clock
from millrace.lab.sim.surroundings.log_disk import LogDisk
from millrace.lab.sim.surroundings.network import Network, Weather
from millrace.lab.sim.violation import Violation
from millrace.replication.contract import (
    NO_INDEX,
    Config,
    ConfigAt,
    Entry,
    EntryKind,
    HardState,
    Persist,
    ReplicaId,
    Snapshot,
    checksum,
)
from millrace.types import Index, Term

CONFIG = Config(voters=(ReplicaId("a1"),))


def disk(seed: int = 1, *, shows_written: bool = True) -> LogDisk:
    first = ConfigAt(index=NO_INDEX, config=CONFIG)
    return LogDisk(first_config=first, rng=random.Random(seed), shows_written=shows_written, cold_rate=0.0)


def entry(index: int, term: int = 1, payload: bytes = b"x") -> Entry:
    return Entry(term=Term(term), index=Index(index), kind=EntryKind.DATA, payload=payload)


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(entry(index, term) for index in range(first, last + 1))


# ------------------------------------------------------------------------------------------------ clock


def test_calls_run_by_time_and_then_in_the_order_of_scheduling() -> None:
    clock = Clock(calls_max=10)
    seen: list[str] = []
    clock.after(5, seen.append, "late")
    clock.after(1, seen.append, "first")
    clock.after(1, seen.append, "second")
    assert clock.run(10) is False
    assert seen == ["first", "second", "late"]
    assert clock.now_us == 10


def test_a_world_that_never_ends_is_stopped() -> None:
    clock = Clock(calls_max=100)

    def again() -> None:
        clock.after(0, again)

    again()
    with pytest.raises(LocalError, match="does not end"):
        clock.run(1)


# ---------------------------------------------------------------------------------------------- network


class Post:
    def __init__(self, weather: Weather) -> None:
        self.clock = Clock(calls_max=10_000)
        self.got: list[tuple[str, str, int]] = []
        self.network = Network(
            clock=self.clock,
            rng=random.Random(7),
            weather=weather,
            deliver=lambda sender, to, body: self.got.append((sender, to, body)),
        )

    def run(self) -> list[tuple[str, str, int]]:
        self.clock.run(self.clock.now_us + 10_000_000)
        got, self.got = self.got, []
        return got


def test_a_link_in_order_keeps_the_order_and_one_that_is_not_does_not() -> None:
    numbers = list(range(50))
    for in_order in (True, False):
        post = Post(Weather(in_order=in_order))
        for number in numbers:
            post.network.send("a", "b", number)
        received = [body for _, _, body in post.run()]
        assert sorted(received) == numbers
        assert (received == numbers) is in_order


def test_links_lose_and_double_at_their_rates() -> None:
    post = Post(Weather(drop_rate=0.5, double_rate=0.5))
    for number in range(400):
        post.network.send("a", "b", number)
    received = [body for _, _, body in post.run()]
    assert 120 < len(set(received)) < 280
    assert len(received) > len(set(received)) + 40


def test_a_one_way_block_stops_one_direction_also_for_what_is_under_way() -> None:
    post = Post(Weather())
    post.network.send("a", "b", 1)
    post.network.block(["a"], ["b", "a"])
    post.network.send("a", "b", 2)
    post.network.send("b", "a", 3)
    assert post.run() == [("b", "a", 3)]
    post.network.heal()
    post.network.send("a", "b", 4)
    assert post.run() == [("a", "b", 4)]


def test_what_is_held_arrives_at_the_release_even_across_a_later_cut() -> None:
    post = Post(Weather())
    post.network.hold(["a"], ["b"])
    post.network.send("a", "b", 1)
    post.network.send("b", "a", 2)
    assert post.run() == [("b", "a", 2)]
    post.network.split(["a"], ["b"])
    post.network.release()
    post.network.send("a", "b", 3)
    assert post.run() == [("a", "b", 1)]


def test_unblocking_some_leaves_the_others_cut_off() -> None:
    post = Post(Weather())
    post.network.split(["a", "b"], ["c"])
    post.network.split(["a"], ["b"])
    post.network.unblock(["a", "b"], ["a", "b"])
    for to in ("b", "c"):
        post.network.send("a", to, 1)
    assert post.run() == [("a", "b", 1)]


# ------------------------------------------------------------------------------------------------- disk


def test_a_crash_keeps_what_was_synced_and_some_prefix_of_the_rest() -> None:
    """Over many crashes every prefix of an unfinished write occurs and nothing else does."""
    seen = set()
    for seed in range(200):
        one = disk(seed)
        one.write(Persist(number=1, entries=entries(1, 3)))
        one.sync(1)
        one.write(
            Persist(
                number=2,
                hard_state=HardState(term=Term(2)),
                truncate_from=Index(3),
                entries=entries(3, 5, term=2),
            )
        )
        one.crash()
        image = one.durable
        seen.add((image.hard_state.term, tuple((each.index, each.term) for each in image.entries)))
        assert one.last_index() == image.last
    old, kept = (1, 1), (2, 1)
    assert seen == {
        (0, (old, kept, (3, 1))),
        (2, (old, kept, (3, 1))),
        (2, (old, kept)),
        (2, (old, kept, (3, 2))),
        (2, (old, kept, (3, 2), (4, 2))),
        (2, (old, kept, (3, 2), (4, 2), (5, 2))),
    }


def test_the_view_shows_the_image_the_seed_chose() -> None:
    for shows_written, last in ((True, 3), (False, 0)):
        one = disk(shows_written=shows_written)
        one.write(Persist(number=1, entries=entries(1, 3)))
        assert one.last_index() == last
        one.sync(1)
        assert one.last_index() == 3


def test_reads_are_cut_by_bytes_but_give_at_least_one_entry() -> None:
    one = disk()
    one.write(Persist(number=1, entries=tuple(entry(index, payload=b"12345678") for index in range(1, 5))))
    assert [each.index for each in one.entries(Index(1), Index(4), 1)] == [1]
    assert [each.index for each in one.entries(Index(2), Index(4), 16)] == [2, 3]
    assert [each.index for each in one.entries(Index(2), Index(3), 999)] == [2, 3]


def snapshot_at(index: int, data: bytes) -> Snapshot:
    return Snapshot(
        index=Index(index), term=Term(1), config=CONFIG, size_bytes=len(data), checksum=checksum(data)
    )


def test_compaction_stays_below_the_snapshot_and_remembers_the_term_at_the_edge() -> None:
    one = disk()
    one.write(Persist(number=1, entries=entries(1, 9)))
    one.sync(1)
    one.put_snapshot(snapshot_at(5, b"state"), b"state")
    one.compact(8)
    assert (one.first_index(), one.last_index()) == (6, 9)
    assert one.term(Index(5)) == 1
    assert one.term(Index(4)) is None
    assert one.entries(Index(5), Index(9), 99) == ()


def test_a_received_snapshot_replaces_the_log_only_with_all_its_bytes() -> None:
    one = disk()
    one.write(Persist(number=1, entries=entries(1, 3)))
    snapshot = snapshot_at(20, b"abcdef")
    one.stage(snapshot, 0, b"abc")
    with pytest.raises(Violation, match="without all of its bytes"):
        one.write(Persist(number=2, snapshot=snapshot))
    one.stage(snapshot, 3, b"def")
    one.write(Persist(number=2, snapshot=snapshot, entries=entries(21, 22)))
    one.sync(2)
    assert (one.first_index(), one.last_index()) == (21, 22)
    assert one.latest_bytes() == b"abcdef"
    assert one.initial_state().applied == 20


def test_damage_cuts_the_log_and_is_remembered() -> None:
    one = disk()
    one.write(Persist(number=1, hard_state=HardState(term=Term(4)), entries=entries(1, 30, term=3)))
    one.sync(1)
    assert one.lose_range()
    damage = one.initial_state().damage
    assert damage is not None
    assert (damage.last_index, damage.term) == (30, 4)
    assert one.last_index() < 30


def test_a_gap_in_the_log_is_refused() -> None:
    one = disk()
    with pytest.raises(Violation, match="appended to a log that ends at 0"):
        one.write(Persist(number=1, entries=entries(2, 3)))


# ------------------------------------------------------------------------------------------------ state


def batch(index: int, client: int, sequence: int, keys: list[int]) -> Entry:
    return entry(index, payload=encode_batch(client, sequence, keys))


def test_a_repeated_operation_changes_nothing_and_a_partly_repeated_batch_only_its_new_part() -> None:
    state = State()
    state.apply(batch(1, 7, 1, [0, 1]))
    state.apply(batch(2, 7, 1, [0, 1]))
    state.apply(batch(3, 7, 2, [1, 2, 2]))
    assert state.offset == 4
    assert state.versions[:3] == [1, 1, 2]
    assert state.sessions == {7: 4}


def test_a_gap_in_a_client_s_sequence_is_a_loss() -> None:
    state = State()
    state.apply(batch(1, 7, 1, [0]))
    with pytest.raises(Violation, match="acknowledged lost"):
        state.apply(batch(2, 7, 3, [0]))


def test_an_index_is_applied_once_and_none_is_skipped() -> None:
    state = State()
    state.apply(batch(1, 7, 1, [0]))
    for wrong in (1, 3):
        with pytest.raises(Violation, match="apply order"):
            state.apply(batch(wrong, 7, 2, [0]))


def test_a_state_comes_back_from_its_bytes() -> None:
    state = State()
    state.apply(batch(1, 9, 1, [3, 4]))
    state.apply(batch(2, 2, 1, [3]))
    twin = State.decode(state.encode())
    assert twin.encode() == state.encode()
    twin.apply(batch(3, 9, 3, [1]))
    state.apply(batch(3, 9, 3, [1]))
    assert twin.chain == state.chain


# ------------------------------------------------------------------------------------------------- plan


def test_plans_differ_and_cover_every_size_and_kind() -> None:
    plans = [make_plan(seed) for seed in range(400)]
    assert {plan.voters for plan in plans} == {1, 2, 3, 4, 5}
    assert 0.05 < sum(plan.is_calm for plan in plans) / len(plans) < 0.25
    kinds = {kind for plan in plans for kind in plan.faults}
    assert {"split", "one way", "bridge", "power loss", "fsync error", "damage", "wipe", "transfer"} <= kinds
