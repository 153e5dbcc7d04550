"""The log in memory and the log on disk never contradict each other, in whatever order writes finish."""

from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.replication.appending.log import MachineLog
from millrace.replication.contract import Config, Entry, EntryKind, HardState, Persist, Snapshot, checksum
from millrace.types import Index, Term
from unit.replication.cluster import DiskState

NOBODY = Config(voters=())


def entry(index: int, term: int) -> Entry:
    payload = f"{index}/{term}".encode()
    return Entry(term=Term(term), index=Index(index), kind=EntryKind.DATA, payload=payload)


class Rig:
    """A log over a disk whose writes finish when told; `is_eager`: the view shows them before."""

    def __init__(self, terms: list[int], is_eager: bool) -> None:
        self.view = DiskState(NOBODY)
        self.view.log = [entry(index, term) for index, term in enumerate(terms, 1)]
        self.durable = self.view.copy()
        self.is_eager = is_eager
        self.log = MachineLog(self.view)
        self.writes: list[Persist] = []
        self.number = 0

    def flush(self) -> Persist | None:
        write = self.log.take_writes(self.number + 1, 0, None)
        if write is not None:
            self.number += 1
            self.writes.append(write)
            if self.is_eager:
                self.view.apply(write, b"")
        return write

    def finish(self, count: int) -> None:
        done, self.writes = self.writes[:count], self.writes[count:]
        for write in done:
            self.durable.apply(write, b"")
            if not self.is_eager:
                self.view.apply(write, b"")
        if done:
            self.log.persisted(done[-1].number)

    def terms(self) -> list[int | None]:
        return [self.log.term(Index(index)) for index in range(1, self.log.last_index + 1)]


def test_entries_count_as_durable_only_when_their_write_is_reported() -> None:
    rig = Rig([1], is_eager=True)
    rig.log.append(Term(2), EntryKind.DATA, (b"a", b"b"))
    rig.flush()
    assert (rig.log.last_index, rig.log.durable) == (3, 1)
    rig.finish(1)
    assert rig.log.durable == 3


def test_a_late_report_of_a_truncated_write_makes_only_the_common_part_durable() -> None:
    """Write 1 holds 2..5 of term 1, write 2 replaces from 3 on; then write 1 is reported alone."""
    rig = Rig([1], is_eager=True)
    rig.log.merge([entry(index, 1) for index in (2, 3, 4, 5)])
    rig.flush()
    cut, fresh = rig.log.merge([entry(3, 2)])
    assert (cut, [each.index for each in fresh]) == (3, [3])
    rig.flush()
    rig.finish(1)
    assert rig.log.durable == 2
    assert rig.log.term(Index(3)) == 2
    rig.finish(1)
    assert rig.log.durable == 3


def test_an_append_that_says_nothing_new_changes_nothing() -> None:
    rig = Rig([1, 1, 1], is_eager=False)
    assert rig.log.merge([entry(1, 1), entry(2, 1)]) == (None, [])
    assert rig.log.last_index == 3
    assert rig.flush() is None


def test_truncation_below_what_is_durable_takes_it_back() -> None:
    rig = Rig([1, 1, 1], is_eager=False)
    rig.log.merge([entry(2, 2)])
    assert (rig.log.durable, rig.log.last_index, rig.log.last_term) == (1, 2, 2)
    write = rig.flush()
    assert write is not None and write.truncate_from == 2


def test_a_snapshot_replaces_the_log_and_is_durable_when_reported() -> None:
    rig = Rig([1, 1, 1], is_eager=False)
    snapshot = Snapshot(index=Index(7), term=Term(3), config=NOBODY, size_bytes=0, checksum=checksum(b""))
    rig.log.install(snapshot, commit=Index(2))
    rig.log.merge([entry(8, 3)])
    assert (rig.log.first_index, rig.log.last_index, rig.log.durable) == (8, 8, 2)
    assert rig.log.term(Index(7)) == 3
    assert rig.log.term(Index(3)) is None, "what the snapshot replaced is gone, whatever the view shows"
    assert not rig.log.entries(Index(2), Index(3), 1000)
    rig.flush()
    rig.finish(1)
    assert rig.log.durable == 8
    assert rig.log.first_index == 8


def test_entries_are_cut_by_bytes_but_never_to_nothing() -> None:
    rig = Rig([], is_eager=False)
    rig.log.append(Term(1), EntryKind.DATA, (b"x" * 10, b"y" * 10, b"z" * 100))
    assert [each.index for each in rig.log.entries(Index(1), Index(3), 20)] == [1, 2]
    assert [each.index for each in rig.log.entries(Index(3), Index(3), 20)] == [3]


def test_the_hint_is_the_last_place_that_can_match() -> None:
    rig = Rig([1, 1, 1, 4, 4, 5, 5, 6, 6], is_eager=False)
    assert rig.log.last_index_not_above(Index(9), Term(5)) == 7
    assert rig.log.last_index_not_above(Index(6), Term(9)) == 6
    assert rig.log.last_index_not_above(Index(9), Term(3)) == 3
    assert rig.log.last_index_not_above(Index(9), Term(0)) == 0


def test_hard_state_alone_is_a_write() -> None:
    rig = Rig([1], is_eager=False)
    write = rig.log.take_writes(1, 0, HardState(term=Term(5)))
    assert write is not None and write.entries == () and not write.is_barrier


actions = st.one_of(
    st.tuples(st.just("merge"), st.integers(1, 12), st.integers(1, 4)),
    st.tuples(st.just("finish"), st.integers(0, 3), st.just(0)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(actions, max_size=25), st.booleans())
def test_what_is_called_durable_is_on_disk_whatever_happened(
    steps: list[tuple[str, int, int]], is_eager: bool
) -> None:
    """Against a plain list as the model of the log."""
    rig = Rig([1, 1], is_eager)
    model = [entry(1, 1), entry(2, 1)]
    term = 1
    for verb, number, count in steps:
        if verb == "finish":
            rig.finish(number)
        else:
            term += 1  # each merge comes from a newer leader, so what it brings differs from what is there
            first = min(number, len(model) + 1)
            fresh = [entry(index, term) for index in range(first, first + count)]
            rig.log.merge(fresh)
            model = model[: first - 1] + fresh
            rig.flush()
        assert rig.terms() == [each.term for each in model]
        assert rig.log.last_term == model[-1].term
        durable = rig.log.durable
        assert rig.durable.log[:durable] == model[:durable]
        read = list(rig.log.entries(Index(1), rig.log.last_index, 1 << 20))
        assert read == model[: len(read)]
    rig.finish(len(rig.writes))
    assert rig.log.durable == len(model)
    assert rig.durable.log == model
