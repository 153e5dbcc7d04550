"""Chapter 6: the same packets inside WebSocket frames. The frames are made by hand, as the packets are."""

import asyncio
import base64
import hashlib
import secrets

import pytest

from conformance.mqtt import wire
from conformance.mqtt.raw import Client, Lab
from conformance.mqtt.table import both, covers, covers311

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """A masked frame, as RFC 6455 asks of clients."""
    mask = secrets.token_bytes(4)
    size = len(payload)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + wire.u16(size)
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return bytes([(0x80 if final else 0) | opcode]) + length + mask + masked


async def next_frame(client: Client) -> tuple[int, bytes]:
    async with asyncio.timeout(30):
        first, second = await client.reader.readexactly(2)
        assert not second & 0x80, "a server does not mask"
        size = second & 0x7F
        if size == 126:
            size = int.from_bytes(await client.reader.readexactly(2), "big")
        return first & 15, await client.reader.readexactly(size)


async def handshake(lab: Lab, version: int, protocol: str | None = "mqtt") -> tuple[Client, str]:
    """An upgraded connection and the headers of the answer."""
    if lab.websocket_port is None:
        pytest.skip("this broker was started without a WebSocket port")
    client = await lab.open(version, port=lab.websocket_port)
    key = base64.b64encode(secrets.token_bytes(16))
    lines = [
        "GET /mqtt HTTP/1.1",
        f"Host: 127.0.0.1:{lab.websocket_port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key.decode()}",
        "Sec-WebSocket-Version: 13",
        *([f"Sec-WebSocket-Protocol: {protocol}"] if protocol else []),
    ]
    await client.send(("\r\n".join(lines) + "\r\n\r\n").encode())
    async with asyncio.timeout(30):
        answer = (await client.reader.readuntil(b"\r\n\r\n")).decode()
    assert answer.startswith("HTTP/1.1 101"), answer
    proof = base64.b64encode(hashlib.sha1(key + GUID).digest()).decode()
    assert proof in answer
    return client, answer


async def packets(client: Client, count: int) -> list[wire.Packet]:
    """The next packets, wherever the frames begin and end."""
    data = b""
    found: list[wire.Packet] = []
    while len(found) < count:
        opcode, payload = await next_frame(client)
        assert opcode in (BINARY, 0), f"[MQTT-6.0.0-1] opcode {opcode}"
        data += payload
        while len(data) >= 2 and data[1] < 0x80 and len(data) >= 2 + data[1]:
            size = 2 + data[1]
            found.append(wire.decode(data[0], data[2:size], size, client.version))
            data = data[size:]
    return found


@both
@covers("MQTT-6.0.0-4", "MQTT-6.0.0-1", "MQTT-4.2.0-1")
@covers311("MQTT-6.0.0-4", "MQTT-6.0.0-1")
async def test_the_subprotocol_is_mqtt_and_packets_come_in_binary_frames(lab: Lab, version: int) -> None:
    client, answer = await handshake(lab, version, "other, mqtt")
    named = [line for line in answer.split("\r\n") if line.lower().startswith("sec-websocket-protocol:")]
    assert [line.split(":")[1].strip() for line in named] == ["mqtt"]
    await client.send(frame(BINARY, wire.connect(lab.name(), version=version)))
    (seen,) = await packets(client, 1)
    assert (seen.kind, seen.reason) == (wire.CONNACK, 0)


@both
@pytest.mark.parametrize("connected", [False, True], ids=["first", "later"])
@covers("MQTT-6.0.0-1")
@covers311("MQTT-6.0.0-1")
async def test_a_text_frame_closes(lab: Lab, version: int, connected: bool) -> None:
    client, _ = await handshake(lab, version)
    if connected:
        await client.send(frame(BINARY, wire.connect(lab.name(), version=version)))
        await packets(client, 1)
    await client.send(frame(TEXT, b"hello"))
    rest = await client.rest()
    assert not rest or rest[0] & 15 in (CLOSE, BINARY), rest


@both
@covers("MQTT-6.0.0-2")
@covers311("MQTT-6.0.0-2")
async def test_packets_and_frames_need_not_line_up(lab: Lab, version: int) -> None:
    """One byte a frame, a fragmented message, a control frame in between, several packets in one frame."""
    client, _ = await handshake(lab, version)
    topic = lab.topic()
    for byte in wire.connect(lab.name(), version=version):
        await client.send(frame(BINARY, bytes([byte])))
    (seen,) = await packets(client, 1)
    assert seen.kind == wire.CONNACK
    together = wire.subscribe(1, (topic, 0), version=version)
    together += wire.publish(topic, b"x", version=version) + wire.PING
    await client.send(frame(BINARY, together[:7], final=False), frame(0, together[7:9], final=False))
    await client.send(frame(PING, b"?"))
    assert await next_frame(client) == (PONG, b"?")
    await client.send(frame(0, together[9:] + wire.PING))
    seen_kinds = [seen.kind for seen in await packets(client, 4)]
    assert sorted(seen_kinds) == sorted([wire.SUBACK, wire.PUBLISH, wire.PINGRESP, wire.PINGRESP])


@both
@covers("MQTT-6.0.0-2")
@covers311("MQTT-6.0.0-2")
async def test_closing_the_websocket_publishes_the_will(lab: Lab, version: int) -> None:
    topic = lab.topic()
    watcher = await lab.connect(version)
    await watcher.subscribe((topic, 0))
    client, _ = await handshake(lab, version)
    await client.send(frame(BINARY, wire.connect(lab.name(), version=version, will=wire.Will(topic=topic))))
    await packets(client, 1)
    await client.send(frame(CLOSE, wire.u16(1000)))
    await watcher.expect_message(topic, b"will")
