"""Two-step publishing at a real node: invisible until decided, decided once, visible whoever dies."""

import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from e2e.device import Device
from e2e.http_calls import call
from e2e.processes import BrokerProcess, millrace
from e2e.staged import Writer, contents, packet, section, staged_bytes
from e2e.test_access import Keeper
from millrace.client.http import Http
from millrace.errors import LocalError
from millrace.spark.writing import ClusterWriter
from waiting import until

StartBroker = Callable[..., BrokerProcess]
_numbers = count()


def stream_at(broker: BrokerProcess, **settings: object) -> tuple[Http, str]:
    """A stream of the test's own."""
    http, name = Http(broker.url), f"staged{next(_numbers)}"
    http.call("POST", "/v1/streams", {"name": name, "filters": [f"{name}/#"], "shards": 2, **settings})
    return http, name


def test_a_batch_is_visible_after_its_commit_and_once(broker: BrokerProcess) -> None:
    """Staged data has no offset; the decision makes it messages; a repeat changes nothing, whoever asks."""
    http, stream = stream_at(broker)
    writer = Writer("w-once", [broker.url], stream)
    staged = writer.stage(0, "a1", range(100), blocks=3)
    assert contents(http, stream) == Counter() and staged_bytes(http, stream) > 0
    assert [row["next_offset"] for row in http.get(f"/v1/streams/{stream}")["shard_list"]] == [0, 0]
    assert writer.commit(0, a1=staged) is False
    assert contents(http, stream) == Counter(range(100))
    assert staged_bytes(http, stream) == 0
    # The driver did not hear the answer and asks again; another one staged the same batch anew.
    assert writer.commit(0, a1=staged) is True
    second = Writer("w-once", [broker.url], stream)
    again = second.stage(0, "b1", range(100))
    assert second.commit(0, b1=again) is True
    until(lambda: staged_bytes(http, stream) == 0, "what lost to be dropped")
    assert contents(http, stream) == Counter(range(100))
    assert http.get("/v1/writers/w-once")["last_batch"] == 0


def test_only_the_winners_of_a_batch_are_kept(broker: BrokerProcess) -> None:
    """A task that ran twice staged twice: the attempt that the commit names counts, the other is dropped."""
    http, stream = stream_at(broker)
    writer = Writer("w-twice", [broker.url], stream)
    writer.stage(0, "first", range(50))
    second = writer.stage(0, "second", range(50))
    other = writer.stage(0, "other", range(50, 80))
    writer.commit(0, second=second, other=other)
    assert contents(http, stream) == Counter(range(80))
    until(lambda: staged_bytes(http, stream) == 0, "what lost to be dropped")


def test_sending_a_section_again_stages_it_once(broker: BrokerProcess) -> None:
    http, stream = stream_at(broker, shards=1)
    writer = Writer("w-again", [broker.url], stream)
    (shard,) = [row["shard"] for row in http.get(f"/v1/streams/{stream}")["shard_list"]]
    body = section(shard, 0, packet(f"{stream}/t", b"1")) + section(shard, 1, packet(f"{stream}/t", b"2"))
    for _ in range(3):
        writer.cluster.stage(stream, writer.name, 0, "a", body)
    assert http.get("/v1/writers/w-again")["staged"][0]["blocks"] == 2
    writer.commit(0, a={shard: 2})
    assert contents(http, stream) == Counter((1, 2))


def test_what_was_given_up_never_wins(broker: BrokerProcess) -> None:
    """An abort goes through the coordinator: the data goes, and a late commit of it is refused."""
    http, stream = stream_at(broker)
    writer = Writer("w-abort", [broker.url], stream, patience_s=0.1)
    staged = writer.stage(3, "a", range(10))
    kept = writer.stage(3, "b", range(10))
    writer.cluster.abort("w-abort", 3, ["a"])
    until(lambda: len(http.get("/v1/writers/w-abort")["staged"]) == len(kept), "the attempt to be dropped")
    with pytest.raises(Exception, match=r"0 blocks are staged|was given up"):
        writer.commit(3, a=staged)
    assert contents(http, stream) == Counter()
    writer.commit(3, b=kept)
    assert contents(http, stream) == Counter(range(10))
    # Everything of a writer, by name alone.
    writer.stage(4, "c", range(10))
    http.call("POST", "/v1/writers/w-abort/abort", {})
    until(lambda: staged_bytes(http, stream) == 0, "everything to be dropped")
    # The decision stands; giving it up afterwards changes nothing.
    writer.cluster.abort("w-abort", 3, ["b"])
    assert contents(http, stream) == Counter(range(10))


