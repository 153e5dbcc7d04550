"""The asynchronous client against a real broker over real sockets: doors, messages, access, sessions."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from e2e.certificates import Authority
from e2e.running import run
from millrace.broker.access import Action, Effect, Rule
from millrace.client import CannotConnect, Client, Closed, Message, Refused, Subscription, blocking
from millrace.errors import ConfigError, LocalError
from millrace.node.access.passwords import hash_password
from millrace.node.access.users import change
from millrace.reasons import Reason
from millrace.testing import ThreadedBroker
from millrace.types import Properties, RetainHandling, Version
from waiting import until_async

PATIENCE_S = 10.0
VERSIONS = pytest.mark.parametrize("version", [Version.MQTT_5, Version.MQTT_3_1_1])


@pytest.fixture(scope="module")
def broker() -> Iterator[ThreadedBroker]:
    """One for the module: every test has topics of its own."""
    with ThreadedBroker(listeners__ws="127.0.0.1:0") as running:
        yield running


def url_of(broker: ThreadedBroker, scheme: str) -> str:
    port = broker.ports["mqtt" if scheme == "mqtt" else scheme]
    return f"{scheme}://127.0.0.1:{port}" + ("/mqtt" if scheme.startswith("ws") else "")


async def take(messages: Subscription, count: int) -> list[Message]:
    return [await messages.get(PATIENCE_S) for _ in range(count)]


# ------------------------------------------------------------------------------------------------- messages


@VERSIONS
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_messages_of_every_qos_pass_every_door(broker: ThreadedBroker, scheme: str, version: Version) -> None:
    async def scenario() -> None:
        topic = f"doors/{scheme}/{version.name}"
        async with (
            Client(url_of(broker, scheme), version=version) as client,
            client.subscribe(f"{topic}/#", qos=2) as messages,
        ):
            for qos in (0, 1, 2):
                await client.publish(f"{topic}/{qos}", f"payload {qos}", qos=qos)
            got = await take(messages, 3)
        assert [(m.topic, m.payload, m.qos, m.retain) for m in got] == [
            (f"{topic}/{qos}", b"payload %d" % qos, qos, False) for qos in (0, 1, 2)
        ]

    run(scenario())


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_large_messages_arrive_whole(broker: ThreadedBroker, scheme: str) -> None:
    async def scenario() -> None:
        payload = bytes(range(256)) * 3900
        async with Client(url_of(broker, scheme)) as client, client.subscribe(f"large/{scheme}") as messages:
            sends = [client.publish(f"large/{scheme}", payload + bytes((at,))) for at in range(5)]
            got, _ = await asyncio.gather(take(messages, 5), asyncio.gather(*sends))
        assert [m.payload for m in got] == [payload + bytes((at,)) for at in range(5)]

    run(scenario())


@VERSIONS
def test_many_publishes_in_flight_keep_their_order(broker: ThreadedBroker, version: Version) -> None:
    async def scenario() -> None:
        topic = f"order/{version.name}"
        async with (
            Client(broker.url, version=version) as publisher,
            Client(broker.url, version=version) as subscriber,
            subscriber.subscribe(topic, qos=2) as messages,
        ):
            count = 1500
            collecting = asyncio.create_task(take(messages, count))
            await asyncio.gather(*(publisher.publish(topic, str(at), qos=2) for at in range(count)))
            got = await collecting
        assert [int(m.payload) for m in got] == list(range(count))

    run(scenario())


def test_properties_travel_with_the_message(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        properties = Properties(
            payload_format=1,
            message_expiry_s=100,
            response_topic="properties/answer",
            correlation_data=b"\x00\xff",
            content_type="text/plain",
            user=(("a", "1"), ("a", "2")),
        )
        async with Client(broker.url) as client, client.subscribe("properties") as messages:
            await client.publish("properties", "x", properties=properties)
            got = (await messages.get(PATIENCE_S)).properties
        assert (got.response_topic, got.correlation_data, got.content_type, got.user, got.payload_format) == (
            "properties/answer",
            b"\x00\xff",
            "text/plain",
            (("a", "1"), ("a", "2")),
            1,
        )
        assert got.message_expiry_s is not None and 0 < got.message_expiry_s <= 100

    run(scenario())


def test_retained_messages_and_subscription_options(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        async with Client(broker.url) as client:
            await client.publish("retained/a", "old", retain=True)
            async with client.subscribe("retained/#") as messages:
                first = await messages.get(PATIENCE_S)
                assert first.retain and first.payload == b"old"
            options = {"retain_handling": RetainHandling.DO_NOT_SEND, "retain_as_published": True}
            async with client.subscribe("retained/#", **options) as messages:
                await client.publish("retained/a", "new", retain=True)
                fresh = await messages.get(PATIENCE_S)
                assert fresh.retain and fresh.payload == b"new"
            async with client.subscribe("retained/b", no_local=True) as messages:
                await client.publish("retained/b", "own")
                async with Client(broker.url) as other:
                    await other.publish("retained/b", "other")
                assert (await messages.get(PATIENCE_S)).payload == b"other"

    run(scenario())


def test_overlapping_subscriptions_each_get_the_message_once(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        async with (
            Client(broker.url) as client,
            client.subscribe("overlap/#") as wide,
            client.subscribe("overlap/a", "overlap/+") as narrow,
        ):
            for at in range(3):
                await client.publish("overlap/a", str(at), qos=1)
            await client.publish("overlap/b/c", "deep")
            assert [m.payload for m in await take(wide, 4)] == [b"0", b"1", b"2", b"deep"]
            assert [m.payload for m in await take(narrow, 3)] == [b"0", b"1", b"2"]
            assert narrow.buffered == 0

    run(scenario())


def test_a_group_shares_the_work(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        async with (
            Client(broker.url) as one,
            Client(broker.url) as two,
            one.subscribe("work/#", group="g") as first,
            two.subscribe("work/#", group="g") as second,
        ):
            async with Client(broker.url) as publisher:
                for at in range(40):
                    await publisher.publish("work/x", str(at))
            await until_async(lambda: first.buffered + second.buffered == 40, "every message at one member")
            got = [await take(messages, messages.buffered) for messages in (first, second)]
            assert all(got), "both members work"
            assert sorted(int(m.payload) for part in got for m in part) == list(range(40))

    run(scenario())


def test_a_left_subscription_gets_nothing_and_may_be_made_again(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        async with Client(broker.url) as client:
            async with client.subscribe("left"):
                pass
            await client.publish("left", "unseen")
            async with client.subscribe("left") as messages:
                await client.publish("left", "seen")
                assert (await messages.get(PATIENCE_S)).payload == b"seen"
                with pytest.raises(LocalError, match="already subscribed"):
                    async with client.subscribe("left"):
                        pass

    run(scenario())


def test_iterating_without_a_context_subscribes_too(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        async with Client(broker.url) as client, Client(broker.url) as publisher:
            await publisher.publish("bare", "x", retain=True)
            async for message in client.subscribe("bare"):
                assert message.payload == b"x"
                break

    run(scenario())


def test_several_tasks_share_one_subscription(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        got: list[bytes] = []

        async def work(messages: Subscription) -> None:
            async for message in messages:
                got.append(message.payload)

        async with Client(broker.url) as client:
            async with client.subscribe("pool") as messages:
                workers = [asyncio.create_task(work(messages)) for _ in range(3)]
                for at in range(30):
                    await client.publish("pool", str(at))
                await until_async(lambda: len(got) == 30, "all taken")
                workers[0].cancel()
                await client.publish("pool", "last")
                await until_async(lambda: len(got) == 31, "the others go on")
            # The end of the subscription ends its iterators.
            await asyncio.gather(*workers[1:])
        assert sorted(got) == sorted([b"%d" % at for at in range(30)] + [b"last"])

    run(scenario())


# ------------------------------------------------------------------------------------------------- sessions


def test_a_durable_session_collects_while_the_client_is_away(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        durable = {"client_id": "sleeper", "session_expiry_s": 600}
        async with Client(broker.url, **durable) as client, client.subscribe("sleep/#", qos=2) as messages:
            await client.publish("sleep/a", "0")
            assert (await messages.get(PATIENCE_S)).payload == b"0"
        async with Client(broker.url) as publisher:
            for at in (1, 2, 3):
                await publisher.publish("sleep/a", str(at), qos=2)
        # They may arrive before the application has said what it wants.
        async with Client(broker.url, **durable) as client, client.subscribe("sleep/#", qos=2) as messages:
            assert [m.payload for m in await take(messages, 3)] == [b"1", b"2", b"3"]
            await messages.unsubscribe()
        async with Client(broker.url) as publisher:
            await publisher.publish("sleep/a", "4")
        async with Client(broker.url, **durable) as client, client.subscribe("sleep/#") as messages:
            await client.publish("sleep/a", "5")
            assert (await messages.get(PATIENCE_S)).payload == b"5", "4 came after unsubscribing"

    run(scenario())


def test_what_was_not_acknowledged_comes_again(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        durable = {"client_id": "manual", "session_expiry_s": 600}
        async with (
            Client(broker.url, **durable) as client,
            client.subscribe("manual", manual_ack=True) as messages,
        ):
            for at in range(3):
                await client.publish("manual", str(at))
            got = await take(messages, 3)
            messages.ack(got[0])
            messages.ack(got[0])
        async with Client(broker.url, **durable) as client, client.subscribe("manual") as messages:
            assert [m.payload for m in await take(messages, 2)] == [b"1", b"2"]
            await messages.unsubscribe()

    run(scenario())


def test_messages_of_a_group_that_were_not_handed_out_go_to_the_others(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        async with (
            Client(broker.url) as publisher,
            Client(broker.url) as hasty,
            Client(broker.url) as patient,
            hasty.subscribe("returned", group="g") as messages,
        ):
            for at in range(5):
                await publisher.publish("returned", str(at))
            await until_async(lambda: messages.buffered == 5, "all five at the only member")
            assert (await messages.get(PATIENCE_S)).payload == b"0"
            async with patient.subscribe("returned", group="g") as others:
                await messages.close()
                await hasty.close()
                got = [m.payload for m in await take(others, 4)]
        assert sorted(got) == [b"1", b"2", b"3", b"4"]

    run(scenario())


# --------------------------------------------------------------------------------------------------- errors


def test_nobody_there_is_said_in_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]

        async def scenario() -> None:
            urls = [f"mqtt://ann:secret@127.0.0.1:{port}", f"ws://127.0.0.1:{port}"]
            with pytest.raises(CannotConnect) as error:
                async with Client(urls):
                    pass
            text = str(error.value)
            assert text.count("connection refused") == 2 and "secret" not in text and "\n" not in text

        run(scenario())


def test_a_host_that_cannot_exist_is_said_so() -> None:
    async def scenario() -> None:
        for host in ("a..b", "x" * 70):
            with pytest.raises(CannotConnect):
                async with Client(f"mqtt://{host}"):
                    pass

    run(scenario())


def test_a_server_that_does_not_answer_is_given_up() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            for scheme in ("mqtt", "ws"):
                url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}"
                with pytest.raises(CannotConnect, match=r"no answer within 0\.2 s"):
                    async with Client(url, connect_timeout_s=0.2):
                        pass

    run(scenario())


def test_a_server_that_speaks_something_else_is_told_apart(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        server = await asyncio.start_server(web, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(CannotConnect, match="404"):
                async with Client(f"ws://127.0.0.1:{port}"):
                    pass
            with pytest.raises(CannotConnect, match="is it an MQTT broker"):
                async with Client(f"mqtt://127.0.0.1:{port}"):
                    pass
        with pytest.raises(CannotConnect, match="WebSocket handshake"):
            async with Client(f"ws://127.0.0.1:{broker.port}"):
                pass

    run(scenario())


def test_wrong_use_is_refused_before_anything_is_sent(broker: ThreadedBroker) -> None:
    for options in (
        {"url": "http://x"},
        {"url": []},
        {"keep_alive_s": 70_000},
        {"receive_maximum": 0},
        {"session_expiry_s": 10},
        {"password": "x", "version": Version.MQTT_3_1_1},
        {"url": "mqtts://x", "ca_file": "/nonexistent"},
    ):
        with pytest.raises(ConfigError):
            Client(**options)

    async def scenario() -> None:
        client = Client(broker.url)
        with pytest.raises(LocalError, match="async with"):
            await client.publish("x")
        async with client:
            for call in (
                client.publish("a/#"),
                client.publish("a", qos=3),
                client.subscribe("a/#/b").get(1),
                client.subscribe().get(1),
                client.subscribe("a", group="x+").get(1),
            ):
                with pytest.raises(LocalError):
                    await call
            with pytest.raises(LocalError, match="no /"):
                client.subscribe("a", group="x/y")
            assert client.connected
        with pytest.raises(Closed):
            await client.publish("x")
        with pytest.raises(Closed):
            await client.subscribe("x").get(1)
        with pytest.raises(LocalError, match="once"):
            await client.__aenter__()

    run(scenario())


def test_a_message_too_large_for_the_server_costs_no_connection(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        async with Client(broker.url, reconnect=False) as client:
            with pytest.raises(Refused) as error:
                await client.publish("big", bytes(3_000_000))
            assert error.value.reason is Reason.PACKET_TOO_LARGE
            await client.publish("big", b"small")

    run(scenario())


def test_closing_ends_what_waits(broker: ThreadedBroker) -> None:
    async def scenario() -> None:
        client = Client(broker.url)
        await client.__aenter__()
        messages = client.subscribe("closing")
        waiting = asyncio.create_task(anext(messages, None))
        await until_async(lambda: messages.number is not None, "subscribing")
        await client.publish("closing/other", "")
        await client.close()
        assert await waiting is None
        with pytest.raises(Closed):
            await messages.get(PATIENCE_S)
        await client.close()

    run(scenario())


# --------------------------------------------------------------------------------------------------- access


def test_users_passwords_and_rules(tmp_path: Path) -> None:
    users = tmp_path / "users.toml"
    change(users, lambda content: content.with_user("ann", hash_password(b"s:e/cret")))
    for action, effect, name in (
        (Action.PUBLISH, Effect.DENY, "no/#"),
        (Action.SUBSCRIBE, Effect.DENY, "no/#"),
        (Action.ALL, Effect.ALLOW, "#"),
    ):
        rule = Rule(user="ann", effect=effect, action=action, filter=name)
        change(users, lambda content, rule=rule: content.with_rule(rule))  # type: ignore[misc]

    async def scenario(url: str, port: int) -> None:
        for options in ({"username": "ann", "password": "wrong"}, {"username": "bob", "password": b"x"}):
            with pytest.raises(Refused) as error:
                async with Client(url, **options):
                    pass
            assert error.value.reason is Reason.BAD_USER_OR_PASSWORD
        for good in (f"mqtt://ann:s%3Ae%2Fcret@127.0.0.1:{port}", f"mqtt://ann@127.0.0.1:{port}"):
            password = None if ":s" in good else "s:e/cret"
            async with Client(good, password=password, reconnect=False) as client:
                await client.publish("yes", "x")
                for qos in (1, 2):
                    with pytest.raises(
                        Refused, match=r"publish to no/x was refused: not authorized \(0x87\)"
                    ):
                        await client.publish("no/x", "x", qos=qos)
                with pytest.raises(Refused, match="subscription to no/y was refused"):
                    await client.subscribe("yes", "no/y").get(1)
                # Refused as a whole: the part that was granted is given back.
                async with client.subscribe("yes") as messages:
                    await client.publish("yes", "again")
                    assert (await messages.get(PATIENCE_S)).payload == b"again"

    with ThreadedBroker(access__users_file=str(users)) as broker:
        run(scenario(broker.url, broker.port))


def test_tls_is_checked_both_ways(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    server, own = authority.issue("server", server=True), authority.issue("ann")

    async def scenario(broker: ThreadedBroker) -> None:
        mine = {"cert_file": own.certificate, "key_file": own.key}
        for scheme in ("mqtts", "wss"):
            url = url_of(broker, scheme)
            with pytest.raises(CannotConnect, match="its certificate is not trusted"):
                async with Client(url, **mine):
                    pass
            with pytest.raises(CannotConnect):
                async with Client(url, ca_file=authority.file):
                    pass
            for trust in ({"ca_file": authority.file}, {"insecure": True}):
                async with Client(url, **trust, **mine) as client, client.subscribe("tls") as messages:
                    await client.publish("tls", scheme)
                    assert (await messages.get(PATIENCE_S)).payload == scheme.encode()

    with ThreadedBroker(
        listeners__mqtts="127.0.0.1:0",
        listeners__wss="127.0.0.1:0",
        tls__certificate=server.certificate,
        tls__key=server.key,
        tls__client_ca=authority.file,
        tls__require_client_certificate=True,
    ) as broker:
        run(scenario(broker))


# -------------------------------------------------------------------------------------------- blocking facade


def test_the_blocking_client_does_the_same(broker: ThreadedBroker) -> None:
    with blocking.Client(broker.url) as client, client.subscribe("blocking/#", qos=2) as messages:
        assert client.connected and client.address == broker.url
        for qos in (0, 1, 2):
            client.publish("blocking/a", str(qos), qos=qos)
        assert [messages.get(PATIENCE_S).payload for _ in range(3)] == [b"0", b"1", b"2"]
        futures = [client.submit("blocking/b", str(at)) for at in range(200)]
        got = [int(message.payload) for _, message in zip(range(200), messages, strict=False)]
        assert got == list(range(200))
        assert all(future.result(PATIENCE_S) is Reason.SUCCESS for future in futures)
        with pytest.raises(TimeoutError):
            messages.get(0.05)
        with pytest.raises(LocalError):
            client.publish("blocking/#")
    with pytest.raises(Closed):
        client.publish("blocking/a")


def test_the_blocking_client_acknowledges_by_hand(broker: ThreadedBroker) -> None:
    durable = {"client_id": "blocking-manual", "session_expiry_s": 600}
    with (
        blocking.Client(broker.url, **durable) as client,
        client.subscribe("hand", manual_ack=True) as messages,
    ):
        client.publish("hand", "0")
        client.publish("hand", "1")
        messages.ack(messages.get(PATIENCE_S))
        messages.get(PATIENCE_S)
    with blocking.Client(broker.url, **durable) as client, client.subscribe("hand") as messages:
        assert messages.get(PATIENCE_S).payload == b"1"
        messages.unsubscribe()


def test_a_blocking_client_goes_on_where_python_takes_its_thread_for_ended(
    broker: ThreadedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it does after an interrupt in the middle of `is_alive`; closing must still end the thread."""
    with blocking.Client(broker.url) as client:
        monkeypatch.setattr(client._thread, "is_alive", lambda: False)
        assert client.publish("blocking/a", "0") is Reason.SUCCESS
    assert client._loop.is_closed()


