"""Streams and durable groups on a real broker: by HTTP and by command, read by offset, purged and kept."""

import base64
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from e2e.conftest import StartBroker
from e2e.device import Device
from e2e.http_calls import MqttDoor
from e2e.processes import BrokerProcess, millrace
from millrace.broker.streams.stream import StreamSpec
from millrace.client.http import Http, HttpError
from millrace.client.reader import follow
from millrace.storage.block import HEAD_BYTES, parse_block
from waiting import until


@pytest.fixture(scope="module")
def door(broker: BrokerProcess) -> MqttDoor:
    return MqttDoor(broker.ports["http"])


def publish(door: MqttDoor, topic: str, *payloads: str) -> list[dict]:
    rows = [{"topic": topic, "payload": payload} for payload in payloads]
    answer = door("POST", "/v1/publish/batch", {"messages": rows})
    assert answer.status == 200, answer
    return answer.json["published"]


def create(door: MqttDoor, name: str, *filters: str, **settings: object) -> list[int]:
    """A stream; the numbers of its shards."""
    answer = door("POST", "/v1/streams", {"name": name, "filters": list(filters), **settings})
    assert answer.status == 201, answer
    return [row["shard"] for row in answer.json["shard_list"]]


def payloads(door: MqttDoor, stream: str, shard: int, query: str = "") -> list[str]:
    page = door("GET", f"/v1/streams/{stream}/shards/{shard}/messages?limit=10000{query}").json
    return [message["payload"] for message in page["messages"]]


# ------------------------------------------------------------------------------------------- streams


