"""Streams are made, written to and deleted again and again on a real broker: it goes on."""

import threading

import pytest

from e2e.conftest import StartBroker
from e2e.http_calls import MqttDoor
from e2e.processes import BrokerProcess

ROUNDS = 12
PUBLISHERS = 3
ROW = {"topic": "brief/x", "payload": "x" * 2_000}


@pytest.mark.parametrize("replication", ["quorum", "leaderless"])
@pytest.mark.parametrize("sync", ["always", "interval"])
def test_a_stream_that_is_published_to_may_be_deleted(
    start_broker: StartBroker, sync: str, replication: str
) -> None:
    # In the thread, so that a write is under way while the loop goes on.
    settings = (f"storage.sync={sync}", "storage.sync_in_place=false")
    broker: BrokerProcess = start_broker(*(word for one in settings for word in ("--set", one)))
    is_over = threading.Event()
    counts = [0] * PUBLISHERS

    def publish(number: int) -> None:
        door = MqttDoor(broker.ports["http"])
        while not is_over.is_set():
            door("POST", "/v1/publish/batch", {"messages": [ROW] * 20})
            counts[number] += 1

    publishers = [threading.Thread(target=publish, args=(n,), daemon=True) for n in range(PUBLISHERS)]
    for thread in publishers:
        thread.start()
    door = MqttDoor(broker.ports["http"])
    try:
        for _ in range(ROUNDS):
            body = {"name": "brief", "filters": ["brief/#"], "replication": replication}
            assert door("POST", "/v1/streams", body).status == 201
            published = door("POST", "/v1/publish", ROW)
            assert published.status == 200, published
            assert door("DELETE", "/v1/streams/brief").status in (200, 204)
    finally:
        is_over.set()
    for thread in publishers:
        thread.join(30)
    assert min(counts) > 0
    assert door("POST", "/v1/publish", ROW).status == 200
    assert "the node stops" not in broker.log
