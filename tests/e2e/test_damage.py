"""A disk that lies: damage in the middle of a log is reported and never served, and the rest is."""

import asyncio
from collections import Counter
from pathlib import Path

from e2e.running import run
from e2e.staged import Writer, contents, staged_bytes
from millrace import Broker
from millrace.broker.entries.meta import CommitBatch
from millrace.broker.shards.staging import AttemptKey
from millrace.broker.streams.stream import StreamSpec
from millrace.client.blocking import Client
from millrace.client.http import Http
from millrace.testing import ThreadedBroker


def flip_middle(data: Path, shard: int, needle: bytes) -> None:
    """Change one byte of a stored payload."""
    (path,) = (data / "shards" / str(shard)).glob("*.log")
    content = bytearray(path.read_bytes())
    content[content.index(needle)] ^= 1
    path.write_bytes(content)


def test_what_is_damaged_is_not_served_and_the_rest_is(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ThreadedBroker(node__data=str(data)) as broker:
        with Client(broker.url, client_id="sleeper", session_expiry_s=600) as sleeper:
            subscription = sleeper.subscribe("d/#", qos=1)
            subscription.__enter__()
        with Client(broker.url, client_id="pub") as publisher:
            for number in range(30):
                publisher.publish("d/x", f"message-{number:02d}".encode(), qos=1)
    flip_middle(data, 16, b"message-10")
    with ThreadedBroker(node__data=str(data)) as broker:
        got: list[bytes] = []
        with (
            Client(broker.url, client_id="sleeper", session_expiry_s=600) as sleeper,
            sleeper.subscribe("d/#", qos=1) as messages,
        ):
            for message in messages:
                got.append(message.payload)
                if message.payload == b"message-29":
                    break
        expected = [f"message-{number:02d}".encode() for number in range(30) if number != 10]
        assert got == expected
        with Client(broker.url, client_id="pub") as publisher:
            publisher.publish("d/x", b"the node goes on", qos=1)


def test_a_staged_block_that_is_damaged_is_passed_over_and_its_writer_goes_on(tmp_path: Path) -> None:
    """Nobody else has it, so nothing is to be waited for."""
    data = tmp_path / "data"
    with ThreadedBroker(node__data=str(data), listeners__http="127.0.0.1:0") as broker:
        url = f"http://127.0.0.1:{broker.ports['http']}"
        http = Http(url)
        http.call("POST", "/v1/streams", {"name": "s", "filters": ["s/#"]})
        (row,) = http.get("/v1/streams/s")["shard_list"]
        writer = Writer("w", [url], "s")
        staged = writer.stage(0, "a", range(1_000, 1_030), blocks=3)
        flip_middle(data, row["shard"], b"1016")
        writer.commit(0, a=staged)
        writer.commit(1, b=writer.stage(1, "b", range(2_000, 2_010)))
        lost = range(1_001, 1_030, 3)
        kept = set(range(1_000, 1_030)) - set(lost)
        assert contents(http, "s") == Counter([*kept, *range(2_000, 2_010)])
        assert staged_bytes(http, "s") == 0


def test_a_decided_batch_goes_on_without_what_a_start_found_damaged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Broker(node__data=str(tmp_path / "data"), listeners__http="127.0.0.1:0") as broker:
            engine, url = broker.server.engine, f"http://127.0.0.1:{broker.server.ports['http']}"
            stream = await engine.opening.put(StreamSpec(name="s", filters=("s/#",)), create=True)
            (number,) = stream.shards
            writer = Writer("w", [url], "s")
            await asyncio.to_thread(writer.stage, 0, "a", range(30), 3)
            await engine.writing.stop()
            await engine.definitions.command(CommitBatch("w", 0, {"a": {number: 3}}, ""))
            # As where its entry was passed over.
            engine.shards[number].staging.state.attempts[AttemptKey("w", 0, "a")].places.pop()
            engine.writing.start()
            assert await engine.writing._until_visible("w", 0)
            kept = set(range(30)) - set(range(2, 30, 3))
            assert await asyncio.to_thread(contents, Http(url), "s") == Counter(kept)

    run(scenario())