def test_a_stream_is_made_shown_changed_and_deleted_by_command(broker: BrokerProcess) -> None:
    def run(*arguments: str) -> dict:
        result = millrace("stream", *arguments, "--url", broker.url, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    made = run("create", "cmd", "cmd/#", "--shards", "2", "--retention-age", "60")
    assert (made["shards"], made["retention_age_s"], len(made["shard_list"])) == (2, 60, 2)
    assert "cmd" in [row["name"] for row in run("list")]
    changed = run("alter", "cmd", "--retention-bytes", "1000")
    # A log may get an entry of its own node meanwhile, so its bytes are not compared.
    places = [[row | {"bytes": 0} for row in shown["shard_list"]] for shown in (made, changed)]
    assert places[0] == places[1]
    assert changed["retention_bytes"] == 1000
    resharded = run("alter", "cmd", "--shards", "3")
    assert [row["sealed"] for row in resharded["shard_list"]] == [True, True, False, False, False]
    assert run("show", "cmd")["generation"] > made["generation"]
    run("delete", "cmd", "--yes")
    gone = millrace("stream", "show", "cmd", "--url", broker.url)
    assert (gone.returncode, gone.stderr) == (1, "millrace: there is no stream 'cmd'\n")
    assert millrace("stream", "list", "--url", "ftp://x").returncode == 2


def test_wrong_streams_are_refused_with_a_reason(door: MqttDoor) -> None:
    create(door, "taken", "taken/+")
    for body, status in (
        ({"name": "taken", "filters": ["x"]}, 409),
        ({"name": "other", "filters": ["taken/+"]}, 400),
        ({"name": "other", "filters": ["a/#/b"]}, 400),
        ({"name": "../x", "filters": ["a"]}, 400),
        ({"name": "other", "filters": ["a"], "shards": 0}, 400),
        ({"name": "other", "filters": ["a"], "color": "red"}, 400),
    ):
        assert door("POST", "/v1/streams", body).status == status, body


def test_units_are_taken_and_a_refusal_names_setting_value_and_what_is_expected(door: MqttDoor) -> None:
    create(door, "units", "units/#")
    changed = door("PATCH", "/v1/streams/units", {"retention_age_s": "1h30m", "retention_bytes": "512MiB"})
    assert (changed.json["retention_age_s"], changed.json["retention_bytes"]) == (5_400, 512 * 1024**2)
    for change, sentence in (
        ({"shards": 0}, "stream 'units': shards = 0: expected a whole number from 1 to 256"),
        ({"shards": "2"}, "stream 'units': shards = '2': expected a whole number from 1 to 256"),
        ({}, "a change of a stream says one or more of: filters, replication,"),
        ({"shards": None}, "a change of a stream says one or more of: filters, replication,"),
        ({"color": "red"}, "a stream has no setting 'color'; there are: ack,"),
    ):
        answer = door("PATCH", "/v1/streams/units", change)
        assert answer.status == 400
        assert answer.json["detail"].startswith(sentence)


def test_replicas_that_no_node_is_there_for_are_warned_of(door: MqttDoor) -> None:
    """Only whoever asked is told: three is what a stream has unless somebody says otherwise."""
    create(door, "wide", "wide/#")
    assert "warnings" not in door("GET", "/v1/streams/wide").json
    changed = door("PATCH", "/v1/streams/wide", {"replicas": 7})
    assert changed.json["warnings"] == [
        "7 replicas are asked for and 1 node is there; 1 is kept now, more as nodes join"
    ]
    assert "warnings" not in door("PATCH", "/v1/streams/wide", {"replicas": 1}).json


def test_the_document_describes_every_setting_of_a_stream(door: MqttDoor) -> None:
    paths = door("GET", "/openapi.json").json["paths"]

    def form(path: str, method: str) -> dict[str, Any]:
        schema: dict[str, Any] = paths[path][method]["requestBody"]["content"]["application/json"]["schema"]
        return schema

    made, changed = form("/v1/streams", "post"), form("/v1/streams/{name}", "patch")
    assert made["required"] == ["name"]
    assert set(made["properties"]) == set(StreamSpec.fields()) == {"name", *changed["properties"]}
    for name, field in StreamSpec.fields().items():
        assert made["properties"][name]["description"].startswith(field.description)
    assert made["properties"]["shards"] | {"description": ""} == {
        "type": "integer",
        "minimum": 1,
        "maximum": 256,
        "default": 1,
        "description": "",
    }
    assert form("/v1/groups", "post")["required"] == ["name", "filters"]


def test_messages_are_read_by_offset_and_a_reader_waits_at_the_end(door: MqttDoor) -> None:
    (shard,) = create(door, "read", "read/#")
    places = publish(door, "read/a", "0", "1", "2")
    assert [(row["shard"], row["offset"]) for row in places] == [(shard, 0), (shard, 1), (shard, 2)]
    page = door("GET", f"/v1/streams/read/shards/{shard}/messages?from=1&limit=1").json
    assert [(m["offset"], m["payload"]) for m in page["messages"]] == [(1, "1")]
    assert (page["next_offset"], page["end_offset"]) == (2, 3)
    assert payloads(door, "read", shard, "&from=latest&wait_ms=20") == []
    later: list[list[str]] = []
    reader = threading.Thread(
        target=lambda: later.append(payloads(door, "read", shard, "&from=3&wait_ms=20000"))
    )
    reader.start()
    publish(door, "read/a", "3")
    reader.join(10)
    assert later == [["3"]]


def test_a_filter_chooses_topics(door: MqttDoor) -> None:
    (shard,) = create(door, "chosen", "chosen/#")
    publish(door, "chosen/a/x", "a")
    publish(door, "chosen/b/x", "b")
    assert payloads(door, "chosen", shard, "&filter=chosen/%2B/x") == ["a", "b"]
    assert payloads(door, "chosen", shard, "&filter=chosen/b/%23") == ["b"]
    assert payloads(door, "chosen", shard, "&filter=chosen/c") == []


def test_raw_blocks_hold_the_messages(door: MqttDoor) -> None:
    (shard,) = create(door, "raw", "raw/#")
    for number in range(5):
        publish(door, "raw/a", str(number))
    answer = door("GET", f"/v1/streams/raw/shards/{shard}/blocks?from=1&to=4")
    assert answer.headers["millrace-next-offset"] == "4"
    found, at = [], 0
    while at < len(answer.body):
        block = parse_block(answer.body, at)
        at += HEAD_BYTES + block.header.body_bytes
        columns = block.columns()
        for row in range(block.header.count):
            start = columns.payload_positions[row]
            payload = bytes(columns.packets[start : start + columns.payload_sizes[row]])
            found.append((block.header.base_offset + row, payload))
    assert found == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_what_was_purged_is_gone_and_the_error_names_the_earliest(door: MqttDoor) -> None:
    (shard,) = create(door, "purged", "purged/#")
    publish(door, "purged/a", "0", "1", "2")
    rows = door("POST", "/v1/streams/purged/purge", {"before": 2}).json["shard_list"]
    assert (rows[0]["first_offset"], rows[0]["next_offset"]) == (2, 3)
    for path in ("messages", "blocks"):
        answer = door("GET", f"/v1/streams/purged/shards/{shard}/{path}?from=0")
        assert (answer.status, answer.json["earliest_offset"]) == (410, 2)
    assert payloads(door, "purged", shard, "&from=earliest") == ["2"]
    door("POST", "/v1/streams/purged/purge", {})
    assert payloads(door, "purged", shard) == []
    assert publish(door, "purged/a", "3")[0]["offset"] == 3


def test_sub_from_reads_the_logs_and_then_what_comes(broker: BrokerProcess, door: MqttDoor) -> None:
    create(door, "followed", "followed/#", shards=2)
    publish(door, "followed/a", "one", "two")
    publish(door, "followed/b", "three")
    got: list = []

    def follow() -> None:
        arguments = ("sub", "followed/#", "--from", "earliest", "--count", "4", "--url", broker.url)
        got.append(millrace(*arguments, "--timeout", "15"))

    reader = threading.Thread(target=follow)
    reader.start()
    publish(door, "followed/a", "four")
    reader.join(20)
    assert got[0].returncode == 0, got[0].stderr
    assert sorted(got[0].stdout.split()) == ["four", "one", "three", "two"]
    assert got[0].stdout.split().index("one") < got[0].stdout.split().index("two")
    wrong = millrace("sub", "a", "--from", "yesterday", "--url", broker.url)
    assert wrong.returncode == 2


def test_sub_from_an_offset_begins_at_the_end_of_logs_that_are_shorter(
    broker: BrokerProcess, door: MqttDoor
) -> None:
    create(door, "uneven", "uneven/#", shards=2)
    topics = [f"uneven/{number}" for number in range(20)]
    shard_of = {topic: publish(door, topic, "0")[0]["shard"] for topic in topics}
    long = topics[0]
    short = next(topic for topic in topics if shard_of[topic] != shard_of[long])
    start = publish(door, long, *map(str, range(1, 30)), "last")[-1]["offset"]
    assert door("GET", f"/v1/streams/uneven/shards/{shard_of[short]}/messages?from={start}").status == 409
    messages = follow(Http(broker.url), ["uneven/#"], start)
    first = next(message for message in messages if message is not None)
    assert (first["topic"], first["payload"]) == (long, "last")
    # A round in which nothing was found: by now every log has its place.
    assert next(messages) is None
    publish(door, short, "new")
    second = next(message for message in messages if message is not None)
    assert (second["topic"], second["payload"]) == (short, "new")


def test_a_reader_of_logs_finishes_sealed_shards_first(broker: BrokerProcess, door: MqttDoor) -> None:
    """More than a page in the old shard: order per topic holds across the change [rule 16]."""
    create(door, "moved", "moved/#")
    count = 1_500
    for first in range(0, count, 500):
        publish(door, "moved/a", *map(str, range(first, first + 500)))
    assert door("PATCH", "/v1/streams/moved", {"shards": 2}).status == 200
    publish(door, "moved/a", "last")
    messages = follow(Http(broker.url), ["moved/a"], "earliest")
    got = list(itertools.islice((one["payload"] for one in messages if one is not None), count + 1))
    assert got == [*map(str, range(count)), "last"]


# -------------------------------------------------------------------------------------------- groups


def take(door: MqttDoor, name: str, **form: object) -> list[dict]:
    answer = door("POST", f"/v1/groups/{name}/take", form)
    assert answer.status == 200, answer
    return answer.json["messages"]


def test_a_group_collects_while_nobody_is_there_over_all_streams(
    broker: BrokerProcess, door: MqttDoor, devices: Callable[..., Device]
) -> None:
    create(door, "g-one", "g/one/#", shards=3)
    assert door("POST", "/v1/groups", {"name": "wide", "filters": ["g/#"]}).status == 201
    device = devices(broker.port).connect()
    sent = [(f"g/{'one' if number % 2 else 'two'}/{number}", str(number)) for number in range(20)]
    for topic, payload in sent:
        device.publish(topic, payload.encode(), qos=1)
    device.publish("h/else", b"not for it", qos=1)
    shown = door("GET", "/v1/groups/wide").json
    assert shown["lag"] == 20
    assert len(shown["shards"]) == 4
    got: list[dict] = []
    while batch := take(door, "wide", count=7, ack="manual"):
        got += batch
        receipts = [message["receipt"] for message in batch]
        assert all(door("POST", "/v1/groups/wide/ack", {"receipts": receipts}).json["results"])
    assert sorted((message["topic"], message["payload"]) for message in got) == sorted(sent)
    assert door("GET", "/v1/groups/wide").json["lag"] == 0


def test_a_group_follows_its_topics_into_new_shards_in_order(door: MqttDoor) -> None:
    """Topics of `default` move to a stream of their own, which is then cut into more shards."""
    door("POST", "/v1/groups", {"name": "mover", "filters": ["move/a"]})
    publish(door, "move/a", "1", "2")
    create(door, "move", "move/#")
    publish(door, "move/a", "3", "4")
    assert door("PATCH", "/v1/streams/move", {"shards": 4}).status == 200
    publish(door, "move/a", "5")
    assert [message["payload"] for message in take(door, "mover", count=10)] == ["1", "2", "3", "4", "5"]


def test_a_group_begins_at_the_beginning_and_is_reset_by_command(
    broker: BrokerProcess, door: MqttDoor
) -> None:
    create(door, "again", "again/#")
    publish(door, "again/a", "1", "2")

    def run(*arguments: str) -> dict:
        result = millrace("group", *arguments, "--url", broker.url, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    made = run("create", "readers", "again/#", "--from", "earliest")
    assert made["lag"] == 2
    assert [message["payload"] for message in take(door, "readers", count=5)] == ["1", "2"]
    assert run("reset", "readers", "--to", "earliest", "--yes")["lag"] == 2
    assert [message["payload"] for message in take(door, "readers", count=1)] == ["1"]
    assert run("reset", "readers", "--to", "latest", "--yes")["lag"] == 0
    assert "readers" in [row["name"] for row in run("list")]
    run("delete", "readers", "--yes")
    assert door("POST", "/v1/groups/readers/take", {}).status == 404
    door("POST", "/v1/groups", {"name": "readers", "filters": ["again/#"]})
    assert take(door, "readers") == []


def test_the_client_consumes_with_explicit_acknowledgement(broker: BrokerProcess, door: MqttDoor) -> None:
    door("POST", "/v1/groups", {"name": "clients", "filters": ["client/#"]})
    http = Http(broker.url)
    first = http.publish("client/a", b"\xff1", producer="me", sequence=1)
    assert http.publish("client/a", b"\xff1", producer="me", sequence=1)["duplicate"] is True
    (taken,) = http.take("clients", wait_ms=5_000)
    assert (taken["offset"], base64.b64decode(taken["payload"])) == (first["offset"], b"\xff1")
    assert http.nack("clients", taken["receipt"]) == [True]
    (again,) = http.take("clients", request="once")
    assert http.take("clients", request="once")[0]["receipt"] == again["receipt"]
    assert http.ack("clients", again["receipt"], again["receipt"]) == [True, True], "the same, said twice"
    assert http.ack("clients", taken["receipt"]) == [False], "it was given back, and taken again"
    assert http.take("clients") == []
    with pytest.raises(HttpError, match="there is no group 'none'"):
        http.take("none")


def test_two_groups_each_get_every_message(door: MqttDoor) -> None:
    for name in ("pair-a", "pair-b"):
        door("POST", "/v1/groups", {"name": name, "filters": ["pair/#"]})
    publish(door, "pair/x", "m")
    for name in ("pair-a", "pair-b"):
        assert [message["payload"] for message in take(door, name)] == ["m"]


def test_a_group_that_was_overtaken_by_a_purge_is_told(door: MqttDoor) -> None:
    create(door, "lost", "lost/#")
    door("POST", "/v1/groups", {"name": "slow", "filters": ["lost/#"]})
    publish(door, "lost/a", "1", "2", "3")
    assert take(door, "slow", ack="manual")[0]["payload"] == "1"
    door("POST", "/v1/streams/lost/purge", {"before": 2})
    assert [message["payload"] for message in take(door, "slow", count=5)] == ["3"]
    rows = [row for row in door("GET", "/v1/groups/slow").json["shards"] if row["stream"] == "lost"]
    assert rows[0]["missed"] == 2


def test_groups_that_make_no_sense_are_refused(door: MqttDoor) -> None:
    for body in (
        {"name": "bad", "filters": []},
        {"name": "bad", "filters": ["a/#"], "deliveries_max": 3},
        {"name": "bad", "filters": ["a/#"], "deliveries_max": 3, "dead_letter": "a/dead"},
        {"name": "queue:other", "filters": ["a"]},
    ):
        assert door("POST", "/v1/groups", body).status == 400, body


def test_streams_groups_and_cursors_are_there_after_a_clean_restart(
    start_broker: StartBroker, tmp_path
) -> None:
    data = ("--data", str(tmp_path / "kept"))
    first = start_broker(*data)
    door = MqttDoor(first.ports["http"])
    (shard,) = create(door, "kept", "kept/#")
    door("POST", "/v1/groups", {"name": "keepers", "filters": ["kept/#"]})
    publish(door, "kept/a", "1", "2", "3")
    held = take(door, "keepers", ack="manual")[0]
    door("POST", "/v1/streams/kept/purge", {"before": 0})
    first.process.terminate()
    assert first.wait_exit() == 0
    door = MqttDoor(start_broker(*data).ports["http"])
    assert payloads(door, "kept", shard) == ["1", "2", "3"]
    assert [message["payload"] for message in take(door, "keepers", count=5)] == ["2", "3"]
    assert door("POST", "/v1/groups/keepers/ack", {"receipts": [held["receipt"]]}).json["results"] == [True]
    assert door("GET", "/v1/groups/keepers").json["lag"] == 0


# ----------------------------------------------------------------------------------------- retention


def test_a_stream_past_its_bytes_lets_whole_segments_go(
    start_broker: StartBroker, tmp_path, devices: Callable[..., Device]
) -> None:
    """Far below the usual size of a segment; files go once a snapshot covers them, also before a restart."""
    data = ("--data", str(tmp_path / "bounded"), "--set", "storage.sync=never")
    broker = start_broker(*data)
    door = MqttDoor(broker.ports["http"])
    (shard,) = create(door, "bounded", "bounded/#", retention_bytes=8 << 20)
    device = devices(broker.port).connect()
    payload = b"x" * (1 << 20)
    published = 0

    def row() -> dict:
        return door("GET", "/v1/streams/bounded").json["shard_list"][0]

    def is_trimmed() -> bool:
        nonlocal published
        device.publish("bounded/a", payload, qos=1)
        published += 1
        return row()["first_offset"] > 0

    until(is_trimmed, "the oldest segment to be trimmed", 60.0)
    until(lambda: row()["bytes"] < 9 << 20, "its files to go", 30.0)
    first = row()["first_offset"]
    assert 0 < first < published
    answer = door("GET", f"/v1/streams/bounded/shards/{shard}/messages?from=0")
    assert (answer.status, answer.json["earliest_offset"]) == (410, first)
    broker.process.kill()
    broker.wait_exit()
    door = MqttDoor(start_broker(*data).ports["http"])
    assert (row()["first_offset"], row()["next_offset"]) == (first, published)


def test_a_group_holds_what_it_has_not_read_up_to_the_hard_limit(door: MqttDoor) -> None:
    """Everything is older than the policy keeps. A group that says how far it has come, as a query of Spark's
    does, holds the rest; so does one with a message on lease. The hard limit passes both, and counts it."""
    (shard,) = create(door, "held", "held/#", retention_age_s=1)
    assert door("POST", "/v1/groups", {"name": "reader", "filters": ["held/#"]}).status == 201
    assert door("POST", "/v1/groups", {"name": "worker", "filters": ["held/#"]}).status == 201
    publish(door, "held/a", *("x" * 1_000 for _ in range(9)))
    took = take(door, "worker", count=9, ack="manual", lease_ms=600_000)
    done = [one["receipt"] for one in took if one["offset"] != 5]
    assert all(door("POST", "/v1/groups/worker/ack", {"receipts": done}).json["results"])

    def first_offset() -> int:
        return door("GET", "/v1/streams/held").json["shard_list"][0]["first_offset"]

    for position, begins in ((3, 3), (7, 5)):
        assert door("POST", "/v1/groups/reader/advance", {"positions": {str(shard): position}}).status == 204
        until(lambda begins=begins: first_offset() == begins, f"the log to begin at {begins}")

    def missed(group: str) -> int:
        rows = door("GET", f"/v1/groups/{group}").json["shards"]
        return sum(row["missed"] for row in rows if row["stream"] == "held")

    assert missed("worker") == 0
    assert door("PATCH", "/v1/streams/held", {"hold_age_s": 1}).status == 200
    until(lambda: first_offset() == 9, "the hard limit to pass")
    assert (missed("reader"), missed("worker")) == (2, 1)


def test_a_group_does_not_hold_default_where_its_topics_have_streams(start_broker: StartBroker) -> None:
    """What a reader by offset never looks at goes; a group of `default`'s own topics holds it."""
    door = MqttDoor(start_broker("--set", "storage.sync=never").ports["http"])
    create(door, "own", "own/#")
    body = {"retention_age_s": 1, "hold_age_s": 3600}
    assert door("PATCH", "/v1/streams/default", body).status == 200
    assert door("POST", "/v1/groups", {"name": "aside", "filters": ["own/+/a"]}).status == 201
    publish(door, "other/a", "1", "2", "3")

    def first_offset() -> int:
        return door("GET", "/v1/streams/default").json["shard_list"][0]["first_offset"]

    until(lambda: first_offset() == 3, "what nobody holds to go")
    assert door("POST", "/v1/groups", {"name": "holder", "filters": ["other/#"]}).status == 201
    publish(door, "other/a", "4", "5")
    publish(door, "own/x", "6")
    shard = door("GET", "/v1/streams/default").json["shard_list"][0]["shard"]
    door("POST", "/v1/groups/holder/advance", {"positions": {str(shard): 4}})
    until(lambda: first_offset() == 4, "what the holder is done with to go")


def test_what_is_too_old_goes_also_where_nothing_new_comes(door: MqttDoor) -> None:
    (shard,) = create(door, "brief", "brief/#", retention_age_s=1)
    publish(door, "brief/a", *("x" * 100_000 for _ in range(3)))

    def row() -> dict:
        return door("GET", "/v1/streams/brief").json["shard_list"][0]

    until(lambda: row()["first_offset"] == 3, "everything to be trimmed")
    until(lambda: row()["bytes"] < 50_000, "the files to go", 30.0)
    assert door("GET", f"/v1/streams/brief/shards/{shard}/messages?from=0").status == 410
