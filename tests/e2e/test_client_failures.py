"""The client when things go wrong: lost connections, restarted brokers, silence, more than it can take."""

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.processes import BrokerProcess
from e2e.relay import Relay
from e2e.running import run
from millrace.client import Client, ConnectionLost, Message, Refused, Subscription
from millrace.local_cluster import PortBlock
from millrace.reasons import Reason
from millrace.testing import ThreadedBroker
from millrace.types import Message as PlainMessage
from millrace.types import Version, Will
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connack
from waiting import until_async

PATIENCE_S = 10.0
VERSIONS = pytest.mark.parametrize("version", [Version.MQTT_5, Version.MQTT_3_1_1])


@functools.cache
def ports() -> PortBlock:
    return PortBlock()


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Starting and stopping a broker blocks, and the client's loop has to go on."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def collect(messages: Subscription, into: list[bytes]) -> None:
    async for message in messages:
        into.append(message.payload)


# -------------------------------------------------------------------------------------------------- restarts


@VERSIONS
def test_a_restarted_broker_is_found_again(version: Version) -> None:
    async def scenario() -> None:
        address = f"127.0.0.1:{ports().take()}"
        first = ThreadedBroker(listeners__mqtt=address)
        await in_thread(first.__enter__)
        async with (
            Client(f"mqtt://{address}", version=version) as client,
            client.subscribe("a/#", qos=2) as messages,
        ):
            await client.publish("a/1", "before")
            assert (await messages.get(PATIENCE_S)).payload == b"before"
            await in_thread(first.__exit__)
            await until_async(lambda: not client.connected, "the loss to be noticed")
            waiting = asyncio.create_task(client.publish("a/2", "meanwhile", qos=2))
            with ThreadedBroker(listeners__mqtt=address):
                await waiting
                await client.publish("a/3", "after", qos=2)
                # The subscription is there again before the publishes that waited.
                got = [(await messages.get(PATIENCE_S)).payload for _ in range(2)]
                assert got == [b"meanwhile", b"after"]

    run(scenario())