def test_a_subscriber_gets_what_was_committed(broker: BrokerProcess, devices: Callable[..., Device]) -> None:
    """Released messages are delivered and retained like any others."""
    http, stream = stream_at(broker, shards=1)
    (shard,) = [row["shard"] for row in http.get(f"/v1/streams/{stream}")["shard_list"]]
    device = devices(broker.port, client_id="staged-watcher").connect()
    device.subscribe(f"{stream}/#", qos=1)
    writer = Writer("w-mqtt", [broker.url], stream)
    packets = packet(f"{stream}/t", b"7") + packet(f"{stream}/kept", b"8", first=0x33)
    writer.cluster.stage(stream, writer.name, 0, "a", section(shard, 0, packets))
    writer.commit(0, a={shard: 1})
    device.expect_payloads(b"7", b"8")
    late = devices(broker.port, client_id="staged-late").connect()
    late.subscribe(f"{stream}/#", qos=1)
    (kept,) = late.expect()
    assert (kept.topic, kept.payload, kept.retain) == (f"{stream}/kept", b"8", True)


def test_a_killed_node_keeps_what_was_staged_and_decided(tmp_path: Path) -> None:
    """kill -9 after staging, and again right after the decision: nothing is lost and nothing comes twice."""
    broker = BrokerProcess(tmp_path).wait_ready()
    try:
        http, stream = stream_at(broker)
        staged = Writer("w-kill", [broker.url], stream).stage(0, "a", range(500), blocks=5)
        broker.signal(signal.SIGKILL)
        broker.wait_exit()
        broker = BrokerProcess(tmp_path).wait_ready()
        http = Http(broker.url)
        assert contents(http, stream) == Counter() and staged_bytes(http, stream) > 0
        writer = Writer("w-kill", [broker.url], stream)
        writer.commit(0, a=staged)
        # As soon as the decision is known, whatever is visible by then.
        more = writer.stage(1, "b", range(500, 3_000), blocks=25)
        body = {"batch": 1, "attempts": {"b": more}}
        with suppress(LocalError):
            http.call("POST", "/v1/writers/w-kill/commit", body, timeout_s=0.004)
        broker.signal(signal.SIGKILL)
        broker.wait_exit()
        broker = BrokerProcess(tmp_path).wait_ready()
        http = Http(broker.url)
        Writer("w-kill", [broker.url], stream).commit(1, b=more)
        assert contents(http, stream) == Counter(range(3_000))
        until(lambda: staged_bytes(http, stream) == 0, "nothing to be staged")
    finally:
        broker.stop()


def test_a_snapshot_carries_what_is_staged(tmp_path: Path) -> None:
    """A clean stop writes a snapshot with staged data in it, and the next run releases it from there."""
    broker = BrokerProcess(tmp_path).wait_ready()
    try:
        _, stream = stream_at(broker)
        staged = Writer("w-stop", [broker.url], stream).stage(0, "a", range(300), blocks=3)
        broker.stop()
        broker = BrokerProcess(tmp_path).wait_ready()
        writer = Writer("w-stop", [broker.url], stream)
        more = writer.stage(0, "b", range(300, 400))
        writer.commit(0, a=staged, b=more)
        assert contents(Http(broker.url), stream) == Counter(range(400))
    finally:
        broker.stop()


def test_a_stream_that_changed_refuses_the_batch(broker: BrokerProcess) -> None:
    """What was staged at shards that are sealed now cannot win; staged again it does."""
    http, stream = stream_at(broker)
    writer = Writer("w-alter", [broker.url], stream, patience_s=0.1)
    staged = writer.stage(0, "a", range(20))
    http.call("PATCH", f"/v1/streams/{stream}", {"shards": 3})
    with pytest.raises(Exception, match="takes no more data, its stream was changed"):
        writer.commit(0, a=staged)
    again = writer.stage(0, "b", range(20))
    writer.commit(0, b=again)
    assert contents(http, stream) == Counter(range(20))
    until(lambda: staged_bytes(http, stream) == 0, "what lost to be dropped, at sealed shards too")


def test_staging_is_bounded(start_broker: StartBroker) -> None:
    """Beyond the limit a stage is refused with a sentence that names it; a commit makes room again."""
    broker = start_broker("--set", "limits.staged_bytes_max=1048576")
    http, stream = stream_at(broker, shards=1)
    (shard,) = [row["shard"] for row in http.get(f"/v1/streams/{stream}")["shard_list"]]
    writer = Writer("w-bound", [broker.url], stream, patience_s=0.1)
    many = packet(f"{stream}/t", b"5" * 100) * 5_000
    writer.cluster.stage(stream, writer.name, 0, "a", section(shard, 0, many))
    with pytest.raises(Exception, match=r"bytes are staged and not decided; the limit is 1048576"):
        writer.cluster.stage(stream, writer.name, 0, "a", section(shard, 1, many))
    writer.commit(0, a={shard: 1})
    writer.cluster.stage(stream, writer.name, 1, "b", section(shard, 0, many))


