"""Exports and imports: every message once and in order, also where the program is killed in the middle."""

import json
import random
import signal
import subprocess
import time
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import StartBroker
from e2e.processes import MILLRACE, BrokerProcess, complaint, environment, millrace
from millrace.client.http import Http
from millrace.transfer.copying import read_manifest
from waiting import until

KINDS = (
    "ndjson",
    pytest.param(
        "parquet",
        marks=pytest.mark.skipif(find_spec("pyarrow") is None, reason="Parquet needs the extra spark"),
    ),
)


def fill(broker: BrokerProcess, stream: str, count: int, *, size: int = 20, **settings: Any) -> Http:
    """A stream with numbered messages on several topics, some with properties and bytes that are no text."""
    http = Http(broker.url)
    http.call("POST", "/v1/streams", {"name": stream, "filters": [f"{stream}/#"], **settings})
    for first in range(0, count, 1000):
        messages = [
            {
                "topic": f"{stream}/{number % 7}",
                "payload": f"{number} ".ljust(size, "x"),
                "qos": 1 + number % 2,
                "retain": number % 50 == 0,
                **({"user_properties": [["n", str(number)]], "content_type": "text/x"} if number % 3 else {}),
            }
            for number in range(first, min(count, first + 1000))
        ]
        http.call("POST", "/v1/publish/batch", {"messages": messages})
    http.publish(f"{stream}/bytes", b"\xff\x00\xfe")
    return http


def contents(http: Http, stream: str) -> dict[str, list[tuple[Any, ...]]]:
    """All messages by topic, in the order of the log, without what an import gives anew."""
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for row in http.get(f"/v1/streams/{stream}")["shard_list"]:
        offset = int(row["first_offset"])
        while offset < int(row["next_offset"]):
            page = http.messages(stream, row["shard"], offset)
            for one in page["messages"]:
                kept = {name: one.get(name) for name in ("payload", "encoding", "qos", "retain")}
                found[one["topic"]].append(
                    (*kept.values(), one.get("content_type"), str(one.get("user_properties")))
                )
            offset = int(page["next_offset"])
    return dict(found)


def done(*arguments: str, **variables: str) -> dict[str, Any]:
    finished = millrace(*arguments, "--json", **variables)
    assert finished.returncode == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout)
    return answer


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exported_and_imported_is_the_same_and_once(
    start_broker: StartBroker, tmp_path: Path, kind: str
) -> None:
    broker, other = start_broker(), start_broker()
    http = fill(broker, "s", 1500, shards=3)
    file = tmp_path / f"s.{kind}"
    answer = done("export", "s", str(file), "--url", broker.url)
    assert answer["messages"] == 1501 and sum(answer["shards"].values()) == 1501
    assert not file.with_name(file.name + ".parts").exists()
    target = Http(other.url)
    target.call("POST", "/v1/streams", {"name": "s", "filters": ["s/#"], "shards": 2})
    answer = done("import", "s", str(file), "--url", other.url)
    assert answer["imported"] == 1501 and answer["repeated"] == 0
    assert contents(target, "s") == contents(http, "s")
    answer = done("import", "s", str(file), "--url", other.url)
    assert answer["imported"] == 0 and answer["repeated"] == 1501
    assert contents(target, "s") == contents(http, "s")


