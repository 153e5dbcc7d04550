"""Work division: every offset has one owner, and what a node owed stays owed until it is done."""

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.broker.groups.work_division import Range, SavedGroup, WorkDivision

G = "$share/g/#"


def owner(work_division: WorkDivision, group: str, offset: int) -> str | None:
    """The one node whose turn it is."""
    found = [node for node in work_division.nodes() if work_division.turns(group, node, offset, offset + 1)]
    assert len(found) < 2
    return found[0] if found else None


def offsets(work_division: WorkDivision, ranges: list[Range]) -> set[int]:
    return {o for first, end, by in ranges for o in range(first, end) if work_division.is_of(G, o, by)}


def restored(work_division: WorkDivision) -> WorkDivision:
    """Through the bytes of a snapshot."""
    saved = msgspec.msgpack.encode(list(work_division.freeze().rows()))
    return WorkDivision.restored(msgspec.msgpack.decode(saved, type=list[SavedGroup]))


def test_turns_are_in_proportion_to_members() -> None:
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.put(G, "b", 3, True, offset=0)
    owners = [owner(work_division, G, offset) for offset in range(400)]
    assert (owners.count("a"), owners.count("b")) == (100, 300)
    assert owner(work_division, "$share/other/#", 0) is None


def test_a_lost_node_leaves_what_it_owed_to_those_with_members() -> None:
    """Named as open, and everything of its turns since it last told; not what others had."""
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.put(G, "b", 1, True, offset=0)
    mark = work_division.mark(G, "a")
    assert mark is not None
    work_division.done(G, "a", mark.version, 100, [(40, 41, "a"), (60, 65, "a")])
    news = work_division.put(G, "a", 0, False, offset=120, is_gone=True)
    assert news.released == {"a"} and list(news.granted) == ["b"]
    due = offsets(work_division, news.granted["b"])
    assert due == {40, 60, 62, 64, *range(100, 120, 2)}
    assert {owner(work_division, G, offset) for offset in range(120, 130)} == {"b"}


def test_a_word_from_before_a_change_is_not_believed() -> None:
    """The node did not know yet what it had been granted: it would have said that it owes nothing."""
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.put(G, "b", 1, True, offset=0)
    mark = work_division.mark(G, "b")
    assert mark is not None
    version = mark.version
    work_division.put(G, "a", 0, False, offset=10, is_gone=True)
    work_division.done(G, "b", version, 10, [])
    assert offsets(work_division, mark.owed) == {0, 2, 4, 6, 8}
    work_division.done(G, "b", mark.version, 10, [])
    assert mark.owed == []


def test_a_node_without_members_gives_way_to_one_with() -> None:
    """It kept for an absent member what came while nobody was there; who comes elsewhere gets it."""
    work_division = WorkDivision()
    work_division.put(G, "a", 0, True, offset=0)
    assert owner(work_division, G, 5) == "a"
    news = work_division.put(G, "b", 1, True, offset=10)
    assert news.released == {"a"}
    assert offsets(work_division, news.granted["b"]) == set(range(10))


def test_a_new_run_owes_what_the_last_one_had_given_out() -> None:
    work_division = WorkDivision()
    work_division.put(G, "a", 2, True, offset=0)
    (news,) = work_division.begin("a", offset=7)
    assert offsets(work_division, news.granted["a"]) == set(range(7))
    assert work_division.known(G, "a") == (0, True)
    work_division.put(G, "b", 1, True, offset=7)
    (news,) = work_division.begin("a", offset=9)
    assert "a" not in news.granted


def test_what_a_lost_node_owed_waits_for_its_successor_but_not_for_ever() -> None:
    for late_us, due in ((1_000_000, set(range(20))), (3_600_000_000, set())):
        work_division = WorkDivision()
        work_division.put(G, "a", 1, True, offset=0)
        work_division.put(G, "a", 0, False, offset=10, time_us=5, is_gone=True)
        news = work_division.put(G, "b", 1, True, offset=20, time_us=5 + late_us)
        assert offsets(work_division, news.granted.get("b", [])) == due


def test_what_a_lost_node_owed_waits_for_sessions_that_hold_the_group_however_long() -> None:
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.put(G, "a", 0, False, offset=10, time_us=5, is_gone=True)
    news = work_division.put(G, "b", 1, True, offset=20, time_us=3_600_000_000, is_held=True)
    assert offsets(work_division, news.granted["b"]) == set(range(20))


def test_what_comes_while_a_lost_node_has_no_successor_is_its_successors() -> None:
    """Also where the lost node was through with everything, and after a snapshot: nobody may deliver it in
    between, or it would come twice."""
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.done(G, "a", 0, 10, [])
    work_division.put(G, "a", 0, False, offset=10, is_gone=True)
    assert not work_division.is_owed(G, 10) and work_division.is_owed(G, 11)
    assert work_division.turns(G, "b", 10, 15) == []
    work_division = restored(work_division)
    news = work_division.put(G, "b", 1, True, offset=15)
    assert offsets(work_division, news.granted["b"]) == set(range(10, 15))
    assert work_division.turns(G, "b", 15, 20) == [(15, 20)]


