"""A broker that accepts connections and never says a word is as good as none: clients give it up in time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from millrace.client import Client, ClientError, Publisher, Subscriber
from millrace.embedded import Broker
from waiting import until_async

GIVE_UP_S = 0.3
# Much more than that, and less than the client's usual patience of 10 s.
BOUND_S = 8.0


class Silent:
    """Takes connections and what comes over them."""

    def __init__(self) -> None:
        self.url = ""
        self.accepted = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        while await reader.read(1000):
            pass
        writer.close()


@asynccontextmanager
async def silence() -> AsyncIterator[Silent]:
    silent = Silent()
    server = await asyncio.start_server(silent.serve, "127.0.0.1", 0)
    silent.url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield silent


def test_a_client_that_lost_its_broker_goes_past_a_silent_one() -> None:
    async def scenario() -> None:
        async with asyncio.timeout(2 * BOUND_S), silence() as silent, Broker() as last:
            async with Broker() as first:
                urls = [first.url, silent.url, last.url]
                client = Client(urls, connect_timeout_s=GIVE_UP_S, reconnect_pause_s_max=GIVE_UP_S)
                await client.__aenter__()
            async with asyncio.timeout(BOUND_S):
                await client.publish("a", b"", qos=1)
            assert silent.accepted and client.address == last.url
            await client.close()

    asyncio.run(scenario())


def test_a_publisher_goes_past_a_silent_broker() -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(BOUND_S),
            silence() as silent,
            Broker() as broker,
            Publisher([silent.url, broker.url], timeout_s=GIVE_UP_S) as publisher,
        ):
            publisher.publish("a", b"")
            await publisher.settled()
            assert silent.accepted and publisher.address == broker.url
            # What it has to say of its epoch is asked for again and again.
            before = silent.accepted
            await until_async(lambda: silent.accepted > before + 1, "another look at the silent one", BOUND_S)

    asyncio.run(scenario())


def test_a_publisher_asks_every_broker_before_it_gives_up() -> None:
    """However little patience it has: the pauses between two brokers are longer than that."""

    async def scenario() -> None:
        async with asyncio.timeout(2 * BOUND_S), silence() as one, silence() as two, silence() as three:
            brokers = (one, two, three)
            with pytest.raises(ClientError):
                await Publisher([silent.url for silent in brokers], timeout_s=0.01).__aenter__()
            await until_async(lambda: all(silent.accepted for silent in brokers), "each to be asked", BOUND_S)

    asyncio.run(scenario())


def test_a_subscriber_has_what_the_other_broker_gives_and_asks_the_silent_one_again() -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(BOUND_S),
            silence() as silent,
            Broker() as broker,
            Subscriber(silent.url, broker.url, "a", timeout_s=GIVE_UP_S) as subscriber,
            Client(broker.url) as writer,
        ):
            await writer.publish("a", b"x", qos=1)
            assert (await subscriber.get(BOUND_S)).source == "backup"
            await until_async(lambda: silent.accepted > 1, "another attempt", BOUND_S)

    asyncio.run(scenario())