def test_a_part_of_a_shard_is_exported(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker()
    http = fill(broker, "s", 500, shards=1)
    (row,) = http.get("/v1/streams/s")["shard_list"]
    file = tmp_path / "s.ndjson"
    options = ("--from", "100", "--to", "150", "--shard", str(row["shard"]))
    assert done("export", "s", str(file), *options, "--url", broker.url)["messages"] == 50
    assert [json.loads(line)["offset"] for line in file.open()] == list(range(100, 150))
    refused = millrace("export", "s", str(tmp_path / "s.csv"), "--url", broker.url)
    assert refused.returncode == 2 and ".parquet or .ndjson" in refused.stderr


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replication", ["primary-backup", "leaderless"])
def test_streams_that_cannot_be_staged_to_take_each_message_once_as_well(
    start_broker: StartBroker, tmp_path: Path, replication: str, kind: str
) -> None:
    broker = start_broker()
    fill(broker, "from", 300)
    lines = tmp_path / "s.ndjson"
    done("export", "from", str(lines), "--url", broker.url)
    lines.write_text(lines.read_text().replace('"from/', '"to/'))
    http = Http(broker.url)
    http.call("POST", "/v1/streams", {"name": "to", "filters": ["to/#"], "replication": replication})
    assert done("import", "to", str(lines), "--url", broker.url)["imported"] == 301
    before = contents(http, "to")
    assert done("import", "to", str(lines), "--url", broker.url)["imported"] == 0
    assert contents(http, "to") == before and sum(map(len, before.values())) == 301
    again = tmp_path / f"again.{kind}"
    assert done("export", "to", str(again), "--url", broker.url)["messages"] == 301
    # Another file with the same messages is another import.
    assert done("import", "to", str(again), "--url", broker.url)["imported"] == 301


def test_parquet_without_pyarrow_and_a_file_that_cannot_be_written_are_said_in_a_sentence(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "pyarrow.py").write_text("raise ImportError('not here')")
    refused = millrace("export", "s", "s.parquet", PYTHONPATH=str(tmp_path / "without"))
    assert refused.returncode == 2 and "pip install 'millrace[spark]'" in complaint(refused)
    broker = start_broker()
    fill(broker, "s", 10)
    (tmp_path / "s.ndjson.parts").touch()
    refused = millrace("export", "s", str(tmp_path / "s.ndjson"), "--url", broker.url)
    assert refused.returncode == 1 and "s.ndjson.parts" in complaint(refused)
    refused = millrace("import", "s", str(tmp_path / "none.ndjson"), "--url", broker.url)
    assert refused.returncode == 2 and "there is no file" in complaint(refused)
    lines = tmp_path / "bad.ndjson"
    lines.write_text('{"topic": "s/1", "payload": "a"}\n{"payload": "b"}\n')
    refused = millrace("import", "s", str(lines), "--url", broker.url)
    assert refused.returncode == 1 and "line 2" in complaint(refused)
    lines.write_text('{"topic": "elsewhere", "payload": "a"}\n')
    refused = millrace("import", "s", str(lines), "--url", broker.url)
    assert refused.returncode == 1 and "belongs to stream 'default'" in complaint(refused)


def killed_at_some_time(command: list[str], seed: int, longest_s: float) -> bool:
    """Whether the command was still at it when it was killed."""
    process = subprocess.Popen(
        [MILLRACE, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    end_s = time.monotonic() + random.Random(seed).uniform(0.5, longest_s)
    until(lambda: process.poll() is not None or time.monotonic() > end_s, "the moment to kill", longest_s + 5)
    was_running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    return was_running


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_import_goes_on_and_nothing_is_there_twice(
    start_broker: StartBroker, tmp_path: Path, kind: str
) -> None:
    broker, other = start_broker(), start_broker()
    http = fill(broker, "s", 60_000, size=100, shards=2)
    file = tmp_path / f"s.{kind}"
    done("export", "s", str(file), "--url", broker.url)
    target = Http(other.url)
    target.call("POST", "/v1/streams", {"name": "s", "filters": ["s/#"], "shards": 3})
    command = ["import", "s", str(file), "--url", other.url]
    kills = sum(killed_at_some_time(command, seed, 3.0) for seed in range(4))
    done(*command)
    assert kills, "the import was never interrupted"
    assert contents(target, "s") == contents(http, "s")


@pytest.mark.long
def test_a_killed_export_goes_on_to_the_same_end(start_broker: StartBroker, tmp_path: Path) -> None:
    """It ends where the stream ended when it was begun, whatever came since."""
    broker = start_broker()
    http = fill(broker, "s", 60_000, size=1000, shards=1)
    file = tmp_path / "s.ndjson"
    parts = file.with_name("s.ndjson.parts")
    process = subprocess.Popen(
        [MILLRACE, "export", "s", str(file), "--url", broker.url],
        stderr=subprocess.DEVNULL,
        env=environment(),
    )

    def has_a_part() -> bool:
        manifest = read_manifest(parts)
        return manifest is not None and bool(manifest.paths(parts))

    until(has_a_part, "the first part", 30.0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not file.exists()
    http.publish("s/late", b"after the export began")
    refused = millrace("export", "s", str(file), "--from", "7", "--url", broker.url)
    assert refused.returncode == 2 and "other options" in refused.stderr
    answer = done("export", "s", str(file), "--url", broker.url)
    assert answer["messages"] == 60_001 and not parts.exists()
    assert [json.loads(line)["offset"] for line in file.open()] == list(range(60_001))