def test_a_group_whose_last_member_leaves_is_over() -> None:
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.put(G, "a", 0, False, offset=10)
    assert work_division.groups() == []
    assert work_division.put(G, "b", 1, True, offset=20).granted == {}


def test_a_group_that_nobody_took_over_in_time_is_forgotten() -> None:
    """Its name would be in every snapshot, and in every newer log, for ever."""
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.put(G, "a", 0, False, offset=10, time_us=5, is_gone=True)
    work_division.put(G, "b", 0, False, offset=20, time_us=5 + 60_000_000)
    work_division.put(G, "b", 0, False, offset=20, time_us=5 + 60_000_001, is_gone=True)
    assert work_division.groups() == [G]
    work_division.put(G, "b", 0, False, offset=20, time_us=5 + 60_000_001)
    assert work_division.groups() == [] and list(work_division.freeze().rows()) == []


def test_a_newer_log_begins_with_who_holds_the_group_in_the_others() -> None:
    """Its first messages are somebody's, though no node has spoken there. A lost one leaves its part."""
    older, work_division = WorkDivision(), WorkDivision()
    older.put(G, "a", 1, True, offset=50)
    older.put(G, "b", 1, True, offset=60)
    work_division.inherit(G, older.holders(G), offset=0, time_us=0)
    assert [owner(work_division, G, offset) for offset in range(4)] == ["a", "b", "a", "b"]
    news = work_division.put(G, "a", 0, False, offset=4, is_gone=True)
    assert offsets(work_division, news.granted["b"]) == {0, 2}
    # From another node, after its members spoke for themselves.
    work_division.inherit(G, {"a": (1, True)}, offset=4, time_us=0)
    assert work_division.known(G, "a") == (0, False)


def test_a_newer_log_knows_that_a_group_waits_for_a_successor() -> None:
    older, work_division = WorkDivision(), WorkDivision()
    older.put(G, "a", 1, True, offset=0)
    older.put(G, "a", 0, False, offset=9, is_gone=True)
    work_division.inherit(G, older.holders(G), offset=0, time_us=0)
    assert work_division.turns(G, "b", 0, 3) == []
    work_division = restored(work_division)
    news = work_division.put(G, "b", 1, True, offset=3)
    assert offsets(work_division, news.granted["b"]) == {0, 1, 2}


def test_ranges_join_over_the_turns_of_others() -> None:
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.put(G, "b", 1, True, offset=0)
    assert work_division.ranges(G, [(0, 1), (2, 3), (4, 5), (10, 11)], "a") == [(0, 5, "a"), (10, 11, "a")]


def test_a_snapshot_holds_all_of_it() -> None:
    work_division = WorkDivision()
    work_division.put(G, "a", 1, True, offset=0)
    work_division.put(G, "b", 2, True, offset=3)
    work_division.put(G, "a", 0, False, offset=9, is_gone=True)
    again = restored(work_division)
    assert list(again.freeze().rows()) == list(work_division.freeze().rows())
    assert [owner(again, G, o) for o in range(20)] == [owner(work_division, G, o) for o in range(20)]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_owed_by_nobody(seed: int) -> None:
    """Nodes come, tell, go, are lost and begin anew in any order: what nobody has acknowledged is owed by
    some node, as long as one holds the group."""
    rng = Random(seed)
    work_division, acknowledged, offset = WorkDivision(), set(), 0
    work_division.put(G, "keeper", 0, True, offset=0)
    owner_of: dict[int, str] = {}
    for _ in range(60):
        node = rng.choice(["a", "b", "c"])
        match rng.randrange(6):
            case 0 | 1:
                for _ in range(rng.randrange(20)):
                    whose = owner(work_division, G, offset)
                    assert whose is not None
                    owner_of[offset] = whose
                    offset += 1
            case 2:
                work_division.put(G, node, rng.randrange(3), True, offset=offset)
            case 3:
                work_division.put(G, node, 0, False, offset=offset, is_gone=rng.random() < 0.5)
            case 4:
                work_division.begin(node, offset=offset)
            case 5:
                mark = work_division.mark(G, node)
                if mark is None:
                    continue
                mine = offsets(work_division, [*mark.owed, (mark.position, offset, node)])
                done = {o for o in mine if rng.random() < 0.5}
                acknowledged |= done
                pieces = [(o, o + 1) for o in mine - done]
                work_division.done(G, node, mark.version, offset, work_division.ranges(G, pieces, node))
    owed: set[int] = set()
    for node in ("a", "b", "c", "keeper"):
        mark = work_division.mark(G, node)
        if mark is not None:
            owed |= offsets(work_division, [*mark.owed, (mark.position, offset, node)])
    assert set(owner_of) - acknowledged <= owed
