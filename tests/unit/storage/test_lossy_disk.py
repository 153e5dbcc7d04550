"""The disk of campaigns that loses what was not synced: what its process sees, and what a kill leaves."""

import os
import random
from pathlib import Path

import pytest

from millrace.lab.campaign.disks.lossy import LossyDisk
from millrace.lab.sim.surroundings.disk import SimDisk


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "data").mkdir()
    return str(tmp_path / "data")


def disk_at(directory: str, seed: int = 1) -> LossyDisk:
    """As the next life of the process finds it: nobody has closed or synced anything."""
    return LossyDisk(random.Random(seed), Path(directory).parent / "unsynced")


def content(directory: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


@pytest.mark.parametrize("seed", range(20))
def test_a_process_sees_what_it_wrote(directory: str, seed: int) -> None:
    """The same calls on the disk of the simulator say the same."""
    rng = random.Random(seed)
    lossy, model = disk_at(directory, seed), SimDisk(random.Random(0))
    model.make_directory("d")
    files = {}
    for _ in range(400):
        name = rng.choice("abcd")
        at, size = rng.randrange(3000), rng.randrange(1500)
        data = rng.randbytes(size)
        match rng.randrange(9):
            case 0:
                files[name] = lossy.create(f"{directory}/{name}"), model.create(f"d/{name}")
            case 1 | 2 | 3 if name in files:
                for file in files[name]:
                    file.write_at(at, [data[:10], data[10:]])
            case 4 if name in files:
                for file in files[name]:
                    file.truncate(at)
            case 5 if name in files:
                for file in files[name]:
                    file.sync()
            case 6 if name in files and "x" not in files:
                other = rng.choice("abcd")
                lossy.rename(f"{directory}/{name}", f"{directory}/{other}")
                model.rename(f"d/{name}", f"d/{other}")
                files[other] = files.pop(name)
            case 7:
                lossy.remove(f"{directory}/{name}")
                model.remove(f"d/{name}")
                files.pop(name, None)
            case 8:
                lossy.sync_directory(directory)
        assert lossy.names(directory) == model.names("d")
        for name, (file, twin) in files.items():
            assert file.size() == twin.size(), name
            assert file.read_at(0, 9999) == twin.read_at(0, 9999)
            assert file.read_at(at, size) == twin.read_at(at, size)
            again = lossy.open(f"{directory}/{name}")
            assert again.read_at(at, size) == twin.read_at(at, size)
            again.close()


def test_what_was_synced_survives_and_what_was_not_may_be_gone(directory: str) -> None:
    left = set()
    for seed in range(40):
        disk = disk_at(directory, seed)
        file = disk.create(f"{directory}/f{seed}")
        file.write_at(0, [b"synced"])
        file.sync()
        disk.sync_directory(directory)
        file.write_at(6, [b"lost"])
        left.add(content(directory)[f"f{seed}"])
        assert file.read_at(0, 100) == b"syncedlost"
    assert {b"synced", b"syncedlost", b"syncedlo"} <= left, "nothing, all, or a part of it"


def test_names_come_and_go_with_their_directory_in_order(directory: str) -> None:
    left = set()
    for seed in range(40):
        for path in Path(directory).iterdir():
            path.unlink()
        disk = disk_at(directory, seed)
        for name, data in (("kept", b"old"), ("gone", b"g")):
            file = disk.create(f"{directory}/{name}")
            file.write_at(0, [data])
            file.sync()
        disk.sync_directory(directory)
        aside = disk.create(f"{directory}/aside")
        aside.write_at(0, [b"new"])
        aside.sync()
        disk.rename(f"{directory}/aside", f"{directory}/kept")
        disk.remove(f"{directory}/gone")
        assert content(directory) == {"kept": b"new"}
        disk_at(directory, seed)
        left.add(tuple(content(directory).items()))
    assert left == {
        (("gone", b"g"), ("kept", b"old")),
        (("aside", b"new"), ("gone", b"g"), ("kept", b"old")),
        (("gone", b"g"), ("kept", b"new")),
        (("kept", b"new"),),
    }


def test_names_of_a_synced_directory_stay(directory: str) -> None:
    disk = disk_at(directory)
    for name in ("a", "b"):
        disk.create(f"{directory}/{name}").sync()
    disk.rename(f"{directory}/a", f"{directory}/b")
    disk.sync_directory(directory)
    for seed in range(10):
        disk_at(directory, seed)
        assert os.listdir(directory) == ["b"]
