"""A hundred subscribers that never read: the broker's memory stays bounded and the others notice nothing."""

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from e2e.conftest import StartBroker
from e2e.processes import BrokerProcess
from millrace.client import Client

TOPIC = "flood"
STALLED = 100
PAYLOAD_BYTES = 50_000
GROWTH_BYTES_MAX = 256 * 1024 * 1024
_IN_FLIGHT = 20
# The kernel's buffers would otherwise take a good part of the flood.
_RECEIVE_BUFFER_BYTES = 4096
_SILENCE_S_MAX = 60.0


def _memory(broker: BrokerProcess, figure: str) -> int:
    """Bytes of resident memory: VmRSS is now, VmHWM the most there ever was."""
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    found = re.search(rf"^{figure}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024


def _stall(broker: BrokerProcess, name: str, qos: int, *, clean: bool) -> socket.socket:
    """A client that subscribes, sees the two answers, and reads nothing ever after."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
    client.settimeout(_SILENCE_S_MAX)
    client.connect(("127.0.0.1", broker.port))
    body = b"\x00\x04MQTT\x04" + bytes((2 if clean else 0,)) + b"\x00\x00" + _text(name)
    client.sendall(b"\x10" + bytes((len(body),)) + body)
    body = b"\x00\x01" + _text(TOPIC) + bytes((qos,))
    client.sendall(b"\x82" + bytes((len(body),)) + body)
    answers = b""
    while len(answers) < 9:
        answers += client.recv(9 - len(answers))
    assert answers == b"\x20\x02\x00\x00" + b"\x90\x03\x00\x01" + bytes((qos,))
    return client


def _text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


@pytest.fixture
def flooded(start_broker: StartBroker) -> Iterator[BrokerProcess]:
    """A broker with the stalled subscribers: each QoS, with durable sessions and without."""
    broker = start_broker()
    with ExitStack() as stack:
        for number in range(STALLED):
            client = _stall(broker, f"stalled-{number}", number % 3, clean=number % 2 == 0)
            stack.enter_context(client)
        yield broker


async def _flood(broker: BrokerProcess, count: int) -> list[int]:
    """Publish so many messages at QoS 1, and as many at QoS 0; what a healthy subscriber got at QoS 1."""
    url = f"mqtt://127.0.0.1:{broker.port}"
    filler = bytes(PAYLOAD_BYTES - 8)
    got: list[int] = []
    async with (
        Client(url, client_id="healthy") as reader,
        Client(url, client_id="writer") as writer,
        reader.subscribe(TOPIC, qos=1) as messages,
        asyncio.TaskGroup() as group,
    ):

        async def read() -> None:
            while len(got) < count:
                message = await messages.get(_SILENCE_S_MAX)
                if message.qos == 1:
                    got.append(int.from_bytes(message.payload[:8], "big"))

        group.create_task(read())
        numbers = iter(range(count))

        async def publish() -> None:
            for number in numbers:
                payload = number.to_bytes(8, "big") + filler
                await writer.publish(TOPIC, payload, qos=1)
                await writer.publish(TOPIC, payload, qos=0)

        for _ in range(_IN_FLIGHT):
            group.create_task(publish())
    return got


def _check(broker: BrokerProcess, volume_bytes: int) -> None:
    before = _memory(broker, "VmRSS")
    count = volume_bytes // (2 * PAYLOAD_BYTES)
    got = asyncio.run(_flood(broker, count))
    assert got == list(range(count)), "a healthy subscriber gets everything, in order, once"
    growth = _memory(broker, "VmHWM") - before
    assert growth < GROWTH_BYTES_MAX, f"resident memory grew by {growth >> 20} MiB"


def test_stalled_subscribers_cost_no_memory_cve_2024_48077(flooded: BrokerProcess) -> None:
    _check(flooded, 100_000_000)


@pytest.mark.slow
def test_stalled_subscribers_cost_no_memory_for_long(flooded: BrokerProcess) -> None:
    _check(flooded, 1_000_000_000)
