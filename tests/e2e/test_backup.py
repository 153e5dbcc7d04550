"""A backup of a running cluster comes back whole: also where backup and restore are killed in the middle."""

import json
import stat
import subprocess
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.http_calls import call
from e2e.processes import MILLRACE, environment, millrace
from e2e.test_transfer import contents, done, fill, killed_at_some_time
from millrace.client import Refused
from millrace.client.blocking import Client
from millrace.client.http import Http
from millrace.client.http_node import HttpError
from millrace.transfer.access import add_access, read_access
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


def by(name: str, url: str) -> str:
    return url.replace("://", f"://{name}@")


def make_admin(url: str, name: str) -> Http:
    Http(url).call("POST", "/v1/users", {"name": name, "password": "pw", "roles": ["admin"]})
    return Http(by(name, url), password="pw")


def test_users_rules_and_tokens_come_back_into_a_cluster_that_has_none(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker, other = start_broker(), start_broker()
    root = make_admin(broker.url, "root")
    root.call("POST", "/v1/users", {"name": "ann", "password": "secret"})
    for effect, filter in (("deny", "a/hidden"), ("allow", "a/#")):
        rule = {"user": "ann", "effect": effect, "action": "all", "filter": filter}
        root.call("POST", "/v1/rules", rule)
    form = {"name": "ear", "user": "ann", "allow": ["subscribe:a/#"]}
    token = root.call("POST", "/v1/tokens", form)["token"]
    backup = tmp_path / "backup"
    made = done("backup", str(backup), "--url", by("root", broker.url), MILLRACE_PASSWORD="pw")
    assert made["users"] == 2
    written = (backup / "backup.json").read_text()
    assert "secret" not in written and token not in written
    # Into a cluster without users, by nobody.
    assert done("restore", str(backup), "--url", other.url)["users"] == 2
    there = Http(by("root", other.url), password="pw")
    for path in ("/v1/users", "/v1/rules", "/v1/tokens"):
        assert there.get(path)["items"] == root.get(path)["items"], path
    with Client(f"mqtt://ann@127.0.0.1:{other.port}", client_id="a", password="secret") as client:
        client.publish("a/b", b"by the password of the other cluster", qos=1)
        with pytest.raises(Refused):
            client.publish("a/hidden", b"rules are in the same order", qos=1)
    answer = call(other.ports["http"], "GET", "/v1/streams", Authorization=f"Bearer {token}")
    assert answer.status == 200
    assert call(other.ports["http"], "GET", "/v1/users").status == 401


def test_users_of_a_backup_stay_out_of_a_cluster_that_has_its_own(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker, other = start_broker(), start_broker()
    make_admin(broker.url, "root")
    boss = make_admin(other.url, "boss")
    backup, url = tmp_path / "backup", by("boss", other.url)
    done("backup", str(backup), "--url", by("root", broker.url), MILLRACE_PASSWORD="pw")
    command = ("restore", str(backup), "--yes", "--url", url)
    assert done(*command, MILLRACE_PASSWORD="pw")["users"] == 0
    assert [user["name"] for user in boss.get("/v1/users")["items"]] == ["boss"]
    for expected in (1, 0):
        assert done(*command, "--users", MILLRACE_PASSWORD="pw")["users"] == expected
    assert [user["name"] for user in boss.get("/v1/users")["items"]] == ["boss", "root"]


def test_who_is_no_administrator_makes_a_backup_without_users(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    root = make_admin(broker.url, "root")
    root.call("POST", "/v1/users", {"name": "ops", "password": "pw", "roles": ["operator"]})
    root.call("POST", "/v1/rules", {"user": "ops", "effect": "allow", "action": "all", "filter": "#"})
    url = by("ops", broker.url)
    with pytest.raises(HttpError) as caught:
        Http(url, password="pw").get("/v1/access")
    assert caught.value.status == 403
    assert done("backup", str(tmp_path / "backup"), "--url", url, MILLRACE_PASSWORD="pw")["users"] is None


def test_a_copy_of_many_users_comes_in_parts_of_one_moment(start_broker: StartBroker) -> None:
    broker, other = start_broker(), start_broker()
    root = make_admin(broker.url, "root")
    for number in range(6):
        root.call("POST", "/v1/users", {"name": f"u{number}"})
        rule = {"user": f"u{number}", "effect": "allow", "action": "all", "filter": f"u/{number}"}
        root.call("POST", "/v1/rules", rule)
    parts, cursor = [], ""
    while cursor is not None:
        parts.append(root.get("/v1/access", limit=5, cursor=cursor))
        cursor = parts[-1]["next"]
    assert [len(part["users"]) for part in parts] == [5, 2, 0]
    assert [len(part["rules"]) for part in parts] == [0, 3, 3]
    root.call("POST", "/v1/users", {"name": "new"})
    with pytest.raises(HttpError, match="begin again"):
        root.get("/v1/access", cursor=parts[0]["next"])
    with pytest.raises(HttpError, match="administrator"):
        Http(other.url).call("POST", "/v1/access", {"users": [{"name": "u1"}]})
    with pytest.raises(HttpError, match="Argon2"):
        Http(other.url).call("POST", "/v1/access", {"users": [{"name": "u1", "password_hash": "plain"}]})
    assert add_access(Http(other.url), read_access(root) or {}).users == 8
