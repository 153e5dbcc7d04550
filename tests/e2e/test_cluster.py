"""Three real nodes on this machine: what holds while all is well, and when nodes are killed for real."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from millrace.client import Client, ClientError
from millrace.lab.demo.by_hand import HandClient
from millrace.lab.demo.stage import is_whole, leader
from millrace.local_cluster import LocalCluster
from millrace.types import Message, Properties, Will
from waiting import pause, until_async

TIMEOUT_S = 60.0
_names = itertools.count()


def name(prefix: str) -> str:
    """A client id that no other test uses."""
    return f"{prefix}-{next(_names)}"


@asynccontextmanager
async def three_nodes(data: Path) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(3, data) as cluster:
        await whole(cluster)
        yield cluster


async def whole(cluster: LocalCluster) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not all([await is_whole(node, len(cluster.nodes)) for node in cluster.nodes]):
            await pause()


def run(test: Callable[[LocalCluster], Awaitable[None]], data: Path) -> None:
    async def body() -> None:
        async with asyncio.timeout(240), three_nodes(data) as cluster:
            await test(cluster)

    asyncio.run(body())


class Inbox:
    """A subscriber that remembers."""

    def __init__(self, client: Client, filter: str, qos: int) -> None:
        self._subscription = client.subscribe(filter, qos=qos)
        self.got: list[str] = []

    async def __aenter__(self) -> "Inbox":
        messages = await self._subscription.__aenter__()

        async def read() -> None:
            async for message in messages:
                self.got.append(message.payload.decode())

        self._task = asyncio.create_task(read())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._subscription.__aexit__(None, None, None)

    async def has(self, count: int) -> None:
        await until_async(lambda: len(self.got) >= count, f"{count} messages, got {self.got}", TIMEOUT_S)


def test_a_cluster_is_one_broker(tmp_path: Path) -> None:
    """Publish and subscribe at any node, at every QoS; retained from any node; one client, one connection."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        async with (
            Client(first.url, client_id=name("a")) as one,
            Client(second.url, client_id=name("b")) as two,
            Client(third.url, client_id=name("c")) as three,
        ):
            async with Inbox(one, "t/#", 2) as at_one, Inbox(three, "t/#", 2) as at_three:
                for qos in (1, 2):
                    for number, publisher in enumerate((one, two, three)):
                        await publisher.publish(f"t/{number}", f"{qos}.{number}".encode(), qos=qos)
                await at_one.has(6)
                await at_three.has(6)
                assert (
                    sorted(at_one.got) == sorted(at_three.got) == ["1.0", "1.1", "1.2", "2.0", "2.1", "2.2"]
                )

                async def reached() -> bool:
                    # Interest travels; QoS 0 sent before it arrived is not promised to anybody.
                    await two.publish("t/0", b"unlogged", qos=0)
                    return "unlogged" in at_one.got and "unlogged" in at_three.got

                async with asyncio.timeout(TIMEOUT_S):
                    while not await reached():
                        await pause()
            await two.publish("kept", b"value", qos=1, retain=True)
            async with Inbox(three, "kept", 1) as retained:
                await retained.has(1)
                # This node may hear of the commit after the subscription: then it comes as a new one too.
                assert set(retained.got) == {"value"}

        same = name("same")
        old = Client(first.url, client_id=same, reconnect=False)
        await old.__aenter__()
        async with Client(second.url, client_id=same) as new, asyncio.timeout(TIMEOUT_S):
            with pytest.raises(ClientError):
                while True:
                    await old.publish("still/here", b"", qos=1)
            await new.publish("still/here", b"", qos=1)
        with suppress(ClientError):
            await old.__aexit__(None, None, None)

    run(body, tmp_path)