def test_attempts_that_stage_next_to_nothing_are_bounded_too(start_broker: StartBroker) -> None:
    """What a node remembers of an attempt is more than one small message."""
    broker = start_broker("--set", "limits.staged_bytes_max=1048576")
    _, stream = stream_at(broker, shards=1)
    writer = Writer("w-tiny", [broker.url], stream, patience_s=0.1)
    with pytest.raises(Exception, match=r"bytes are staged and not decided; the limit is 1048576"):
        for number in range(257):
            writer.stage(0, f"a{number}", [1])
    assert number > 200


def test_staged_amounts_are_shown(broker: BrokerProcess) -> None:
    """`millrace stream show` and HTTP tell how much is staged, and by whom."""
    http, stream = stream_at(broker, shards=1)
    Writer("w-shown", [broker.url], stream).stage(5, "a", range(10))
    (row,) = http.get("/v1/writers/w-shown")["staged"]
    assert (row["stream"], row["batch"], row["attempt"], row["rows"]) == (stream, 5, "a", 10)
    assert "w-shown" in [one["writer"] for one in http.get("/v1/writers")["writers"]]
    shown = millrace("stream", "show", stream, "--url", broker.url).stdout
    assert "staged bytes" in shown and str(staged_bytes(http, stream)) in shown
    with pytest.raises(Exception, match="there is no writer 'nobody'"):
        http.get("/v1/writers/nobody")


def _t(stream: str, payload: bytes, first: int = 0x32) -> bytes:
    return packet(f"{stream}/t", payload, first)


@pytest.mark.parametrize(
    ("make", "status", "sentence"),
    [
        (lambda n, s: b"\0\0", 400, "whole sections"),
        (lambda n, s: section(n, 0, _t(s, b"1"))[:-1], 400, "cut off"),
        (lambda n, s: section(n, 0, b"\x32\x05"), 400, "whole PUBLISH packets"),
        (lambda n, s: section(n, 0, b""), 400, "0 messages"),
        (lambda n, s: section(n, 0, _t(s, b"1"), version=3), 400, "another version"),
        (lambda n, s: section(n, 0, _t(s, b"1", 0x36)), 400, "QoS 3"),
        (lambda n, s: section(n, 0, _t(s, b"1", 0x3A)), 400, "duplicate"),
        (lambda n, s: section(n, 0, packet(f"{s}/+", b"1")), 400, "not a topic to publish to"),
        (lambda n, s: section(n, 0, packet("$SYS/t", b"1")), 400, "not a topic to publish to"),
        (lambda n, s: section(n, 0, packet("elsewhere/t", b"1")), 409, "belongs to stream 'default'"),
        (lambda n, s: section(n + 1_000, 0, _t(s, b"1")), 409, "no open shard"),
        (lambda n, s: section(n, 0, _t(s, b"\x02\x7f\0"), version=5), 400, "block 0"),
        (lambda n, s: section(n, 0, _t(s, b"\x03\x23\0\1"), version=5), 400, "topic alias"),
        (lambda n, s: section(n, 0, _t(s, b"1") * 10_001), 400, "a block has 1 to 10000"),
    ],
)
def test_a_wrong_section_is_refused(
    broker: BrokerProcess, make: Callable[[int, str], bytes], status: int, sentence: str
) -> None:
    """Nothing that a client sends reaches the log unless it is what the log keeps."""
    http, stream = stream_at(broker, shards=1)
    (shard,) = [row["shard"] for row in http.get(f"/v1/streams/{stream}")["shard_list"]]
    path = f"/v1/streams/{stream}/stage?writer=w&batch=0&attempt=a"
    raw = make(shard, stream)
    answer = call(broker.ports["http"], "POST", path, raw=raw, Content_Type="application/octet-stream")
    assert answer.status == status, answer.body
    assert sentence in answer.json["detail"]
    assert staged_bytes(http, stream) == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/streams/none/stage?writer=w&batch=0&attempt=a", None, 404),
        ("/v1/streams/default/stage?writer=w&batch=-1&attempt=a", None, 422),
        ("/v1/writers/a%20b/commit", {"batch": 0, "attempts": {}}, 400),
        ("/v1/writers/w/commit", {"batch": 0, "attempts": {"a/b": {}}}, 400),
        ("/v1/writers/w/commit", {"batch": 0, "attempts": {"a": {"x": 1}}}, 400),
        ("/v1/writers/w/commit", {"batch": 0, "attempts": {"a": {"16": 0}}}, 400),
        ("/v1/writers/w/commit", {"batch": -1, "attempts": {}}, 422),
        ("/v1/writers/w/abort", {"attempts": ["a"]}, 400),
    ],
)
def test_a_wrong_request_is_a_problem(broker: BrokerProcess, path: str, body: object, status: int) -> None:
    answer = call(broker.ports["http"], "POST", path, body)
    assert answer.status == status, answer.body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json["detail"]


