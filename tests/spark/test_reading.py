"""The HTTP side of the source at real nodes: dead addresses, missing streams, who may read, secrets."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.processes import BrokerProcess, millrace
from millrace.client.http import Http, NobodyAnswers
from millrace.errors import ConfigError, LocalError
from millrace.spark import options
from millrace.spark.offsets import Extent
from millrace.spark.reading import ClusterReader, Expired
from spark.filling import fill

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A node where nobody but `ann`, with the password `wonder`, may do anything."""
    directory: Path = tmp_path_factory.mktemp("guarded")
    users = str(directory / "users.toml")
    for words, stdin in (
        (("user", "add", "ann", "--password-stdin"), "wonder\n"),
        (("acl", "add", "ann", "allow", "all", "#"), ""),
    ):
        done = millrace(*words, "--users", users, stdin=stdin)
        assert done.returncode == 0, done.stderr
    broker = BrokerProcess(
        directory, "--set", f"access.users_file={users}", "--set", "access.anonymous=never"
    ).wait_ready()
    yield broker
    broker.stop()


def test_a_dead_node_is_passed_over_and_remembered(node: BrokerProcess, http: Http) -> None:
    http.publish("nodes/one", b"x")
    reader = ClusterReader((_NOBODY, node.url))
    extents = reader.extents("default")
    place = http.publish("nodes/one", b"y")
    shard, offset = place["shard"], place["offset"]
    data, after = reader.blocks("default", shard, offset, offset + 1)
    assert (data[:4], after) == (b"MRBK", offset + 1)
    assert extents[shard].next == offset
    assert reader.http.urls[0] == node.url
    reader.http.close()


def test_nobody_there_is_an_error_that_names_the_address() -> None:
    with pytest.raises(LocalError, match=r"no node has an answer for stream 'default'.*refused"):
        ClusterReader((_NOBODY,), patience_s=0.2).extents("default")


def test_what_is_not_there_is_said(node: BrokerProcess) -> None:
    reader = ClusterReader((_NOBODY, node.url))
    with pytest.raises(LocalError, match="there is no stream 'nowhere'"):
        reader.extents("nowhere")
    with pytest.raises(LocalError, match="there is no stream 'nowhere'"):
        reader.extents("default", "nowhere")
    assert reader.extents_matching("nowhere|defau.t") == reader.extents("default")
    assert reader.extents_matching("nowhere") == {}
    with pytest.raises(Expired, match="shard 999: offset 5 was asked for, but the shard is no longer there"):
        ClusterReader((node.url,)).blocks("default", 999, 5, 6)


def test_a_lagging_node_is_waited_for_and_then_named(node: BrokerProcess, http: Http) -> None:
    """An offset that another node promised and this one does not have yet is no data and no end."""
    place = http.publish("nodes/one", b"z")
    after = place["offset"] + 1
    reader = ClusterReader((node.url,), patience_s=0.2)
    for start in (after, after + 5):
        with pytest.raises(LocalError, match="no node has an answer"):
            reader.blocks("default", place["shard"], start, start + 1)


def test_times_are_found_by_the_node(node: BrokerProcess, http: Http) -> None:
    http.call("POST", "/v1/streams", {"name": "times", "filters": ["times/#"], "shards": 1})
    places = [http.publish("times/t", b"x") for _ in range(20)]
    shard = places[0]["shard"]
    stamps = [row["time_us"] for row in http.messages("times", shard, 0)["messages"]]
    extent = Extent(first=0, next=20)
    reader = ClusterReader((node.url,))
    assert [reader.offset_at("times", shard, extent, time_us) for time_us in stamps] == [
        stamps.index(time_us) for time_us in stamps
    ]
    assert reader.offset_at("times", shard, extent, stamps[0] - 1) == 0
    assert reader.offset_at("times", shard, extent, stamps[-1] + 1) == 20
    # What came after the extent was asked for belongs to the next batch.
    assert reader.offset_at("times", shard, Extent(first=0, next=15), stamps[-1]) == 15