def test_members_at_different_nodes_share_the_work(tmp_path: Path) -> None:
    """Each message of a shared subscription goes to one member, wherever the members are connected."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        async with (
            Client(first.url, client_id=name("m1")) as one,
            Client(second.url, client_id=name("m2")) as two,
            Client(third.url, client_id=name("pub")) as publisher,
            Inbox(one, "$share/g/work/#", 1) as at_one,
            Inbox(two, "$share/g/work/#", 1) as at_two,
        ):

            async def both_work() -> bool:
                await publisher.publish("work/warm", b"warm", qos=1)
                return bool(at_one.got and at_two.got)

            # Until the entries that divide the labour are applied, one of them may do it all.
            async with asyncio.timeout(TIMEOUT_S):
                while not await both_work():
                    await pause()
            before = len(at_one.got), len(at_two.got)
            for number in range(40):
                await publisher.publish(f"work/{number % 4}", str(number).encode(), qos=1)
            await until_async(lambda: len({*at_one.got, *at_two.got}) == 41, "all messages", TIMEOUT_S)
            got = at_one.got[before[0] :] + at_two.got[before[1] :]
            assert sorted(t for t in got if t != "warm") == sorted(map(str, range(40)))
            assert len(at_one.got) > 5 and len(at_two.got) > 5

            # What no log keeps: the publisher's node picks the member.
            for number in range(10):
                await publisher.publish("work/q0", f"q0.{number}".encode(), qos=0)
            await publisher.publish("work/last", b"last", qos=1)
            await until_async(lambda: "last" in at_one.got + at_two.got, "the last one", TIMEOUT_S)
            unlogged = [t for t in at_one.got + at_two.got if t.startswith("q0.")]
            assert len(unlogged) == len(set(unlogged))

    run(body, tmp_path)


def test_a_durable_session_moves_with_its_messages(tmp_path: Path) -> None:
    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        client_id = name("mover")
        async with Client(first.url, client_id=client_id, session_expiry_s=600) as client:
            subscription = client.subscribe("moving/#", qos=2)
            await subscription.__aenter__()
        async with Client(second.url, client_id=name("pub")) as publisher:
            for number in range(5):
                await publisher.publish("moving/x", str(number).encode(), qos=2)
        async with (
            Client(third.url, client_id=client_id, session_expiry_s=600) as client,
            Inbox(client, "moving/#", 2) as inbox,
        ):
            await inbox.has(5)
            assert inbox.got == ["0", "1", "2", "3", "4"]

    run(body, tmp_path)


@pytest.mark.parametrize("is_dropped", [True, False])
def test_what_was_not_answered_comes_again_at_another_node_as_it_was_sent(
    tmp_path: Path, is_dropped: bool
) -> None:
    """MQTT 4.4 and 4.6: the same ids, with DUP, in the first order, whatever the QoS; then what is new. Also
    where the old node hears only from the new one that its client is gone."""

    async def body(cluster: LocalCluster) -> None:
        first, second, _ = cluster.nodes
        client_id = name("moves")
        client = HandClient(first.mqtt_port, client_id)
        await client.connect()
        await client.subscribe("again/#", 2)
        async with Client(second.url, client_id=name("publisher")) as publisher:
            for number, qos in enumerate((1, 2, 1, 1, 2, 1)):
                await publisher.publish("again/1", b"%d" % number, qos=qos)
            sent = [await client.publish() for _ in range(6)]
            assert not any(one.dup for one in sent)
            client.acknowledge(sent[2])
            await client.ping()
            if is_dropped:
                client.drop()
            client = HandClient(second.mqtt_port, client_id, receive_maximum=2)
            assert await client.connect()
            await publisher.publish("again/1", b"new", qos=1)
            for expected in [*sent[:2], *sent[3:]]:
                again = await client.publish()
                assert (again.packet_id, again.dup) == (expected.packet_id, True)
                assert again.message.payload == expected.message.payload
                assert again.message.qos == expected.message.qos
                client.acknowledge(again)
            last = await client.publish()
            assert (last.message.payload, last.dup) == (b"new", False)

    run(body, tmp_path)


def test_the_leader_is_killed_under_load(tmp_path: Path) -> None:
    """Nothing acknowledged is lost, nothing comes twice at QoS 2, and the order holds."""

    async def body(cluster: LocalCluster) -> None:
        urls = [node.url for node in cluster.nodes]
        async with (
            Client(urls, client_id=name("pub"), session_expiry_s=600) as publisher,
            Client(urls[::-1], client_id=name("sub"), session_expiry_s=600) as subscriber,
            Inbox(subscriber, "load", 2) as inbox,
        ):
            acknowledged: list[str] = []
            for number in range(150):
                if number in (50, 100):
                    victim = await leader(cluster.nodes)
                    await victim.kill()
                await publisher.publish("load", str(number).encode(), qos=2)
                acknowledged.append(str(number))
                if number in (75, 125):
                    await victim.start()
            await inbox.has(len(acknowledged))
            assert inbox.got == acknowledged

    run(body, tmp_path)


def test_all_nodes_are_killed_at_once(tmp_path: Path) -> None:
    """Power loss of the whole cluster: what was acknowledged is there afterwards."""

    async def body(cluster: LocalCluster) -> None:
        client_id = name("sub")
        async with Client(cluster.nodes[2].url, client_id=client_id, session_expiry_s=600) as client:
            subscription = client.subscribe("power", qos=1)
            await subscription.__aenter__()
        acknowledged: list[str] = []
        async with Client(cluster.nodes[1].url, client_id=name("pub"), reconnect=False) as publisher:
            for number in range(50):
                await publisher.publish("power", str(number).encode(), qos=1)
                acknowledged.append(str(number))
            await asyncio.gather(*(node.kill() for node in cluster.nodes))
        await asyncio.gather(*(node.start() for node in cluster.nodes))
        async with (
            Client(cluster.nodes[0].url, client_id=client_id, session_expiry_s=600) as client,
            Inbox(client, "power", 1) as inbox,
        ):
            await inbox.has(len(acknowledged))
            assert inbox.got == acknowledged

    run(body, tmp_path)


def test_a_will_fires_when_the_node_dies(tmp_path: Path) -> None:
    async def body(cluster: LocalCluster) -> None:
        first, _, third = cluster.nodes
        will = Will(message=Message(topic="wills/x", payload=b"gone", qos=1))
        async with (
            Client(first.url, client_id=name("watch")) as watcher,
            Inbox(watcher, "wills/#", 1) as inbox,
            Client(third.url, client_id=name("dying"), will=will, reconnect=False),
        ):
            await third.kill()
            await inbox.has(1)
            assert inbox.got == ["gone"]

    run(body, tmp_path)


@pytest.mark.parametrize("count", [1])
def test_a_minority_refuses_and_recovers(tmp_path: Path, count: int) -> None:
    """One of three cannot acknowledge anything; with a second one back it can, and nothing was lost."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        async with Client(first.url, client_id=name("pub")) as publisher:
            await publisher.publish("minority", b"before", qos=1)
            await second.kill()
            await third.kill()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(publisher.publish("minority", b"alone", qos=1), 2)
            await second.start()
            await asyncio.wait_for(publisher.publish("minority", b"after", qos=1), TIMEOUT_S)

    run(body, tmp_path)


def test_a_repeat_at_another_node_is_not_stored_again(tmp_path: Path) -> None:
    """The same (producer, sequence) sent to two nodes at once: both are told yes, one message is stored."""

    async def body(cluster: LocalCluster) -> None:
        first, second, third = cluster.nodes
        keys = [("millrace-producer", "p"), ("millrace-sequence", "7")]
        async with (
            Client(first.url, client_id=name("p1")) as one,
            Client(second.url, client_id=name("p2")) as two,
            Client(third.url, client_id=name("sub")) as subscriber,
            Inbox(subscriber, "idem", 1) as inbox,
        ):
            properties = Properties(user=tuple(keys))
            await asyncio.gather(
                *(client.publish("idem", b"once", qos=1, properties=properties) for client in (one, two))
            )
            await one.publish("idem", b"once", qos=1, properties=properties)
            await two.publish("idem", b"end", qos=1)
            await inbox.has(2)
            assert inbox.got == ["once", "end"]

    run(body, tmp_path)