def test_nothing_is_lost_with_a_killed_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        count = 200
        address = f"127.0.0.1:{ports().take()}"
        durable = {"session_expiry_s": 600, "reconnect_pause_s_max": 0.1}
        broker = BrokerProcess(tmp_path, "--mqtt", address)
        try:
            await in_thread(broker.wait_ready)
            async with (
                Client(f"mqtt://{address}", client_id="publisher", **durable) as publisher,
                Client(f"mqtt://{address}", client_id="subscriber", **durable) as subscriber,
                subscriber.subscribe("a", qos=1) as messages,
            ):
                got: list[bytes] = []
                collecting = asyncio.create_task(collect(messages, got))
                sending = asyncio.gather(
                    *(publisher.publish("a", b"%d" % at, qos=1) for at in range(count // 2))
                )
                await until_async(lambda: len(got) > 10, "messages on their way")
                broker.process.kill()
                await in_thread(broker.wait_exit)
                broker = BrokerProcess(tmp_path, "--mqtt", address)
                await in_thread(broker.wait_ready)
                await sending
                await asyncio.gather(
                    *(publisher.publish("a", b"%d" % at, qos=1) for at in range(count // 2, count))
                )
                await until_async(lambda: got[-1:] == [b"%d" % (count - 1)], "the last message")
                collecting.cancel()
                # At least once: what the broker had not yet noted as acknowledged comes again.
                assert list(dict.fromkeys(got)) == [b"%d" % at for at in range(count)]
        finally:
            await in_thread(broker.stop)

    run(scenario())


def test_the_next_address_of_the_list_takes_over() -> None:
    async def scenario() -> None:
        first = ThreadedBroker()
        await in_thread(first.__enter__)
        with ThreadedBroker() as second:
            async with Client([first.url, second.url]) as client, client.subscribe("a") as messages:
                assert client.address == first.url
                await in_thread(first.__exit__)
                await until_async(lambda: client.connected and client.address == second.url, "the failover")
                await client.publish("a", "x")
                assert (await messages.get(PATIENCE_S)).payload == b"x"
            # Also when it is already the first one that is away.
            async with Client([first.url, second.url]) as client:
                assert client.address == second.url

    run(scenario())


def test_a_refusal_that_stays_ends_the_client() -> None:
    async def scenario() -> None:
        address = f"127.0.0.1:{ports().take()}"
        first = ThreadedBroker(listeners__mqtt=address)
        await in_thread(first.__enter__)
        async with Client(f"mqtt://{address}") as client:
            messages = client.subscribe("a")
            reading = asyncio.create_task(anext(messages))
            await client.publish("b", "")
            await in_thread(first.__exit__)
            with ThreadedBroker(listeners__mqtt=address, access__anonymous="never"):
                with pytest.raises(Refused) as error:
                    await reading
                assert error.value.reason is Reason.NOT_AUTHORIZED
                with pytest.raises(Refused):
                    await client.publish("b", "")

    run(scenario())


# ------------------------------------------------------------------------------------------- cut connections


@VERSIONS
def test_qos_2_arrives_once_however_often_the_connection_is_cut(version: Version) -> None:
    async def scenario() -> None:
        count = 300
        cuts = [700 + 501 * step for step in range(10)]
        durable: dict[str, Any] = {"session_expiry_s": 600, "version": version, "reconnect_pause_s_max": 0.1}
        with ThreadedBroker() as broker:
            async with (
                Relay(broker.port, cuts) as up,
                Relay(broker.port, cuts) as down,
                Client(up.url, client_id="publisher", **durable) as publisher,
                Client(down.url, client_id="subscriber", **durable) as subscriber,
                subscriber.subscribe("a", qos=2) as messages,
            ):
                got: list[bytes] = []
                collecting = asyncio.create_task(collect(messages, got))
                await asyncio.gather(*(publisher.publish("a", b"%d" % at, qos=2) for at in range(count)))
                await until_async(lambda: len(got) >= count, "all messages")
                await publisher.publish("a", b"end", qos=2)
                await until_async(lambda: got[-1] == b"end", "the last message")
                collecting.cancel()
                assert got == [b"%d" % at for at in range(count)] + [b"end"]
                assert up.connections > 3 and down.connections > 3, "the connections were cut indeed"

    run(scenario())


def test_without_reconnect_a_lost_connection_is_told_to_everyone() -> None:
    async def scenario() -> None:
        with ThreadedBroker() as broker:
            async with Relay(broker.port) as relay, Client(relay.url, reconnect=False) as client:
                messages = client.subscribe("a")
                reading = asyncio.create_task(anext(messages))
                await client.publish("b", "")
                relay.freeze()
                sending = asyncio.create_task(client.publish("b", "never acknowledged"))
                await until_async(lambda: relay.bytes_up > 0, "traffic")
                relay.cut()
                for task in (reading, sending):
                    with pytest.raises(ConnectionLost):
                        await task
                with pytest.raises(ConnectionLost):
                    await client.publish("b", "")
                with pytest.raises(ConnectionLost):
                    await messages.get(PATIENCE_S)

    run(scenario())


def test_a_session_taken_over_is_not_fought_for() -> None:
    async def scenario() -> None:
        with ThreadedBroker() as broker:
            async with Client(broker.url, client_id="same") as old:
                messages = old.subscribe("a")
                reading = asyncio.create_task(anext(messages))
                await old.publish("b", "")
                async with Client(broker.url, client_id="same") as new:
                    with pytest.raises(ConnectionLost) as error:
                        await reading
                    assert error.value.reason is Reason.SESSION_TAKEN_OVER
                    await new.publish("b", "still here")
                    assert not old.connected

    run(scenario())


def test_an_own_attempt_that_is_granted_late_does_not_end_the_client() -> None:
    """It gave up on one address and connected at another; then the first is granted after all and takes the
    session over. That is no other client, so this one comes back."""

    async def scenario() -> None:
        with ThreadedBroker() as broker:
            async with Relay(broker.port) as relay:
                relay.freeze()
                urls = [relay.url, broker.url]
                async with Client(urls, client_id="same", connect_timeout_s=2.0) as client:
                    direct = client.address
                    await client.publish("a", "direct")
                    relay.thaw()
                    await until_async(lambda: client.connected and client.address != direct, "it comes back")
                    await client.publish("a", "again")

    run(scenario())


def test_attempts_that_were_never_granted_do_not_hide_a_later_one() -> None:
    """Of hours ago, for example: then the first one that may still be granted counts."""

    async def scenario() -> None:
        with ThreadedBroker() as broker:
            async with Client(broker.url, client_id="same") as client:
                now_s = asyncio.get_running_loop().time()
                client._abandoned.extend((now_s - 9_000, now_s - 8_000, now_s))
                await client.publish("a", "direct")
                async with Client(broker.url, client_id="same", reconnect=False) as granted_late:
                    await until_async(lambda: not granted_late.connected, "it comes back")
                await client.publish("a", "again")

    run(scenario())


def test_an_own_attempt_that_broke_before_its_answer_may_be_granted_late() -> None:
    """The node was killed when it had passed the CONNECT on to the others."""

    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.close()

        with ThreadedBroker() as broker:
            async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
                dying = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                async with Client([dying, broker.url], client_id="same") as client:
                    await client.publish("a", "direct")
                    async with Client(broker.url, client_id="same", reconnect=False) as granted_late:
                        await until_async(lambda: not granted_late.connected, "it comes back")
                    await client.publish("a", "again")

    run(scenario())


def test_a_server_that_breaks_the_protocol_is_left_and_tried_again() -> None:
    async def scenario() -> None:
        connack = encode(Connack(reason=Reason.SUCCESS), Version.MQTT_5)
        heard: list[bytes] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            # The first time a PUBREL with wrong flags comes along.
            writer.write(connack if heard else connack + b"\x60\x02\x00\x01")
            heard.append(await reader.read(1000))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Client(f"mqtt://127.0.0.1:{port}") as client:
            await until_async(lambda: client.connected and len(heard) == 1, "another connection")
            # It was told why (MQTT 5, 4.13).
            assert heard[0][:1] == b"\xe0" and heard[0][2] == Reason.MALFORMED_PACKET

    run(scenario())


def test_a_publish_given_up_while_away_is_never_sent() -> None:
    async def scenario() -> None:
        with ThreadedBroker() as broker:
            async with (
                Relay(broker.port) as relay,
                Client(broker.url) as watcher,
                watcher.subscribe("a") as messages,
                Client(relay.url, connect_timeout_s=2.0, reconnect_pause_s_max=0.1) as client,
            ):
                relay.freeze()
                relay.cut()
                await until_async(lambda: not client.connected, "the loss")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await client.publish("a", "given up")
                relay.thaw()
                await client.publish("a", "sent")
                assert (await messages.get(PATIENCE_S)).payload == b"sent"

    run(scenario())


def test_a_silent_server_is_noticed_by_its_missing_ping() -> None:
    async def scenario() -> None:
        with ThreadedBroker() as broker:
            async with Relay(broker.port) as relay:
                options = {"keep_alive_s": 1, "connect_timeout_s": 2.0, "reconnect_pause_s_max": 0.1}
                async with Client(relay.url, **options) as client:
                    relay.freeze()
                    await until_async(lambda: not client.connected, "the silence to be noticed")
                    relay.thaw()
                    await client.publish("a", "x")
                    assert relay.connections >= 2

    run(scenario())


def test_pings_keep_an_idle_connection() -> None:
    async def scenario() -> None:
        with ThreadedBroker() as broker:
            async with Relay(broker.port) as relay, Client(relay.url, keep_alive_s=2) as client:
                before = relay.bytes_up
                # Two pings later the server's patience of 3 s would be over.
                await until_async(lambda: relay.bytes_up >= before + 6, "three pings")
                assert client.connected and relay.connections == 1

    run(scenario())


@VERSIONS
def test_the_will_is_for_those_who_go_without_goodbye(version: Version) -> None:
    async def scenario() -> None:
        def will(text: str) -> Will:
            return Will(message=PlainMessage(topic="will", payload=text.encode(), qos=1))

        with ThreadedBroker() as broker:
            async with Client(broker.url) as watcher, watcher.subscribe("will") as messages:
                async with Client(broker.url, version=version, will=will("clean")):
                    pass
                async with Relay(broker.port) as relay:
                    options = {"version": version, "reconnect": False}
                    async with Client(relay.url, will=will("torn"), **options) as client:
                        relay.cut()
                        await until_async(lambda: not client.connected, "the loss")
                        assert (await messages.get(PATIENCE_S)).payload == b"torn"

    run(scenario())


# --------------------------------------------------------------------------------------------- back-pressure


@VERSIONS
@pytest.mark.parametrize("qos", [1, 2])
def test_a_slow_reader_stops_the_server_and_loses_nothing(version: Version, qos: int) -> None:
    async def scenario() -> None:
        count, payload = 100, bytes(100_000)
        with ThreadedBroker() as broker:
            async with (
                Relay(broker.port) as relay,
                Client(broker.url) as publisher,
                Client(relay.url, version=version) as reader,
                reader.subscribe("a", qos=qos, buffer_messages=10) as messages,
            ):
                for at in range(count):
                    await publisher.publish("a", payload + b"%d" % at, qos=qos)
                await until_async(lambda: messages.buffered == 10, "a full buffer")
                peak = 0
                got: list[Message] = []
                while len(got) < count:
                    peak = max(peak, messages.buffered)
                    got.append(await messages.get(PATIENCE_S))
                assert [int(m.payload[100_000:]) for m in got] == list(range(count))
                assert peak == 10

    run(scenario())


def test_a_reader_that_takes_nothing_is_sent_no_more_than_the_sockets_hold() -> None:
    async def scenario() -> None:
        with ThreadedBroker() as broker:
            async with (
                Relay(broker.port) as relay,
                Client(broker.url) as publisher,
                Client(relay.url) as reader,
                reader.subscribe("a", qos=0, buffer_messages=10) as messages,
            ):
                for _ in range(500):
                    await publisher.publish("a", bytes(100_000), qos=0)
                # An answer proves that the broker has handled all of them.
                await publisher.publish("b", "", qos=1)
                await until_async(lambda: messages.buffered == 10, "a full buffer")
                assert relay.bytes_down < 25_000_000
                assert messages.buffered == 10

    run(scenario())


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_a_reader_that_leaves_with_messages_unread_still_says_goodbye(scheme: str) -> None:
    async def scenario() -> None:
        will = Will(message=PlainMessage(topic="will", payload=b"torn", qos=1))
        with ThreadedBroker(listeners__ws="127.0.0.1:0") as broker:
            async with Client(broker.url) as other, other.subscribe("will") as wills:
                async with (
                    Client(f"{scheme}://127.0.0.1:{broker.ports[scheme]}", will=will) as reader,
                    reader.subscribe("a", qos=0, buffer_messages=10) as messages,
                ):
                    for _ in range(100):
                        await other.publish("a", bytes(100_000), qos=0)
                    await until_async(lambda: messages.buffered == 10, "a full buffer")
                    # The last words must not be overtaken by the reset of a socket with bytes unread.
                    await reader.close()
                await other.publish("will", "none")
                assert (await wills.get(PATIENCE_S)).payload == b"none"

    run(scenario())


@pytest.mark.parametrize("qos", [0, 1])
def test_publishing_inside_the_loop_over_messages_cannot_deadlock(qos: int) -> None:
    async def scenario() -> None:
        count = 300 if qos else 2000
        with ThreadedBroker() as broker:
            async with (
                Client(broker.url) as source,
                Client(broker.url) as worker,
                worker.subscribe("in", qos=1, buffer_messages=5) as messages,
            ):
                flood = asyncio.gather(*(source.publish("in", b"%d" % at, qos=qos) for at in range(count)))
                answered = peak = 0
                seen: list[int] = []
                ending: asyncio.Task[Any] | None = None
                async for message in messages:
                    peak = max(peak, messages.buffered)
                    if message.payload == b"end":
                        break
                    seen.append(int(message.payload))
                    # The answer stands behind messages for which there is no room.
                    await worker.publish("out", message.payload, qos=1)
                    answered += 1
                    if flood.done() and ending is None:
                        ending = asyncio.create_task(source.publish("in", "end", qos=1))
                assert answered + messages.dropped == count
                assert seen == sorted(set(seen)), "in order, none twice"
                if qos:
                    # The receive maximum is the bound: the server gets no answer for what is not taken.
                    assert not messages.dropped and peak <= 1000
                else:
                    assert peak <= 6

    run(scenario())