def test_times_inside_a_block_are_found(node: BrokerProcess, http: Http) -> None:
    """Many messages of one block: the offset of each time is the first message with it."""
    http.call("POST", "/v1/streams", {"name": "many", "filters": ["many/#"], "shards": 1})
    fill(node.port, [("many/t", b"x")] * 3_000)
    (row,) = http.get("/v1/streams/many")["shard_list"]
    stamps = []
    while len(stamps) < 3_000:
        stamps += [one["time_us"] for one in http.messages("many", row["shard"], len(stamps))["messages"]]
    reader, extent = ClusterReader((node.url,)), Extent(first=0, next=3_000)
    for time_us in sorted(set(stamps))[:: max(1, len(set(stamps)) // 20)]:
        assert reader.offset_at("many", row["shard"], extent, time_us) == stamps.index(time_us)


def test_a_group_shows_progress_and_is_made_when_it_is_missing(node: BrokerProcess, http: Http) -> None:
    """It follows the query forwards only, on the filters of the stream; a repeat changes nothing."""
    http.call("POST", "/v1/streams", {"name": "followed", "filters": ["followed/#"], "shards": 1})
    places = [http.publish("followed/t", b"x") for _ in range(10)]
    shard = places[0]["shard"]
    reader = ClusterReader((_NOBODY, node.url))
    for position, lag in ((4, 6), (4, 6), (2, 6), (9, 1)):
        reader.advance("watcher", (), ["followed"], {shard: position})
        shown = http.get("/v1/groups/watcher")
        assert (shown["filters"], shown["lag"]) == (["followed/#"], lag)
    reader.advance("narrow", ("followed/other",), ["followed"], {shard: 10, 999: 5})
    assert http.get("/v1/groups/narrow")["filters"] == ["followed/other"]


def test_a_refused_group_is_an_error_and_a_silent_cluster_another(guarded: BrokerProcess) -> None:
    with pytest.raises(NobodyAnswers):
        ClusterReader((_NOBODY,), patience_s=0.2).advance("g", (), ["default"], {0: 1})
    with pytest.raises(LocalError) as refused:
        ClusterReader((guarded.url,)).advance("g", (), ["default"], {0: 1})
    assert not isinstance(refused.value, NobodyAnswers)


def test_a_password_comes_from_outside_and_is_in_no_pickle(
    guarded: BrokerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the environment or a file; an option that holds one is refused before anything is sent."""
    url = guarded.url.replace("http://", "http://ann@")
    with pytest.raises(LocalError):
        ClusterReader((url,), "wrong").extents("default")
    monkeypatch.setenv(options.PASSWORD_VARIABLE, "wonder")
    given = options.parse({"url": url})
    assert ClusterReader(*options.access(given)).extents("default")
    assert b"wonder" not in pickle.dumps(given)
    monkeypatch.delenv(options.PASSWORD_VARIABLE)
    secret = tmp_path / "secret"
    secret.write_text("wonder\n")
    given = options.parse({"url": url, "passwordFile": str(secret)})
    assert ClusterReader(*options.access(given)).extents("default")
    assert b"wonder" not in pickle.dumps(given)
    with pytest.raises(ConfigError, match="a secret in an option"):
        options.parse({"url": url.replace("ann@", "ann:wonder@")})


def test_a_token_names_the_user_and_is_in_no_pickle(
    guarded: BrokerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the environment or a file: one word, and no user in the address."""
    file = tmp_path / "token"
    file.write_text("ann:wonder\n")
    given = options.parse({"url": guarded.url, "tokenFile": str(file)})
    assert b"wonder" not in pickle.dumps(given)
    assert ClusterReader(*options.access(given)).extents("default")
    given = options.parse({"url": guarded.url})
    with pytest.raises(LocalError):
        ClusterReader(*options.access(given)).extents("default")
    monkeypatch.setenv(options.TOKEN_VARIABLE, "ann:wonder")
    assert ClusterReader(*options.access(given)).extents("default")
    monkeypatch.setenv(options.TOKEN_VARIABLE, "wonder")
    with pytest.raises(ConfigError, match="USER:PASSWORD"):
        options.access(given)
    with pytest.raises(ConfigError, match="a secret in an option"):
        options.parse({"token": "ann:wonder"})
