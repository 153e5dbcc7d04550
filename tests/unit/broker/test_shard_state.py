"""The replicated state of a shard, without a node: entries in, effects and bytes out."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.entries.consume import Ack, Consume, Create, Take
from millrace.broker.entries.shard import (
    SHARD_ENTRIES,
    BeginWork,
    Generation,
    GiveUp,
    Introduce,
    Marker,
    Members,
    PassOver,
    Progress,
    Repeated,
    Retain,
    Seal,
    Sealed,
    Settle,
    ShardEntry,
    Stage,
    Trim,
    WorkDone,
)
from millrace.broker.freezing import Parts, Pieces, finished
from millrace.broker.groups.cursor import Found, Scan, Settings
from millrace.broker.shards.block_facts import PLAIN, BlockFacts, RetainedValue, facts_of
from millrace.broker.shards.producers import Producers, Verdict
from millrace.broker.shards.retained_topics import SavedRetained
from millrace.broker.shards.shard_state import (
    AllRepeated,
    Answered,
    Consumed,
    MarkerReached,
    NotTaken,
    RetainedChanged,
    RetainedForgotten,
    RetainedRestored,
    SealReached,
    ShardEffect,
    ShardState,
    WorkChanged,
)
from millrace.broker.shards.staging import AttemptKey, Place, make_key
from millrace.kernels.blocks import Columns, Run, build_body, split_columns
from millrace.limits import PRODUCER_RANGES_MAX, RETAINED_DELETED_MAX
from unit.broker.test_freezing import Bytes

G = "$share/g/#"
PACKET = b"\x32\x06\0\1t\0\1x"
DELETION = b"\x32\x05\0\1t\0\1"


def columns_of(*runs: Run, key: bytes = b"") -> tuple[Columns, list[bytes]]:
    """The columns of a block of these runs, and its topics."""
    plain, coded, count, topics = build_body(runs, key)
    columns = split_columns(plain, b"".join(coded), count)
    return columns, [b"t"] * topics


def keyed(*sequences: int, producer: bytes = b"p") -> Columns:
    run = Run(packets=PACKET * len(sequences), version=4, producer=producer, sequences=sequences)
    return columns_of(run)[0]


def retained(*packets: bytes) -> BlockFacts:
    """Of a block of retained messages."""
    runs = [Run(packets=bytes((packet[0] | 1,)) + packet[1:], version=4) for packet in packets]
    return facts_of(*columns_of(*runs), 7)


class Log:
    """A log that is applied as it is written."""

    def __init__(self) -> None:
        self.state = ShardState(16)
        self.index = 0

    def entries(self, *entries: ShardEntry, time_us: int = 0) -> list[ShardEffect]:
        """One control block, through its bytes."""
        self.index += 1
        read = SHARD_ENTRIES.decode(SHARD_ENTRIES.encode(entries))
        assert read == list(entries)
        return [e for one in read for e in self.state.apply(one, index=self.index, time_us=time_us)]

    def messages(self, count: int = 1, facts: BlockFacts = PLAIN) -> list[ShardEffect]:
        self.index += 1
        next_offset = self.state.next_offset + count
        return self.state.apply_messages(facts, index=self.index, next_offset=next_offset)

    def columns(self, columns: Columns) -> list[ShardEffect]:
        return self.messages(len(columns.flags), facts_of(columns, [b"t"], 0))


def admitted(state: ShardState, columns: Columns, *others: Producers, is_sealed: bool = False) -> Any:
    found = state.admit(columns, others, is_sealed=is_sealed)
    return list(found) if isinstance(found, list | range) else found


# ------------------------------------------------------------------------------------------ duplicates


def test_a_message_is_let_in_once_whether_applied_or_on_its_way() -> None:
    log = Log()
    assert admitted(log.state, keyed(1, 2)) == [0, 1]
    assert admitted(log.state, keyed(2, 3)) == [1]
    log.columns(keyed(1, 2))
    assert admitted(log.state, keyed(1, 2)) == Repeated()
    log.state.withdraw(keyed(3))
    assert admitted(log.state, keyed(3)) == [0]


def test_a_key_that_a_block_has_twice_is_let_in_once() -> None:
    """A message and its repeat by another connection, in one turn of the loop."""
    assert admitted(ShardState(16), keyed(4, 4, 5)) == [0, 2]


def test_messages_without_a_key_go_in_beside_those_that_repeat() -> None:
    log = Log()
    log.columns(keyed(1))
    plain, again = (
        Run(packets=PACKET, version=4),
        Run(packets=PACKET, version=4, producer=b"p", sequences=(1,)),
    )
    assert admitted(log.state, columns_of(plain, again, plain)[0]) == [0, 2]
    assert admitted(log.state, columns_of(plain, plain)[0]) == [0, 1]


def test_what_is_too_old_to_tell_is_left_out() -> None:
    log = Log()
    for sequence in range(10, 12 + 2 * PRODUCER_RANGES_MAX, 2):
        log.columns(keyed(sequence))
    assert log.state.producers.judge(b"p", 5) is Verdict.TOO_OLD
    assert admitted(log.state, keyed(5)) == Repeated()


def test_a_token_of_a_session_may_be_in_another_log_and_a_key_of_a_client_not() -> None:
    other = Log()
    other.columns(keyed(5, producer=b"qos2/1/a"))
    other.columns(keyed(5, producer=b"key/p"))
    state = ShardState(17)
    assert (
        admitted(state, keyed(5, producer=b"qos2/1/a"), state.producers, other.state.producers) == Repeated()
    )
    assert admitted(state, keyed(5, producer=b"key/p"), other.state.producers) == [0]


def test_another_term_counts_what_is_applied_and_nothing_else() -> None:
    log = Log()
    assert admitted(log.state, keyed(1)) == [0]
    log.state.begin_term()
    assert admitted(log.state, keyed(1)) == [0]


# ----------------------------------------------------------------------------------- seals and trims


def test_a_log_that_is_being_sealed_takes_only_what_was_decided_before() -> None:
    log = Log()
    key = make_key("w", 0, "a", 0).encode()
    log.entries(Stage(key, "", 1, b"block"))
    assert admitted(log.state, keyed(1), is_sealed=True) == Sealed()
    released = columns_of(Run(packets=PACKET, version=4), key=key)[0]
    assert admitted(log.state, released, is_sealed=True) == [0]
    assert log.entries(Seal()) == [SealReached()] and log.state.is_finished


def test_a_trim_stays_within_the_log_and_never_goes_back() -> None:
    log = Log()
    log.messages(10)
    log.entries(Consume(1, {}, [Create(1, 0, Settings())]))
    assert log.entries(Trim(4)) == [Answered(result=None)]
    assert (log.state.start_offset, log.state.consumers.cursors[1].position) == (4, 4)
    log.entries(Trim(2))
    assert log.state.start_offset == 4
    log.entries(Trim(99))
    assert log.state.start_offset == 10


@pytest.mark.parametrize(
    ("entry", "effect"),
    [(Marker(), MarkerReached()), (Sealed(), NotTaken()), (Repeated(), AllRepeated())],
)
def test_an_entry_in_place_of_a_block_changes_nothing(entry: ShardEntry, effect: ShardEffect) -> None:
    log = Log()
    before = log.state.to_bytes([], {})
    assert log.entries(entry) == [effect]
    assert log.state.to_bytes([], {}) == before


# ------------------------------------------------------------------------------------------- retained


def test_retained_values_of_one_block_count_in_their_order() -> None:
    """As entries, and as messages: the last one has the last word, at the same index."""
    log = Log()
    log.entries(Generation(3))
    effects = log.entries(Retain("t", PACKET, 1, False, 5), Retain("t", DELETION, 1, False, 6))
    assert effects == [
        RetainedChanged(
            topic="t", value=RetainedValue(PACKET, 1, False, 5), is_empty=False, stamp=(3, 16, 2)
        ),
        RetainedChanged(
            topic="t", value=RetainedValue(DELETION, 1, False, 6), is_empty=True, stamp=(3, 16, 2)
        ),
    ]
    assert log.messages(2, retained(DELETION, PACKET)) == [
        RetainedChanged(
            topic="t", value=RetainedValue(DELETION, 1, False, 7), is_empty=True, stamp=(3, 16, 3)
        ),
        RetainedChanged(
            topic="t", value=RetainedValue(PACKET, 1, False, 7), is_empty=False, stamp=(3, 16, 3)
        ),
    ]
    assert log.state.retained.places == {"t": (3, 3)}


def test_a_value_that_is_carried_over_does_not_replace_what_the_log_has_said_since() -> None:
    """The topic was in this log, then in none, and came back with generation 3."""
    log = Log()
    carried = Retain("t", PACKET, 1, False, 5, carried_over=3)
    log.entries(Generation(1), Retain("t", DELETION, 1, False, 5))
    assert len(log.entries(Generation(3), carried)) == 1, "what it said before counts no more"
    assert log.entries(carried) == []
    log.entries(Generation(4), Retain("t", DELETION, 1, False, 5))
    assert log.entries(carried) == []
    assert len(log.entries(Retain("new", PACKET, 1, False, 5, carried_over=3))) == 1


def test_a_generation_never_goes_back() -> None:
    log = Log()
    log.entries(Generation(3), Generation(2), Retain("t", PACKET, 1, False, 5))
    assert log.state.retained.places == {"t": (3, 1)}


def test_the_oldest_deletion_is_forgotten() -> None:
    log = Log()
    log.entries(*(Retain(f"t{n}", DELETION, 1, False, 5) for n in range(RETAINED_DELETED_MAX)))
    assert log.entries(Retain("one", DELETION, 1, False, 5))[1:] == [RetainedForgotten(topic="t0")]


def test_what_is_for_an_edge_function_alone_is_not_retained() -> None:
    given = Run(packets=b"\x33" + PACKET[1:], version=4)
    made = given._replace(producer=b"edge/16/0", sequences=(1,))
    columns, topics = columns_of(given, made)
    assert len(facts_of(columns, topics, 0).retained) == 2
    (only,) = facts_of(columns, topics, 0, has_edge=True).retained
    assert only[0] == "t"


# ------------------------------------------------------------------------------- groups and staging


def test_operations_of_groups_give_their_results() -> None:
    log = Log()
    log.messages(3)
    scan = Scan(start=0, end=3, found=(Found(0), Found(1), Found(2)))
    (made, taken) = log.entries(
        Consume(1, {}, [Create(1, 0, Settings())]), Consume(2, {1: scan}, [Take(1, "", 2, 50)]), time_us=2
    )
    assert made == Consumed(results=[True], is_stirring=False, time_us=2)
    assert taken == Consumed(results=[[(0, 1), (1, 1)]], is_stirring=False, time_us=2)
    (done,) = log.entries(Consume(3, {}, [Ack(1, 0, [(0, 1), (1, 9)])]), time_us=3)
    assert done == Consumed(results=[[True, False]], is_stirring=False, time_us=3)


def test_leases_run_by_the_time_of_the_leader_not_by_that_of_who_asks() -> None:
    """[rule 37]: whoever proposes an entry may have a clock that is hours ahead."""
    log = Log()
    log.messages(1)
    scan = Scan(start=0, end=1, found=(Found(0),))
    log.entries(Consume(1, {}, [Create(1, 0, Settings())]), Consume(1, {1: scan}, [Take(1, "", 1, 50)]))
    (again,) = log.entries(Consume(9_000_000, {}, [Take(1, "", 1, 50)]), time_us=49)
    assert again == Consumed(results=[[]], is_stirring=False, time_us=49)
    (again,) = log.entries(Consume(9_000_000, {}, [Take(1, "", 1, 50)]), time_us=50)
    assert again == Consumed(results=[[(0, 2)]], is_stirring=False, time_us=50)


def test_the_work_of_shared_groups_is_divided_by_entries() -> None:
    log = Log()
    (joined,) = log.entries(Members(G, "a", 1, True))
    assert isinstance(joined, WorkChanged) and [news.joined for news in joined.news] == [{"a"}]
    log.messages(10)
    (moved,) = log.entries(Members(G, "b", 1, True))
    assert isinstance(moved, WorkChanged) and moved.news[0].granted == {}
    log.entries(WorkDone("a", [Progress(G, 0, 10, [(2, 4, "a")])]))
    (gone,) = log.entries(Members(G, "a", 0, False, is_gone=True))
    assert isinstance(gone, WorkChanged) and gone.news[0].granted == {"b": [(2, 4, "a")]}
    (begun,) = log.entries(BeginWork("b"))
    assert isinstance(begun, WorkChanged) and begun.begins and [news.group for news in begun.news] == [G]
    other = Log()
    (introduced,) = other.entries(Introduce([(G, log.state.work_division.holders(G))]))
    assert isinstance(introduced, WorkChanged) and introduced.news[0].joined == {"b"}


def test_a_staged_block_is_released_once_and_in_turn() -> None:
    log = Log()
    keys = [make_key("w", 0, "a", n).encode() for n in range(2)]
    for key in keys:
        assert log.entries(Stage(key, "me", 1, b"12345"), time_us=9) == [Answered(result=True)]
    assert log.entries(Stage(keys[0], "another", 1, b"12345")) == [Answered(result=False)]
    first, second = (columns_of(Run(packets=PACKET, version=4), key=key)[0] for key in keys)
    assert admitted(log.state, second) == Repeated()
    assert admitted(log.state, first) == [0] and admitted(log.state, first) == Repeated()
    log.columns(first)
    log.entries(PassOver(keys[1].decode()))
    assert log.state.staged.unreleased() == []
    log.entries(Stage(make_key("w", 0, "b", 0).encode(), "me", 1, b"12345"))
    log.entries(GiveUp([AttemptKey("w", 0, "b")]), Settle("w", 0))
    assert log.state.staged.attempts == {} and log.state.staged.settled == {"w": 0}


# ------------------------------------------------------------------------------------------ snapshots

# An entry, or the sequences of a keyed block, or how many plain messages.
step = st.one_of(
    st.integers(1, 5),
    st.lists(st.integers(0, 40), min_size=1, max_size=4).map(tuple),
    st.builds(Retain, st.sampled_from("tuv"), st.sampled_from((PACKET, DELETION)), st.just(1), st.just(False),
              st.integers(0, 9), st.integers(0, 5)),
    st.builds(Generation, st.integers(0, 5)),
    st.builds(Trim, st.integers(0, 30)),
    st.builds(Members, st.sampled_from((G, "$share/h/#")), st.sampled_from("abc"), st.integers(0, 2),
              st.booleans(), st.booleans()),
    st.builds(BeginWork, st.sampled_from("abc")),
    st.builds(lambda node, version, end: WorkDone(node, [Progress(G, version, end, [(0, end, node)])]),
              st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 20)),
    st.builds(lambda block, attempt: Stage(make_key("w", 1, attempt, block).encode(), "me", 2, b"123"),
              st.integers(0, 2), st.sampled_from("ab")),
    st.builds(lambda attempt: GiveUp([AttemptKey("w", 1, attempt)]), st.sampled_from("ab")),
    st.builds(Settle, st.just("w"), st.integers(0, 1)),
    st.builds(lambda now_us, count: Consume(now_us, {1: Scan(start=0, end=5, found=(Found(0), Found(3)))},
                                            [Create(1, 0, Settings()), Take(1, "", count, 10)]),
              st.integers(0, 50), st.integers(1, 3)),
    st.just(Seal()),
)  # fmt: skip


class Staged123:
    def bytes_at(self, place: Place) -> bytes:
        return b"123"


def saved_topics(state: ShardState) -> list[SavedRetained]:
    """Of a node that keeps a value for every topic that was not deleted."""
    value = RetainedValue(PACKET, 1, False, 0)
    deleted = state.retained._deleted
    places = sorted(state.retained.places.items())
    return [SavedRetained(topic, *place, None if topic in deleted else value) for topic, place in places]


def saved(state: ShardState) -> bytes:
    """The bytes of the state of such a node."""
    return state.to_bytes(saved_topics(state), {place.index: b"123" for place in state.staged.unreleased()})


@settings(max_examples=200, deadline=None)
@given(history=st.lists(step, max_size=30), cut=st.integers(0, 30))
def test_a_state_from_a_snapshot_goes_on_like_one_that_applied_everything(
    history: list[Any], cut: int
) -> None:
    """Also in what it lets in, and in the effects that follow."""
    whole, resumed = Log(), Log()
    for at, one in enumerate(history):
        if at == cut:
            (effect,) = resumed.state.restore(saved(whole.state))
            assert isinstance(effect, RetainedRestored)
            assert {row.topic for row in effect.rows} == whole.state.retained.places.keys()
            resumed.index = whole.index
        for log in (whole, resumed) if at >= cut else (whole,):
            log.effects = (  # type: ignore[attr-defined]
                log.messages(one)
                if isinstance(one, int)
                else log.columns(keyed(*one))
                if isinstance(one, tuple)
                else log.entries(one, time_us=at)
            )
        if at >= cut:
            assert resumed.effects == whole.effects  # type: ignore[attr-defined]
    if len(history) > cut:
        assert saved(resumed.state) == saved(whole.state)
        for sequence in range(42):
            assert admitted(resumed.state, keyed(sequence)) == admitted(whole.state, keyed(sequence))


def test_a_snapshot_takes_away_what_it_does_not_know() -> None:
    ahead, behind = Log(), Log()
    behind.entries(Retain("t", PACKET, 1, False, 5))
    (effect,) = behind.state.restore(saved(ahead.state))
    assert effect == RetainedRestored(rows=[], gone=["t"])


def applied(log: Log, history: list[Any]) -> None:
    for at, one in enumerate(history):
        if isinstance(one, int):
            log.messages(one)
        elif isinstance(one, tuple):
            log.columns(keyed(*one))
        else:
            log.entries(one, time_us=at)


@settings(max_examples=200, deadline=None)
@given(
    before=st.lists(step, min_size=5, max_size=30),
    after=st.lists(step, min_size=5, max_size=30),
    steps=st.integers(0, 5),
    rows_at_once=st.integers(1, 3),
)
def test_a_snapshot_is_the_state_of_its_entry_whatever_is_applied_while_it_is_encoded(
    before: list[Any], after: list[Any], steps: int, rows_at_once: int
) -> None:
    """Read back in parts it is that state too."""
    log, pieces = Log(), Pieces(rows_at_once)
    applied(log, before)
    wanted = saved(log.state)
    frozen = log.state.freeze(saved_topics(log.state), Staged123())
    encoding = frozen.encode(pieces)
    for _ in range(steps):
        next(encoding, None)
    applied(log, after)
    finished(encoding)
    frozen.end()
    assert pieces.joined() == wanted
    parts = Parts(pieces.parts, Bytes(pieces.joined()))
    finished(parts.read())
    resumed = ShardState(log.state.number)
    finished(resumed.load(parts.skeleton, parts.rows()))
    assert saved(resumed) == wanted
