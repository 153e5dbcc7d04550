"""The simulated disk fails the way it says: a test that stands on it is only as good as this."""

import random

import pytest

from millrace.lab.sim.surroundings.disk import FaultRates, Keep, PowerCut, SimDisk
from millrace.storage.disk import DiskError, DiskFull, FsyncFailed


def disk_with(path: str, content: bytes, seed: int = 1) -> SimDisk:
    disk = SimDisk(random.Random(seed))
    file = disk.create(path)
    file.write_at(0, [content])
    file.sync()
    disk.sync_directory("")
    return disk


def test_unsynced_bytes_are_lost() -> None:
    disk = disk_with("f", b"synced")
    disk.open("f", writable=True).write_at(6, [b" and ", b"not"])
    assert disk.content("f") == b"synced and not"
    disk.cut_power(Keep.NOTHING)
    assert disk.content("f") == b"synced"


def test_a_cut_file_comes_back_unless_synced() -> None:
    disk = disk_with("f", b"0123456789")
    disk.open("f", writable=True).truncate(3)
    disk.cut_power(Keep.NOTHING)
    assert disk.content("f") == b"0123456789"
    file = disk.open("f", writable=True)
    file.truncate(3)
    file.sync()
    disk.cut_power(Keep.NOTHING)
    assert disk.content("f") == b"012"


def test_a_tear_keeps_so_many_bytes() -> None:
    for tear in range(7):
        disk = disk_with("f", b"head")
        file = disk.open("f", writable=True)
        file.write_at(4, [b"AB"])
        file.write_at(6, [b"tail!!"])
        disk.cut_power(tear_bytes=tear)
        assert disk.content("f") == b"headAB" + b"tail!!"[:tear]


def test_some_keeps_writes_out_of_order() -> None:
    """Over many seeds: a later write without an earlier one, a torn one, all and none are all seen."""
    seen = set()
    for seed in range(300):
        disk = disk_with("f", b"....", seed)
        file = disk.open("f", writable=True)
        file.write_at(0, [b"AA"])
        file.write_at(2, [b"BB"])
        disk.cut_power(Keep.SOME)
        seen.add(disk.content("f"))
    assert {b"....", b"AABB", b"..BB", b"AA..", b"A...", b"..B.", b"AAB."} <= seen


def test_names_are_durable_after_the_directory_was_synced() -> None:
    """Creating, renaming and removing, each lost without the sync and kept with it."""
    for synced in (False, True):
        disk = disk_with("old", b"content")
        disk.rename("old", "new")
        file = disk.create("created")
        file.write_at(0, [b"x"])
        file.sync()
        if synced:
            disk.sync_directory("")
        disk.cut_power(Keep.NOTHING)
        assert disk.paths() == (["created", "new"] if synced else ["old"])
        disk.remove(disk.paths()[-1])
        disk.cut_power(Keep.NOTHING)
        assert len(disk.paths()) == (2 if synced else 1)


def test_a_rename_replaces_at_once_or_not_at_all() -> None:
    seen = set()
    for seed in range(40):
        disk = disk_with("f", b"old", seed)
        aside = disk.create("f.tmp")
        aside.write_at(0, [b"new"])
        aside.sync()
        disk.rename("f.tmp", "f")
        disk.cut_power(Keep.SOME)
        seen.add(disk.content("f"))
    assert seen == {b"old", b"new"}


def test_a_rename_without_a_sync_of_the_file_may_leave_it_empty() -> None:
    disk = disk_with("f", b"old")
    disk.create("f.tmp").write_at(0, [b"new"])
    disk.rename("f.tmp", "f")
    disk.sync_directory("")
    disk.cut_power(Keep.NOTHING)
    assert disk.content("f") == b""


def test_a_retried_sync_lies() -> None:
    """The planted bug that this makes visible: retry after a failed sync, then acknowledge."""
    disk = disk_with("f", b"synced")
    file = disk.open("f", writable=True)
    file.write_at(6, [b" lost"])
    disk.fail_next_sync()
    with pytest.raises(FsyncFailed):
        file.sync()
    file.sync()
    assert disk.content("f") == b"synced lost"
    disk.cut_power(Keep.ALL)
    assert disk.content("f") == b"synced"


def test_a_misdirected_write_lands_elsewhere_and_says_nothing() -> None:
    disk = disk_with("f", bytes(4_096))
    disk.misdirect_next_write()
    disk.open("f", writable=True).write_at(4_096, [b"stray"])
    content = disk.content("f")
    assert b"stray" in content and len(content) == 4_096


def test_a_full_disk_takes_what_fits_and_raises() -> None:
    disk = disk_with("f", b"1234")
    disk.capacity_bytes = 10
    file = disk.open("f", writable=True)
    with pytest.raises(DiskFull):
        file.write_at(4, [b"56789", b"abcdef"])
    assert disk.content("f") == b"123456789a"
    file.truncate(4)
    assert disk.free_bytes("") == 6
    file.write_at(4, [b"567890"])


def test_power_fails_at_the_given_change() -> None:
    disk = disk_with("f", b"")
    disk.cut_power_at(disk.changes + 2)
    file = disk.open("f", writable=True)
    file.write_at(0, [b"first"])
    with pytest.raises(PowerCut):
        file.write_at(5, [b"second"])
    disk.cut_power(Keep.ALL)
    assert disk.content("f") == b"firstsecond", "the write under way may have reached the disk"
    with pytest.raises(DiskError, match="before the power cut"):
        file.size()


def test_time_is_counted_not_spent() -> None:
    disk = disk_with("f", b"x")
    disk.delay_s = 0.0
    disk.stall(3.0)
    disk.open("f", writable=True).sync()
    assert 3.0 < disk.delay_s < 3.01


def test_rates_make_faults_and_the_seed_decides() -> None:
    def trace(seed: int) -> list[str]:
        rates = FaultRates(sync_error=0.2, misdirected_write=0.2, stall=0.2)
        disk = SimDisk(random.Random(seed), rates=rates)
        file = disk.create("f")
        events = []
        for n in range(60):
            try:
                file.write_at(n * 600, [bytes([n]) * 600])
                file.sync()
                events.append(f"{disk.delay_s:.6f}")
            except FsyncFailed:
                events.append("failed")
        return [*events, disk.content("f").hex()]

    assert trace(1) == trace(1) != trace(2)
    assert 4 < trace(1).count("failed") < 25


def test_a_copy_is_another_disk() -> None:
    """Same content, same unsynced changes, no shared bytes."""
    disk = disk_with("f", b"synced")
    disk.open("f", writable=True).write_at(6, [b" more"])
    twin = disk.copy(random.Random(1))
    twin.open("f", writable=True).write_at(0, [b"XXXXXX"])
    assert disk.content("f") == b"synced more"
    twin.cut_power(Keep.NOTHING)
    assert twin.content("f") == b"synced"
    disk.cut_power(Keep.ALL)
    assert disk.content("f") == b"synced more"


def test_wrong_use_is_an_error_as_on_a_real_disk() -> None:
    disk = disk_with("f", b"x")
    with pytest.raises(DiskError, match="no such file"):
        disk.open("g")
    with pytest.raises(DiskError, match="no such directory"):
        disk.create("nowhere/f")
    with pytest.raises(DiskError, match="reading only"):
        disk.open("f").write_at(0, [b"y"])
    with pytest.raises(DiskError, match="a file has that name"):
        disk.make_directory("f")
    disk.make_directory("d")
    disk.create("d/f")
    with pytest.raises(DiskError, match="not empty"):
        disk.remove_directory("d")
    assert disk.names("d") == ["f"] and disk.names("") == ["d", "f"]
