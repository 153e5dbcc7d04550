"""A backup of a running cluster comes back whole: also where backup and restore are killed in the middle."""

import json
import stat
import subprocess
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.processes import MILLRACE, environment, millrace
from e2e.test_transfer import contents, done, fill, killed_at_some_time
from millrace.client.blocking import Client
from millrace.client.http import Http
from millrace.transfer.backup import read_definitions
from waiting import until


def test_a_backup_comes_back_into_an_empty_cluster_and_only_once(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker, other = start_broker(), start_broker()
    http = fill(broker, "orders", 700, shards=3, compression="zlib")
    fill(broker, "pairs", 50, replication="primary-backup")
    http.call("POST", "/v1/streams", {"name": "live", "filters": ["live/#"], "replication": "routed"})
    http.call("POST", "/v1/groups", {"name": "workers", "filters": ["orders/#"]})
    http.publish("elsewhere", b"in the default stream")
    backup = tmp_path / "backup"
    answer = done("backup", str(backup), "--url", broker.url)
    assert answer["messages"] == 701 + 51 + 1 and answer["groups"] == ["workers"]
    assert stat.S_IMODE((backup / "backup.json").stat().st_mode) == 0o600
    answer = done("restore", str(backup), "--url", other.url)
    assert answer["restored"] == 753 and sorted(answer["created"]) == ["live", "orders", "pairs"]
    target = Http(other.url)
    for name in ("orders", "pairs", "default"):
        assert contents(target, name) == contents(http, name)
    assert target.get("/v1/streams/orders")["compression"] == "zlib"
    assert target.get("/v1/groups/workers")["lag"] == 701
    with (
        Client(f"mqtt://127.0.0.1:{other.port}", client_id="sees") as client,
        client.subscribe("orders/#", qos=1) as messages,
    ):
        # 0, 50, ... 650 were retained, on seven topics; the last of each is.
        retained = {next(messages).topic for _ in range(7)}
    assert retained == {f"orders/{number}" for number in range(7)}
    refused = millrace("restore", str(backup), "--url", other.url)
    assert refused.returncode == 2 and "say --yes" in refused.stderr
    assert done("restore", str(backup), "--yes", "--url", other.url)["restored"] == 0
    assert contents(target, "orders") == contents(http, "orders")


def test_a_backup_that_was_changed_is_not_restored(start_broker: StartBroker, tmp_path: Path) -> None:
    broker, other = start_broker(), start_broker()
    fill(broker, "orders", 100)
    backup = tmp_path / "backup"
    done("backup", str(backup), "--url", broker.url)
    part = next((backup / "streams" / "orders").glob("shard-*/*"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    refused = millrace("restore", str(backup), "--url", other.url)
    assert refused.returncode == 1 and "its checksum does not fit; nothing was restored" in refused.stderr
    assert [row["name"] for row in Http(other.url).streams()] == ["default"]
    assert millrace("backup", str(backup), "--url", broker.url).returncode == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused = millrace("backup", str(tmp_path / "full"), "--url", broker.url)
    assert refused.returncode == 2 and "holds no backup" in refused.stderr


@pytest.mark.long
def test_backup_and_restore_that_are_killed_go_on(start_broker: StartBroker, tmp_path: Path) -> None:
    """Publishing goes on beside the backup; each shard ends where it was when its turn came."""
    broker, other = start_broker(), start_broker()
    http = fill(broker, "a", 30_000, size=1000, shards=2)
    fill(broker, "b", 20_000, size=1000, shards=1)
    backup = tmp_path / "backup"
    command = [MILLRACE, "backup", str(backup), "--url", broker.url]
    kills = 0
    for _ in range(3):
        parts = len(list(backup.glob("streams/*/*/*")))
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment())
        until(
            lambda process=process, parts=parts: (
                process.poll() is not None or len(list(backup.glob("streams/*/*/*"))) > parts
            ),
            "one more file",
            30.0,
        )
        kills += process.poll() is None
        process.kill()
        process.wait()
    assert kills, "the backup was never interrupted"
    before = contents(http, "a"), contents(http, "b")
    definitions = read_definitions(backup)
    assert definitions is not None
    if not definitions.is_done:
        done("backup", str(backup), "--url", broker.url)
    restoring = ["restore", str(backup), "--yes", "--url", other.url]
    kills = sum(killed_at_some_time(restoring, seed, 3.0) for seed in range(3))
    answer = done(*restoring)
    assert kills, "the restore was never interrupted"
    assert answer["messages"] == 50_002, json.dumps(answer)
    target = Http(other.url)
    assert (contents(target, "a"), contents(target, "b")) == before
