"""The doctor says what is damaged and what a start does, writes nothing, and a start then does that."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.testing

from millrace.cli.main import app
from millrace.client.blocking import Client
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.node.cluster.peers_file import write_peers
from millrace.node.recovery.doctor import DirectoryReport, Finding, Grade, ShardReport, examine
from millrace.storage.directory import DataDirectory
from millrace.storage.disk import SystemDisk
from millrace.storage.synced_end import LogEnd, SyncedEnd
from millrace.testing import ThreadedBroker
from millrace.types import Index, Term

SHARD = 16


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a node that stored 40 messages and staged one, and was stopped."""
    data = tmp_path_factory.mktemp("made") / "data"
    with ThreadedBroker(node__data=str(data), listeners__http="127.0.0.1:0") as broker:
        Http(f"http://127.0.0.1:{broker.ports['http']}").call(
            "POST", "/v1/streams", {"name": "orders", "filters": ["orders/#"]}
        )
        with Client(broker.url, client_id="pub") as publisher:
            for number in range(40):
                publisher.publish("d/x", f"message-{number:02d}".encode() * 20, qos=1)
    yield data


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(made, tmp_path / "data"))


def in_cluster(data: Path) -> None:
    """Let the node know of two others."""
    disk = SystemDisk()
    directory = DataDirectory.open(disk, str(data), owner="test", fresh=bytes(24))
    names = [directory.identity.hex(), "aa" * 16, "bb" * 16]
    write_peers(disk, directory, {name: f"127.0.0.1:{27000 + n}" for n, name in enumerate(names)})
    directory.close()


def fingerprint(data: Path) -> dict[str, tuple[str, int]]:
    """Content and time of change of every file."""
    return {
        str(path.relative_to(data)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }


def shard_of(report: DirectoryReport, number: int = SHARD) -> ShardReport:
    (found,) = (shard for shard in report.shards if shard.shard == number)
    return found


def wrong(report: DirectoryReport) -> list[Finding]:
    return [one for one in report.all_findings() if one.grade in (Grade.WRONG, Grade.REFUSES)]


def flip(path: Path, needle: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(needle)] ^= 1
    path.write_bytes(content)


def segment(data: Path, number: int = SHARD) -> Path:
    (path,) = (data / "shards" / str(number)).glob("*.log")
    return path


def test_a_good_directory_is_said_to_be_good_and_named(data: Path) -> None:
    before = fingerprint(data)
    report = examine(str(data))
    assert report.is_good and report.starts, wrong(report)
    assert shard_of(report).next_offset == 40 and shard_of(report).holds == "stream default"
    assert any(shard.holds == "stream orders" for shard in report.shards)
    assert shard_of(report).synced_index == shard_of(report).last_index
    assert fingerprint(data) == before


def test_damage_of_a_node_alone_is_named_by_its_offsets_and_not_served(data: Path) -> None:
    flip(segment(data), b"message-10")
    before = fingerprint(data)
    (found,) = wrong(examine(str(data)))
    assert "offset 10 to 10" in found.says and "no other node has them" in found.next_start
    assert fingerprint(data) == before
    # The node starts and goes on, as was said.
    with ThreadedBroker(node__data=str(data)) as broker, Client(broker.url, client_id="again") as publisher:
        publisher.publish("d/x", b"the node goes on", qos=1)


def test_damage_in_a_cluster_means_no_vote_until_it_is_fetched_again(data: Path) -> None:
    """What the snapshot covers is not lost to the state, and only readers miss it."""
    in_cluster(data)
    flip(segment(data), b"message-10")
    report = examine(str(data))
    (found,) = wrong(report)
    assert report.nodes == 3 and report.starts
    assert "fetched again from other nodes while the node runs" in found.next_start
    for snapshot in segment(data).parent.glob("*.snap"):
        snapshot.unlink()
    (found,) = wrong(examine(str(data)))
    assert "neither votes nor leads" in found.next_start


def test_bytes_that_were_half_written_are_cut_and_nothing_is_wrong(data: Path) -> None:
    with segment(data).open("ab") as file:
        file.write(b"half of a block")
    report = examine(str(data))
    assert report.is_good
    (found,) = (one for one in shard_of(report).findings if one.grade is Grade.NOTE)
    assert "cut off" in found.next_start and "15 bytes" in found.says


def test_a_synced_end_that_is_gone_is_told(data: Path) -> None:
    """The log itself looks whole: only what is remembered beside it tells."""
    synced = SyncedEnd(SystemDisk(), str(data / "shards" / str(SHARD) / "synced"))
    synced.note(LogEnd(Index(1000), Term(1)))
    synced.close()
    (found,) = wrong(examine(str(data)))
    assert "to 1000 were on disk once and are gone" in found.says


def damage_vote(data: Path) -> None:
    (data / "shards" / str(SHARD) / "state").write_bytes(b"nothing that was written here")


def damage_format(data: Path) -> None:
    (data / "FORMAT").write_bytes((data / "FORMAT").read_bytes().replace(b"identity", b"identitx"))


def newer_format(data: Path) -> None:
    (data / "FORMAT").write_bytes(b"millrace data directory, format 99\n")


@pytest.mark.parametrize("harm", [damage_vote, damage_format, newer_format])
def test_what_a_start_refuses_is_refused_here_with_the_same_words(
    data: Path, harm: Callable[[Path], None]
) -> None:
    harm(data)
    before = fingerprint(data)
    report = examine(str(data))
    assert not report.starts and not report.is_good
    (found,) = (one for one in report.all_findings() if one.grade is Grade.REFUSES)
    assert fingerprint(data) == before
    with (
        pytest.raises(Exception, match=r"damaged|format 99") as refused,
        ThreadedBroker(node__data=str(data)),
    ):
        pass
    assert str(refused.value) in found.says or found.says in str(refused.value)


def test_a_damaged_index_and_a_damaged_snapshot_are_told(data: Path) -> None:
    folder = data / "shards" / str(SHARD)
    (index,) = folder.glob("*.idx")
    content = bytearray(index.read_bytes())
    content[len(content) // 2] ^= 1
    index.write_bytes(content)
    snapshots = sorted(folder.glob("*.snap"))
    for snapshot in snapshots:
        snapshot.write_bytes(snapshot.read_bytes()[:-1])
    says = " ".join(one.says for one in wrong(examine(str(data))))
    assert "index is damaged" in says
    assert says.count(".snap") == len(snapshots)


def test_missing_definitions_are_told(data: Path) -> None:
    shutil.rmtree(data / "shards" / "0")
    assert any("definitions of the cluster" in one.says for one in wrong(examine(str(data))))


def test_a_directory_in_use_or_of_somebody_else_is_refused(made: Path, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="not a data directory of Millrace"):
        examine(str(tmp_path))
    with pytest.raises(LocalError, match="there is no directory"):
        examine(str(tmp_path / "nowhere"))
    data = tmp_path / "data"
    with ThreadedBroker(node__data=str(data)), pytest.raises(LocalError, match=r"a node runs on .*process"):
        examine(str(data))


def test_the_command_prints_sentences_or_json_and_its_status_says_whether_all_is_good(data: Path) -> None:
    run = typer.testing.CliRunner().invoke
    done = run(app, ["doctor", str(data)])
    assert done.exit_code == 0 and "All is good" in done.output
    flip(segment(data), b"message-10")
    done = run(app, ["doctor", str(data), "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 1 and report["starts"] and not report["good"]
    done = run(app, ["doctor", str(data)])
    assert done.exit_code == 1 and "At the next start: no other node has them" in done.output
