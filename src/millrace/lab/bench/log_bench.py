"""The log of one node: making and reading blocks, readers that catch up, and the time until a node is back.

Blocks are measured in this process. The rest loads a real node through its doors: one publisher fills the
log, then one durable MQTT subscriber that was away, and one reader of raw blocks over HTTP, take all of it.
The node is then killed and started again on a log of the size that was asked for. There is no peer here: the
figures are for comparing two versions on one machine.
"""

import json
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from millrace.errors import LocalError
from millrace.kernels import acks
from millrace.kernels.blocks import Run
from millrace.lab.bench import peers
from millrace.storage.block import HEAD_BYTES, data_blocks, parse_block, parse_header

_HOST = "127.0.0.1"
_PAYLOAD_BYTES = 256
_TOPICS = 100
_WINDOW = 1000
_BLOCK_MESSAGES = 2_000
_BLOCK_ROUNDS = 15
_SOCKET_S_MAX = 60.0
_READ_BYTES = 1 << 18
# Room for the log, the same again for what the node writes aside, and the segments written ahead.
_ROOM_FACTOR = 2
_PUBACK = 0x40


class BenchError(LocalError):
    """A measurement could not be made; one line says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    figure: str
    value: float
    unit: str
    note: str = ""


def _publish(topic: bytes, packet_id: int, payload: bytes) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + packet_id.to_bytes(2, "big") + payload
    size = len(body)
    return b"\x32" + bytes((size & 127 | 128, size >> 7)) + body


def _window(number: int) -> bytes:
    """A window of QoS 1 packets, all of one size, on topics in turn."""
    payload = number.to_bytes(8, "big") * (_PAYLOAD_BYTES // 8)
    return b"".join(_publish(b"bench/%02d" % (n % _TOPICS), n + 1, payload) for n in range(_WINDOW))


# ------------------------------------------------------------------------------------------- blocks


def block_rows() -> list[Row]:
    """Encode: packets as they came to a block. Decode: bytes to proved columns."""
    packets = b"".join(
        _publish(b"bench/%02d" % (n % _TOPICS), n % 65_535 + 1, bytes(_PAYLOAD_BYTES))
        for n in range(_BLOCK_MESSAGES)
    )
    runs = [Run(packets, 4)]
    (block,) = data_blocks(runs)
    data = block.to_bytes()

    def decode() -> None:
        found = parse_block(data)
        found.topics()
        found.columns()

    note = f"{_BLOCK_MESSAGES:,} messages of {_PAYLOAD_BYTES} B, {_TOPICS} topics, per block"
    rows = []
    for name, call in (("block encode", lambda: data_blocks(runs)), ("block decode", decode)):
        best_s = min(_timed_s(call) for _ in range(_BLOCK_ROUNDS))
        rows.append(Row(figure=name, value=1 / best_s, unit="blocks/s", note=note))
        rows.append(Row(figure=name, value=_BLOCK_MESSAGES / best_s, unit="messages/s"))
    return rows


def _timed_s(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


# -------------------------------------------------------------------------------------------- doors


class _Client:
    """Just enough of MQTT 3.1.1 to fill a log and to drain it."""

    def __init__(self, port: int, client_id: bytes, *, clean: bool) -> None:
        self._socket = socket.create_connection((_HOST, port), timeout=_SOCKET_S_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = b"\0\4MQTT\4" + bytes((2 if clean else 0,)) + b"\0\0"
        body += len(client_id).to_bytes(2, "big") + client_id
        self._socket.sendall(b"\x10" + bytes((len(body),)) + body)
        if self._exactly(4)[3]:
            raise BenchError("the node refused the connection")

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise BenchError("the node closed the connection")
            data += more
        return data

    def subscribe(self, topic_filter: bytes) -> None:
        body = b"\0\1" + len(topic_filter).to_bytes(2, "big") + topic_filter + b"\1"
        self._socket.sendall(b"\x82" + bytes((len(body),)) + body)
        if self._exactly(5)[4] != 1:
            raise BenchError("the node refused the subscription")

    def publish(self, windows: int) -> None:
        """One window after the other, each when the one before is acknowledged."""
        for number in range(windows):
            self._socket.sendall(_window(number))
            self._exactly(4 * _WINDOW)

    def drain(self, messages: int, packet_bytes: int) -> None:
        """Take and acknowledge so many packets of this size."""
        held = b""
        while messages:
            more = self._socket.recv(_READ_BYTES)
            if not more:
                raise BenchError("the node closed the connection")
            held += more
            count = min(len(held) // packet_bytes, messages)
            if count:
                whole = count * packet_bytes
                self._socket.sendall(acks(held[:whole], _PUBACK))
                held, messages = held[whole:], messages - count

    def close(self) -> None:
        self._socket.sendall(b"\xe0\0")
        self._socket.close()


def _read_blocks(port: int, messages: int) -> int:
    """All blocks of the default stream over HTTP; the bytes that came."""
    shard = _shard(port)
    offset = total = 0
    while offset < messages:
        url = f"http://{_HOST}:{port}/v1/streams/default/shards/{shard}/blocks?from={offset}"
        try:
            with urllib.request.urlopen(url, timeout=_SOCKET_S_MAX) as answer:
                data = answer.read()
        except urllib.error.URLError as error:
            raise BenchError(f"blocks from {offset} cannot be read: {error}") from error
        for header_offset in _offsets(data):
            offset = header_offset
        if not data:
            raise BenchError(f"the log ends at {offset}, before {messages}")
        total += len(data)
    return total


def _offsets(data: bytes) -> Iterator[int]:
    position = 0
    while position + HEAD_BYTES <= len(data):
        header = parse_header(data, position)
        position += header.block_bytes
        yield header.next_offset


def _shard(port: int) -> int:
    with urllib.request.urlopen(f"http://{_HOST}:{port}/v1/streams/default", timeout=_SOCKET_S_MAX) as answer:
        return int(json.load(answer)["shard_list"][0]["shard"])


def catch_up_rows(broker: peers.Broker, messages: int) -> list[Row]:
    """Fill the log while a durable subscriber is away, then let it and an HTTP reader have everything."""
    windows = max(1, messages // _WINDOW)
    messages = windows * _WINDOW
    packet_bytes = len(_window(0)) // _WINDOW
    with peers.running(broker, durable=True) as node:
        with closing(_Client(node.port, b"reader", clean=False)) as reader:
            reader.subscribe(b"bench/#")
        with closing(_Client(node.port, b"writer", clean=True)) as writer:
            filled_s = _timed_s(lambda: writer.publish(windows))
        with closing(_Client(node.port, b"reader", clean=False)) as reader:
            drained_s = _timed_s(lambda: reader.drain(messages, packet_bytes))
        read_bytes = 0

        def read() -> None:
            nonlocal read_bytes
            read_bytes = _read_blocks(node.control_port, messages)

        read_s = _timed_s(read)
    count = f"{messages:,} messages"
    rate = f"{read_bytes / read_s / (1 << 20):,.0f} MiB/s"
    return [
        Row(figure="publish, QoS 1, window 1000", value=messages / filled_s, unit="messages/s", note=count),
        Row(figure="catch up, durable MQTT QoS 1", value=messages / drained_s, unit="messages/s"),
        Row(figure="catch up, HTTP blocks", value=messages / read_s, unit="messages/s", note=rate),
    ]


# ------------------------------------------------------------------------------------------ restart


def restart_rows(broker: peers.Broker, size_bytes: int, directory: Path) -> list[Row]:
    """From the start of the process to its open doors: with an empty log, after a kill, after a stop."""
    free = shutil.disk_usage(directory).free
    if free < _ROOM_FACTOR * size_bytes:
        raise BenchError(
            f"{free >> 20} MiB are free in {directory}, {_ROOM_FACTOR * size_bytes >> 20} MiB are wanted; "
            "give a smaller --size"
        )
    windows = max(1, size_bytes // len(_window(0)))
    node, empty_s = _started(broker, directory)
    try:
        with closing(_Client(node.port, b"writer", clean=True)) as writer:
            writer.publish(windows)
        node.process.kill()
        node.process.wait()
        log_bytes = sum(path.stat().st_size for path in directory.rglob("*.log"))
        node, killed_s = _started(broker, directory)
        peers.stop(node.process)
        node, stopped_s = _started(broker, directory)
    finally:
        peers.stop(node.process)
    size = f"{log_bytes / (1 << 30):.2f} GiB of log"
    return [
        Row(figure="start, empty log", value=empty_s, unit="s", note="the interpreter and imports"),
        Row(figure="start after kill -9", value=killed_s, unit="s", note=size),
        Row(figure="start after a stop", value=stopped_s, unit="s", note=size),
    ]


def _started(broker: peers.Broker, directory: Path) -> tuple[peers.Running, float]:
    started_s = time.perf_counter()
    return peers.start(broker, directory, durable=True), time.perf_counter() - started_s
