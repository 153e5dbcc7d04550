"""What is remembered outside of a log about how far it was on disk [rule 34]."""

from random import Random

from millrace.lab.sim.surroundings.disk import Keep, SimDisk
from millrace.storage.synced_end import LogEnd, SyncedEnd
from millrace.types import Index, Term

PATH = "/log/synced"


def new_disk(seed: int = 1) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.make_directory("/log")
    return disk


def end(index: int, term: int = 1) -> LogEnd:
    return LogEnd(Index(index), Term(term))


def noted(disk: SimDisk, *indexes: int) -> SyncedEnd:
    one = SyncedEnd(disk, PATH)
    for index in indexes:
        one.note(end(index))
    return one


def test_nothing_is_known_of_a_new_log() -> None:
    assert SyncedEnd(new_disk(), PATH).end is None


def test_the_last_note_counts_after_the_process_was_killed() -> None:
    disk = new_disk()
    noted(disk, 3, 9, 7)
    disk.kill()
    disk.mend()
    assert SyncedEnd(disk, PATH).end == end(7)


def test_a_loss_of_power_leaves_an_older_note_or_none() -> None:
    for seed in range(50):
        disk = new_disk(seed)
        noted(disk, *range(1, 20))
        disk.sync_directory("/log")
        disk.cut_power(Keep.SOME)
        disk.mend()
        found = SyncedEnd(disk, PATH).end
        assert found is None or found.index < 20


def test_a_place_that_was_torn_leaves_the_other_one() -> None:
    for bit in range(28 * 8):
        disk = new_disk()
        noted(disk, 5, 6)
        # The second note is in the first place.
        disk.flip_bit(PATH, bit)
        assert SyncedEnd(disk, PATH).end == end(5)


def test_a_log_that_is_cut_on_purpose_is_known_to_be_shorter_also_after_a_loss_of_power() -> None:
    disk = new_disk()
    one = noted(disk, 5, 9)
    disk.sync_directory("/log")
    one.lower(end(4))
    disk.cut_power(Keep.NOTHING)
    disk.mend()
    assert SyncedEnd(disk, PATH).end == end(4)


def test_a_cut_above_the_end_changes_nothing() -> None:
    disk = new_disk()
    noted(disk, 5).lower(end(8))
    assert SyncedEnd(disk, PATH).end == end(5)
