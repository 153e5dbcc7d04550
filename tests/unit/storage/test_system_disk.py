"""The real disk: the same interface on files, errors by meaning, the lock across processes, threads."""

import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.storage.directory import DataDirectory
from millrace.storage.disk import DirectoryLocked, DiskError, DiskFull, FsyncFailed, SystemDisk, SystemFile
from millrace.storage.log import Log, LogSettings
from millrace.types import Index
from unit.storage.making import SALT, SHARD, SMALL, chain, contents, data, raw, some_blocks, tail_of

FRESH = bytes(range(24))
ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[3] / "src")}


def test_files_read_and_write_at_positions(tmp_path: Path) -> None:
    disk = SystemDisk()
    path = str(tmp_path / "f")
    file = disk.create(path)
    file.write_at(2, [b"ab", b"", b"cd"])
    file.write_at(6, [bytes([n % 251]) for n in range(2_000)])
    file.sync()
    assert file.size() == 2_006
    assert file.read_at(0, 6) == b"\0\0abcd"
    assert file.read_at(6, 5_000) == bytes(n % 251 for n in range(2_000))
    file.truncate(4)
    assert file.read_at(0, 100) == b"\0\0ab"
    file.close()
    file.close()
    assert disk.create(path).size() == 0


def test_names(tmp_path: Path) -> None:
    disk = SystemDisk()
    root = str(tmp_path / "d")
    assert disk.names(root) == []
    disk.make_directory(root)
    disk.make_directory(root)
    disk.create(f"{root}/b").close()
    disk.create(f"{root}/a").close()
    assert disk.names(root) == ["a", "b"]
    disk.rename(f"{root}/a", f"{root}/b")
    disk.sync_directory(root)
    assert disk.names(root) == ["b"] and disk.exists(f"{root}/b") and not disk.exists(f"{root}/a")
    with pytest.raises(DiskError, match="remove directory"):
        disk.remove_directory(root)
    disk.remove(f"{root}/b")
    disk.remove(f"{root}/b")
    disk.remove_directory(root)
    assert disk.free_bytes(str(tmp_path)) > 0
    (tmp_path / "file").write_text("x")
    with pytest.raises(DiskError, match="a file has that name"):
        disk.make_directory(str(tmp_path / "file"))


def test_errors_say_what_they_mean(tmp_path: Path) -> None:
    """No space is DiskFull, a sync that fails is FsyncFailed, the rest is DiskError; all name the file."""
    disk = SystemDisk()
    with pytest.raises(DiskError, match=r"cannot open .*missing: No such file"):
        disk.open(str(tmp_path / "missing"))
    full = disk.open("/dev/full", writable=True)
    with pytest.raises(DiskFull, match="cannot write /dev/full: No space left"):
        full.write_at(0, [b"x"])
    with pytest.raises(FsyncFailed, match="cannot sync /dev/full"):
        full.sync()
    with pytest.raises(FsyncFailed, match="cannot sync directory"):
        disk.sync_directory(str(tmp_path / "missing"))
    (tmp_path / "f").write_bytes(b"x")
    readable = disk.open(str(tmp_path / "f"))
    with pytest.raises(DiskError, match="cannot write"):
        readable.write_at(0, [b"y"])
    with pytest.raises(DiskError, match="cannot rename"):
        disk.rename(str(tmp_path / "missing"), str(tmp_path / "g"))


def test_a_log_on_real_files(tmp_path: Path) -> None:
    disk = SystemDisk()
    directory = DataDirectory.open(disk, str(tmp_path / "data"), owner="test", fresh=FRESH)
    path = directory.shard_path(SHARD)

    def opened() -> Log:
        return Log.open(disk, path, shard=SHARD, salt=directory.salt, settings=SMALL)

    log = opened()
    blocks = chain(some_blocks(random.Random(1), 60), term=1)
    for n in range(0, 60, 4):
        log.append(blocks[n : n + 4])
        log.sync()
    assert contents(log) == raw(blocks)
    log.truncate_from(Index(50))
    log.append(blocks[49:])
    log.close()
    names = {name.rpartition(".")[2] for name in disk.names(path)}
    assert names == {"log", "idx"}
    log = opened()
    assert log.reports == () and contents(log) == raw(blocks)
    first = log.trim(Index(20))
    log.close()
    last = sorted(Path(path).glob("*.log"))[-1]
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 3)
    log = opened()
    assert len(log.damages) == 1, "the index knows that the file was longer"
    log.replace_range(blocks[log.damages[0].first_index - 1 :])
    assert contents(log) == raw(blocks[first - 1 :])
    log.close()
    directory.close()