def test_a_writer_belongs_to_its_user(start_broker: StartBroker, tmp_path: Path) -> None:
    """Staging needs the right to publish; its user decides for it, or an administrator."""
    keeper = Keeper(tmp_path)
    for name in ("alice", "bob", "root"):
        keeper.user(name, "secret")
    keeper.allow("root", "all", "#")
    keeper.allow("alice", "publish", "default/#")
    broker = start_broker(*keeper.settings)
    urls = {name: broker.url.replace("//", f"//{name}@") for name in ("alice", "bob", "root")}
    writers = {name: ClusterWriter((url,), "secret", 0.1) for name, url in urls.items()}
    (row,) = writers["alice"].streams()
    (shard,) = [one["shard"] for one in row["shard_list"]]
    body = section(shard, 0, packet("default/1", b"1"))
    with pytest.raises(Exception, match="you may not publish to 'default/1'"):
        writers["bob"].stage("default", "w", 0, "b", body)
    writers["alice"].stage("default", "w", 0, "a", body)
    for door in ("commit", "abort"):
        with pytest.raises(Exception, match="belongs to another user"):
            getattr(writers["bob"], door)("w", 0, {"a": {shard: 1}} if door == "commit" else ["a"])
    assert writers["alice"].commit("w", 0, {"a": {shard: 1}})["visible"]
    writers["alice"].stage("default", "w", 1, "c", body)
    writers["root"].abort("w", 1, ["c"])
    until(lambda: staged_bytes(Http(urls["root"], password="secret"), "default") == 0, "it to be dropped")


def test_nobody_stages_for_the_writer_of_another(start_broker: StartBroker, tmp_path: Path) -> None:
    """Neither into a running attempt nor beside it: a foreign attempt would block the writer, a foreign block
    would take the place of the owner's. An administrator stages in the owner's name."""
    keeper = Keeper(tmp_path)
    for name in ("alice", "bob", "root"):
        keeper.user(name, "secret")
        keeper.allow(name, "publish", "default/#")
    keeper.allow("root", "all", "#")
    broker = start_broker(*keeper.settings)
    urls = {name: broker.url.replace("//", f"//{name}@") for name in ("alice", "bob", "root")}
    writers = {name: ClusterWriter((url,), "secret", 0.1) for name, url in urls.items()}
    (row,) = writers["alice"].streams()
    (shard,) = [one["shard"] for one in row["shard_list"]]

    def stage(user: str, batch: int, block: int, payload: bytes, attempt: str = "a") -> None:
        body = section(shard, block, packet("default/1", payload))
        writers[user].stage("default", "w", batch, attempt, body)

    stage("alice", 0, 0, b"1")
    for attempt, block in (("a", 1), ("b", 0)):
        with pytest.raises(Exception, match="belongs to another user"):
            stage("bob", 0, block, b"666", attempt)
    stage("alice", 0, 1, b"2")
    assert writers["alice"].commit("w", 0, {"a": {shard: 2}})["visible"]
    # The query is run once under another user, with the checkpoint that it has.
    with pytest.raises(Exception, match="belongs to another user"):
        stage("bob", 1, 0, b"667", "c")
    stage("alice", 1, 0, b"3", "d")
    stage("root", 1, 0, b"4", "e")
    assert writers["alice"].commit("w", 1, {"d": {shard: 1}, "e": {shard: 1}})["visible"]
    assert contents(Http(urls["root"], password="secret"), "default") == Counter((1, 2, 3, 4))


def test_a_write_costs_as_much_after_many_others(broker: BrokerProcess) -> None:
    """What a round of writing brings to the disk does not depend on how many writers and batches were there
    before: counted in bytes that the node hands to the system, as time depends on the machine."""
    _, stream = stream_at(broker)

    def written_bytes() -> int:
        lines = Path(f"/proc/{broker.process.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])

    rounds = []
    for number in range(12):
        before = written_bytes()
        writer = Writer(f"w-round-{number}", [broker.url], stream)
        writer.commit(0, a=writer.stage(0, "a", range(10_000, 30_000), blocks=4))
        rounds.append(written_bytes() - before)
    # A log is made longer by a mebibyte at a time, so single rounds differ.
    assert sum(rounds[6:]) < 1.15 * sum(rounds[:6]), rounds
