"""A disk that lies: damage in the middle of a log is reported and never served, and the rest is."""

from pathlib import Path

from millrace.client.blocking import Client
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
