"""Who speaks for a primary-backup stream: the lower epoch is refused, and nobody else."""

import json

import pytest

from millrace.client.epochs import Epochs, Standing
from millrace.kernels.checksum import crc32c

ALARMS = {"filters": ["alarms/#"], "shards": [7]}


def word(*primary: tuple[int, int], cluster: str = "c", streams: list[object] | None = None) -> bytes:
    return json.dumps({"cluster": cluster, "primary": primary, "streams": streams or [ALARMS]}).encode()


def test_the_lower_epoch_is_behind_once_a_higher_one_was_heard_of() -> None:
    epochs = Epochs()
    old, new = Standing(epochs), Standing(epochs)
    old.hear(word((7, 3)))
    assert not old.is_behind("alarms/1")
    new.hear(word((7, 4)))
    assert old.is_behind("alarms/1")
    assert not new.is_behind("alarms/1")
    assert not old.is_behind("else")


def test_who_is_no_primary_passes_on_and_is_never_behind() -> None:
    epochs = Epochs()
    old = Standing(epochs)
    old.hear(word((7, 3)))
    Standing(epochs).hear(word((7, 4)))
    old.hear(word())
    assert not old.is_behind("alarms/1")


def test_the_highest_epoch_outlives_connections_and_a_claim_does_not() -> None:
    epochs = Epochs()
    here = Standing(epochs)
    here.hear(word((7, 4)))
    here.lost()
    assert not here.is_behind("alarms/1"), "nothing was said over the new connection yet"
    here.hear(word((7, 3)))
    assert here.is_behind("alarms/1")


def test_another_cluster_counts_its_own_epochs() -> None:
    epochs = Epochs()
    Standing(epochs).hear(word((7, 9), cluster="one"))
    other = Standing(epochs)
    other.hear(word((7, 1), cluster="two"))
    assert not other.is_behind("alarms/1")


def test_a_topic_is_judged_by_its_own_shard() -> None:
    epochs = Epochs()
    streams: list[object] = [
        {"filters": ["alarms/#"], "shards": [7, 8]},
        {"filters": ["alarms/routed/+"], "shards": []},
    ]
    old = Standing(epochs)
    old.hear(word((7, 3), (8, 3), streams=streams))
    Standing(epochs).hear(word((7, 4), streams=streams))
    topics = [f"alarms/{number}" for number in range(20)]
    behind = {topic for topic in topics if old.is_behind(topic)}
    assert behind == {topic for topic in topics if crc32c(topic.encode()) % 2 == 0}
    assert 0 < len(behind) < len(topics)
    for number in range(20):
        assert not old.is_behind(f"alarms/routed/{number}"), "the more specific stream has the topic"


def test_whoever_listens_is_called_for_a_higher_epoch_only() -> None:
    epochs = Epochs()
    calls: list[int] = []
    epochs.listen("me", lambda: calls.append(1))
    here = Standing(epochs)
    for epoch in (3, 3, 2, 4):
        here.hear(word((7, epoch)))
    assert len(calls) == 2
    epochs.unlisten("me")
    here.hear(word((7, 9)))
    assert len(calls) == 2


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b'{"cluster": 1}', b'{"primary": [[1, "x"]]}'])
def test_a_word_that_cannot_be_read_changes_nothing(payload: bytes) -> None:
    epochs = Epochs()
    here = Standing(epochs)
    here.hear(word((7, 3)))
    here.hear(payload)
    Standing(epochs).hear(word((7, 4)))
    assert here.is_behind("alarms/1")
