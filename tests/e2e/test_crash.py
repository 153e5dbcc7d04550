"""kill -9 under load: what was acknowledged is there afterwards, in order and at its offset.

Publishers and subscribers keep their sessions over every crash, as the standard asks of them: what was not
answered is sent again. So at the end each QoS 2 message has arrived exactly once and each QoS 1 message at
least once, and the log, read by offset, has no hole and says the same.
"""

import asyncio
import base64
import itertools
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from e2e.device import Device
from e2e.processes import BrokerProcess
from millrace.client import Client
from millrace.client.http import Http
from millrace.lab.demo.by_hand import HandClient
from millrace.local_cluster import PortBlock
from waiting import until, until_async

_PROGRESS_S_MAX = 60.0
_RECONNECT_PAUSE_S = 0.2
_IN_FLIGHT = 20
_SESSION_S = 3600


class Node:
    """One broker over many processes: the same data and the same ports each time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = PortBlock()
        mqtt, http = self._ports.take(), self._ports.take()
        self._doors = ("--mqtt", f"127.0.0.1:{mqtt}", "--http", f"127.0.0.1:{http}")
        self.lives = 0
        self.start()

    def start(self) -> None:
        self.lives += 1
        self.broker = BrokerProcess(self._directory, *self._doors).wait_ready()

    def kill(self) -> None:
        self.broker.signal(signal.SIGKILL)
        assert self.broker.wait_exit() == -signal.SIGKILL

    def stop(self) -> None:
        self.broker.stop()
        self._ports.close()

    @property
    def url(self) -> str:
        return f"mqtt://{self._doors[1]}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "node")
    yield made
    made.stop()
    print(made.broker.log)


def _client(node: Node, name: str) -> Client:
    return Client(
        node.url, client_id=name, session_expiry_s=_SESSION_S, reconnect_pause_s_max=_RECONNECT_PAUSE_S
    )


class Publisher:
    """Publishes numbered messages, some at a time, until told to stop; keeps the numbers acknowledged."""

    def __init__(self, client: Client, topic: str, qos: int) -> None:
        self._client = client
        self._qos = qos
        self._numbers = itertools.count()
        self._is_stopping = False
        self.topic = topic
        self.acknowledged: list[int] = []
        self._tasks = [asyncio.create_task(self._run()) for _ in range(_IN_FLIGHT)]

    async def _run(self) -> None:
        while not self._is_stopping:
            await self._publish_next()

    async def _publish_next(self) -> None:
        number = next(self._numbers)
        await self._client.publish(self.topic, str(number).encode(), qos=self._qos)
        self.acknowledged.append(number)

    async def stop(self) -> int:
        """Returns once every publish was answered; the number of one more, which stands behind all others."""
        self._is_stopping = True
        await asyncio.gather(*self._tasks)
        await self._publish_next()
        return self.acknowledged[-1]


class Subscriber:
    """Everything that came, by topic, in the order of arrival."""

    def __init__(self, client: Client, qos: int) -> None:
        self._client = client
        self._qos = qos
        self.got: dict[str, list[int]] = {}

    async def begin(self, stack: AsyncExitStack) -> "Subscriber":
        messages = await stack.enter_async_context(self._client.subscribe("crash/#", qos=self._qos))

        async def read() -> None:
            async for message in messages:
                self.got.setdefault(message.topic, []).append(int(message.payload))

        task = asyncio.create_task(read())
        stack.callback(task.cancel)
        return self

    async def has(self, topic: str, number: int) -> None:
        await until_async(
            lambda: number in self.got.get(topic, ()), f"message {number} on {topic}", _PROGRESS_S_MAX
        )


async def _crash_under_load(node: Node, publishers: list[Publisher], kills: int, messages: int) -> None:
    """Kill and start the node so many times, each time after so many more messages of every publisher."""
    for _ in range(kills):
        wanted = {publisher: len(publisher.acknowledged) + messages for publisher in publishers}
        await until_async(
            lambda wanted=wanted: all(len(one.acknowledged) >= count for one, count in wanted.items()),
            f"{messages} more messages in life {node.lives}",
            _PROGRESS_S_MAX,
        )
        # Off the loop: the clients go on meanwhile, so the broker is met at every point of its work.
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)


def _log_of(node: Node) -> dict[str, list[int]]:
    """What the log holds, by topic. Its offsets are dense."""
    http = Http(node.broker.url)
    found: dict[str, list[int]] = {}
    for row in http.streams():
        for shard in row["shard_list"]:
            offset = 0
            while page := http.messages(row["name"], shard["shard"], offset)["messages"]:
                assert [message["offset"] for message in page] == list(range(offset, offset + len(page)))
                for message in page:
                    data = message["payload"]
                    payload = base64.b64decode(data) if message.get("encoding") == "base64" else data
                    found.setdefault(message["topic"], []).append(int(payload))
                offset += len(page)
    return found


def _is_ordered(numbers: list[int]) -> bool:
    """First arrivals are in order; a repeat may stand anywhere behind its first."""
    firsts = list(dict.fromkeys(numbers))
    return firsts == sorted(firsts)


async def _scenario(node: Node, kills: int, messages: int) -> None:
    async with AsyncExitStack() as stack:

        async def client(name: str) -> Client:
            return await stack.enter_async_context(_client(node, name))

        once = await Subscriber(await client("reads-2"), 2).begin(stack)
        at_least = await Subscriber(await client("reads-1"), 1).begin(stack)
        publishers = [Publisher(await client(f"writes-{qos}"), f"crash/{qos}", qos) for qos in (1, 2)]
        await _crash_under_load(node, publishers, kills, messages)
        for publisher in publishers:
            last = await publisher.stop()
            assert sorted(publisher.acknowledged) == list(range(last + 1))
            for reader in (once, at_least):
                await reader.has(publisher.topic, last)

        log = await asyncio.to_thread(_log_of, node)
        one, two = (sorted(publisher.acknowledged) for publisher in publishers)
        assert log["crash/2"] == two, "QoS 2 is in the log once"
        assert sorted(set(log["crash/1"])) == one and _is_ordered(log["crash/1"])
        assert once.got["crash/2"] == two, Counter(once.got["crash/2"]).most_common(3)
        for reader in (once, at_least):
            assert sorted(set(reader.got["crash/1"])) == one and _is_ordered(reader.got["crash/1"])
        assert sorted(set(at_least.got["crash/2"])) == two and _is_ordered(at_least.got["crash/2"])


def _run(scenario: Callable[[], Awaitable[None]], timeout_s: float) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await scenario()

    asyncio.run(bounded())


def test_nothing_acknowledged_is_lost_by_kill_9(node: Node) -> None:
    _run(lambda: _scenario(node, kills=5, messages=100), 120)


def test_what_a_member_of_a_group_had_not_acknowledged_goes_to_another_after_kill_9(
    node: Node, devices: Callable[..., Device]
) -> None:
    """One node alone: which messages it had given to whom is not in its memory only."""

    def member(name: str) -> Device:
        port = int(node.url.rpartition(":")[2])
        device = devices(port, client_id=name, clean=False, expiry_s=600)
        device.paho.manual_ack_set(True)
        return device.connect()

    given = member("given")
    given.subscribe("$share/team/jobs/#", 1)
    other = member("other")
    other.subscribe("$share/team/jobs/#", 1)
    payloads = [b"%d" % number for number in range(20)]
    for payload in payloads:
        other.publish("jobs/1", payload, 1)
    arrival_number = {got.payload for got in given.expect(1)}
    assert arrival_number <= set(payloads)
    node.kill()
    node.start()
    again = member("other")
    until(lambda: {got.payload for got in again.arrived} == set(payloads), "all of them at the other member")


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_by_fifty_kills(node: Node) -> None:
    _run(lambda: _scenario(node, kills=50, messages=1_000), 1_800)


def test_what_a_smaller_window_holds_back_is_not_lost_by_kill_9(node: Node) -> None:
    """A client comes back with room for one message and answers one. The others, which it was sent before and
    did not answer, wait at the node for their turn; they must not count as answered in its record."""

    async def scenario() -> None:
        def connection(window: int = 65_535) -> HandClient:
            return HandClient(node.broker.port, "narrow", receive_maximum=window)

        client = connection()
        await client.connect()
        await client.subscribe("t/#", 1)
        async with _client(node, "publisher") as publisher:
            for number in range(6):
                await publisher.publish("t/1", b"%d" % number, qos=1)
        for _ in range(6):
            await client.publish()
        client.drop()
        client = connection(window=1)
        assert await client.connect()
        answered = await client.publish()
        client.acknowledge(answered)
        await client.publish()
        client.drop()
        async with _client(node, "witness") as witness:
            # Its own records are written after those of the one who went.
            await witness.publish("t/2", b"last", qos=2)
        node.kill()
        node.start()
        client = connection()
        assert await client.connect(), "the session is known"
        left = {b"1", b"2", b"3", b"4", b"5", b"last"}
        while left:
            left.discard((await client.publish()).message.payload)

    _run(scenario, 60)