def test_the_lock_holds_against_another_process(tmp_path: Path) -> None:
    """And is free again when its holder is gone, however it went."""
    path = str(tmp_path / "data")
    program = (
        "import sys\n"
        "from millrace.storage.directory import DataDirectory\n"
        "from millrace.storage.disk import SystemDisk\n"
        f"DataDirectory.open(SystemDisk(), {path!r}, owner='the other one', fresh=bytes(24))\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(DirectoryLocked, match="held by the other one"):
            DataDirectory.open(SystemDisk(), path, owner="me", fresh=FRESH)
        other.kill()
        other.wait(10)
    DataDirectory.open(SystemDisk(), path, owner="me", fresh=FRESH).close()


def test_the_lock_is_held_without_room_to_say_by_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "data")
    DataDirectory.open(SystemDisk(), path, owner="before", fresh=FRESH).close()

    def full(file: SystemFile, position: int, buffers: Sequence[bytes]) -> None:
        raise DiskFull(f"cannot write {file.path}: no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(SystemFile, "write_at", full)
        directory = DataDirectory.open(SystemDisk(), path, owner="me", fresh=FRESH)
    with pytest.raises(DirectoryLocked):
        DataDirectory.open(SystemDisk(), path, owner="other", fresh=FRESH)
    directory.close()


def test_a_short_write_is_never_taken_for_a_whole_one(tmp_path: Path) -> None:
    """Under a limit on file size the system takes a part and reports success; the rest is asked for again."""
    program = (
        "import resource\n"
        "from millrace.storage.disk import DiskError, SystemDisk\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n"
        f"file = SystemDisk().create({str(tmp_path / 'f')!r})\n"
        "file.write_at(0, [b'abc', b'defgh'])\n"
        "try:\n"
        "    file.write_at(2, [b'CDE', b'FGHIJ'])\n"
        "except DiskError as error:\n"
        "    print(error, file.read_at(0, 100))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=ENVIRONMENT, timeout=60, check=True
    )
    assert b"File too large b'abCDEFGH'" in done.stdout


def test_reads_beside_a_writer(tmp_path: Path) -> None:
    """Reading calls in other threads see whole blocks only, in order, while the log grows and rolls."""
    settings = LogSettings(segment_bytes=10_000, checkpoint_every_bytes=5_000)
    log = Log.open(SystemDisk(), str(tmp_path), shard=SHARD, salt=SALT, settings=settings)
    failures: list[BaseException] = []
    seen = [0, 0]
    done = threading.Event()

    def reader(number: int) -> None:
        try:
            while not done.is_set() or seen[number] < log.last_index:
                index = Index(seen[number] + 1)
                if index > log.last_index:
                    continue
                for block in log.read(index, log.last_index, bytes_max=10_000):
                    assert block.header.index == seen[number] + 1
                    assert log.find_offset(block.header.base_offset) == block.header.index
                    seen[number] += 1
        except BaseException as error:  # noqa: BLE001  in a thread: the test raises it again
            failures.append(error)

    readers = [threading.Thread(target=reader, args=(n,)) for n in range(2)]
    for thread in readers:
        thread.start()
    for n in range(80):
        log.append(chain([data(bytes([n]) * 500)], tail_of(log), term=1))
        log.sync()
    done.set()
    for thread in readers:
        thread.join(30)
    assert failures == [] and seen == [80, 80]
    assert len(log.segments()) > 3
    log.close()