def _publish_interrupted(client: blocking.Client, at: int) -> bool:
    """Publishes; after so many instructions of this thread Ctrl-C comes. False if it had ended by then."""
    seen = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        nonlocal seen
        # Python itself swallows what is raised while it drops a weak reference.
        if frame.f_code.co_filename.endswith("_weakrefset.py"):
            return None
        frame.f_trace_opcodes = True
        seen += event == "opcode"
        if event == "opcode" and seen == at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        client.publish("interrupted", "1", qos=0)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_blocking_client_closes_wherever_it_was_interrupted(broker: ThreadedBroker) -> None:
    """At every instruction of a call; one that held a lock of the loop's thread made `millrace sub` hang."""
    at = 1
    while True:
        client = blocking.Client(broker.url)
        client.__enter__()
        is_interrupted = _publish_interrupted(client, at)
        closing = threading.Thread(target=client.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive(), f"stuck after an interrupt at instruction {at}"
        if not is_interrupted:
            break
        at += 1
    assert at > 50, "the call has been looked at"


def test_a_blocking_client_that_cannot_connect_leaves_no_thread_behind() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(CannotConnect):
            blocking.Client(f"mqtt://127.0.0.1:{unused.getsockname()[1]}").__enter__()
    assert not [thread for thread in threading.enumerate() if thread.name == "millrace-client"]
