"""What a `Publisher` does with a message, or an address, that is not wanted: it says so, and it ends."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millrace.client import publisher as module
from millrace.client.publisher import Publisher
from millrace.errors import ConfigError, LocalError
from millrace.reasons import Reason
from millrace.types import Version
from millrace.wire.mqtt.codec import decode, encode, split
from millrace.wire.mqtt.packets import Connack, Connect, Packet, Puback, Publish, Suback, Subscribe
from waiting import until_async

Judge = Callable[[bytes], Reason]
SCENARIO_S_MAX = 20.0


class SmallBroker:
    """Lets everybody in and answers each publish as it is told to; `seen` are the payloads that came."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self.seen: list[bytes] = []
        self.connections = 0

    async def __aenter__(self) -> "SmallBroker":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._writers: list[asyncio.StreamWriter] = []
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        """Gone, and every connection with it."""
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        data = b""
        while received := await reader.read(65_536):
            data += received
            while (found := split(data, 0)) is not None:
                first, start, end = found
                answer = self._answer(decode(first, data[start:end], Version.MQTT_5))
                data = data[end:]
                if answer is not None:
                    writer.write(encode(answer, Version.MQTT_5))
        writer.close()

    def _answer(self, packet: Packet) -> Packet | None:
        match packet:
            case Connect():
                self.connections += 1
                return Connack(reason=Reason.SUCCESS)
            case Subscribe():
                return Suback(packet_id=packet.packet_id, reasons=(Reason.SUCCESS,))
            case Publish():
                assert packet.packet_id is not None
                self.seen.append(packet.message.payload)
                return Puback(packet_id=packet.packet_id, reason=self._judge(packet.message.payload))
        return None


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SCENARIO_S_MAX):
            await scenario()

    asyncio.run(bounded())


def takes_all(_: bytes) -> Reason:
    return Reason.SUCCESS


def test_every_address_is_looked_at_before_it_is_needed() -> None:
    with pytest.raises(ConfigError, match="begins with mqtt://"):
        Publisher(["mqtt://127.0.0.1:1", "nonsense://x"])
    with pytest.raises(ConfigError, match="TLS files"):
        Publisher(["mqtt://127.0.0.1:1", "mqtts://127.0.0.1:2"], ca_file="no-such-file")
    for name in ("connect_timeout_s", "reconnect_pause_s_max", "reconnect"):
        with pytest.raises(LocalError, match=f"{name}.*timeout_s"):
            Publisher(["mqtt://127.0.0.1:1"], **{name: 5})


def test_what_is_no_message_is_told_to_the_caller() -> None:
    async def scenario() -> None:
        async with SmallBroker(takes_all) as broker, Publisher([broker.url]) as publisher:
            with pytest.raises(LocalError, match="wildcard"):
                publisher.publish("a/#", b"x")
            publisher.publish("a/b", b"y")
            await publisher.settled()
            assert (publisher.acknowledged, publisher.given_up, publisher.unacknowledged) == (1, 0, 0)

    run(scenario)


def test_a_message_that_may_not_be_published_is_given_up_and_its_broker_stays_in_use() -> None:
    async def scenario() -> None:
        def judge(payload: bytes) -> Reason:
            return Reason.NOT_AUTHORIZED if payload == b"no" else Reason.SUCCESS

        async with SmallBroker(judge) as broker, Publisher([broker.url], keep_last=2) as publisher:
            for payload in (b"no", b"yes"):
                publisher.publish("a", payload)
            await publisher.settled()
            for payload in (b"yes", b"yes"):
                publisher.publish("a", payload)
            await publisher.settled()
            assert (publisher.acknowledged, publisher.given_up, publisher.unacknowledged) == (3, 1, 0)
            assert (publisher.switches, broker.seen) == (0, [b"no", b"yes", b"yes", b"yes"])

    run(scenario)


def test_a_message_that_every_broker_refuses_each_time_is_given_up_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.001)

    async def scenario() -> None:
        def judge(payload: bytes) -> Reason:
            return Reason.IMPLEMENTATION_SPECIFIC if payload == b"old" else Reason.SUCCESS

        async with (
            SmallBroker(judge) as one,
            SmallBroker(judge) as other,
            Publisher([one.url, other.url]) as publisher,
        ):
            for payload in (b"old", b"new"):
                publisher.publish("a", payload)
            await publisher.settled()
            assert (publisher.acknowledged, publisher.given_up, publisher.unacknowledged) == (1, 1, 0)
            assert one.seen.count(b"old") > 1 and other.seen.count(b"old") > 1, "others may take it"

    run(scenario)


def test_what_one_broker_acknowledged_is_not_given_up_because_the_other_refuses_it() -> None:
    async def scenario() -> None:
        async with (
            SmallBroker(takes_all) as one,
            SmallBroker(lambda _: Reason.NOT_AUTHORIZED) as other,
            Publisher([one.url, other.url]) as publisher,
        ):
            publisher.publish("a", b"x")
            await publisher.settled()
            one.cut()
            publisher.publish("a", b"y")
            await until_async(lambda: publisher.given_up > 0, "the other broker to refuse")
            await publisher.settled()
            assert other.seen == [b"x", b"y"]
            assert (publisher.acknowledged, publisher.given_up, publisher.unacknowledged) == (1, 1, 0)

    run(scenario)


def test_an_acknowledgement_counts_also_when_it_comes_after_the_message_was_pushed_out() -> None:
    async def scenario() -> None:
        async with SmallBroker(takes_all) as broker, Publisher([broker.url], keep_last=1) as publisher:
            for payload in (b"x", b"y", b"z"):
                publisher.publish("a", payload)
            assert publisher.given_up == 2
            await publisher.settled()
            assert (publisher.acknowledged, publisher.given_up) == (3, 0)

    run(scenario)
