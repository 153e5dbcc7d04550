"""Clients of a load that are not ours: Paho for MQTT, and plain HTTP requests for messages with a key.

Each has the few methods of `millrace.client.Client` that a load calls. A client of Paho knows one node and
comes back to it; what it had under way is sent again by Paho itself.
"""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from millrace.client import ClientError, Refused
from millrace.lab.campaign.load import SESSION_S, SUBSCRIBER, MakeClient
from millrace.reasons import Reason
from millrace.types import NO_PROPERTIES, Message, Properties

_KEEP_ALIVE_S = 5
_CONNECT_S = 30.0
_FAILED = 0x80
_HTTP_S = 5.0
_AGAIN_S = 0.2
_INFLIGHT = 100


class _Paho(paho.Client):
    """Paho 2.1 and 2.2 forget at the second attempt to connect that a message of QoS 2 was received, and
    publish it again instead of releasing it [MQTT-4.3.3-4]: a double that no broker can notice once it was
    released. Everything else is theirs."""

    def _messages_reconnect_reset_out(self) -> None:
        released = [m for m in self._out_messages.values() if m.state == MessageState.MQTT_MS_RESEND_PUBREL]
        super()._messages_reconnect_reset_out()
        for message in released:
            message.state = MessageState.MQTT_MS_RESEND_PUBREL


class PahoClient:
    """One MQTT 5 connection of Paho, in a thread of its own."""

    def __init__(self, url: str, name: str, expiry_s: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None and parts.port is not None
        self._address = parts.hostname, parts.port
        self._expiry_s = expiry_s
        self._paho = _Paho(CallbackAPIVersion.VERSION2, client_id=name, protocol=paho.MQTTv5)
        self._paho.reconnect_delay_set(1, 1)
        self._paho.max_inflight_messages_set(_INFLIGHT)
        self._paho.on_connect = self._on_connect
        self._paho.on_publish = self._on_publish
        self._paho.on_subscribe = self._on_subscribe
        self._paho.on_message = self._on_message
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._connected = asyncio.Event()
        self._granted = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> "PahoClient":
        self._loop = asyncio.get_running_loop()
        properties = PahoProperties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._expiry_s
        host, port = self._address
        self._paho.connect_async(
            host, port, _KEEP_ALIVE_S, clean_start=not self._expiry_s, properties=properties
        )
        self._paho.loop_start()
        await asyncio.wait_for(self._connected.wait(), _CONNECT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._paho.disconnect()
        await asyncio.to_thread(self._paho.loop_stop)

    # ------------------------------------------------------------------------- called in Paho's thread

    def _soon(self, call: Any, *arguments: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call, *arguments)

    def _on_connect(self, *_: Any) -> None:
        self._soon(self._connected.set)

    def _on_publish(self, _: Any, __: Any, mid: int, reason: Any, ___: Any) -> None:
        self._soon(self._answered, mid, int(reason.value))

    def _on_subscribe(self, *_: Any) -> None:
        self._soon(self._granted.set)

    def _on_message(self, _: Any, __: Any, got: Any) -> None:
        message = Message(topic=got.topic, payload=got.payload, qos=got.qos)
        self._soon(self._messages.put_nowait, message)

    # ----------------------------------------------------------------------------------------- ours

    def _answered(self, mid: int, reason: int) -> None:
        waiting = self._waiting.pop(mid, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reason)

    async def publish(
        self, topic: str, payload: bytes, *, qos: int, properties: Properties = NO_PROPERTIES
    ) -> None:
        more = None
        if properties.user:
            more = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            more.UserProperty = list(properties.user)
        mid = self._paho.publish(topic, payload, qos, properties=more).mid
        # Its answer is told on this loop, so not before this.
        waiting = self._waiting[mid] = asyncio.get_running_loop().create_future()
        reason = await waiting
        if reason >= _FAILED:
            raise Refused(f"the publish to {topic}", Reason(reason), "")

    @asynccontextmanager
    async def subscribe(self, filter: str, *, qos: int) -> AsyncIterator[AsyncIterator[Message]]:
        self._paho.subscribe(filter, qos)
        await asyncio.wait_for(self._granted.wait(), _CONNECT_S)

        async def messages() -> AsyncIterator[Message]:
            while True:
                yield await self._messages.get()

        yield messages()


class HttpClient:
    """Publishes with a key by `POST /v1/publish`, at one node after the other until one says yes."""

    def __init__(self, urls: list[str]) -> None:
        self._hosts = [urlsplit(url).netloc for url in urls]
        self._turn = 0
        # Requests that are under way together may be stored in any order.
        self._in_order: dict[str, asyncio.Lock] = {}

    async def __aenter__(self) -> "HttpClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def publish(
        self, topic: str, payload: bytes, *, qos: int, properties: Properties = NO_PROPERTIES
    ) -> None:
        key = dict(properties.user)
        headers = {
            "Content-Type": "application/json",
            "Millrace-Producer": key["millrace-producer"],
            "Millrace-Sequence": key["millrace-sequence"],
        }
        body = json.dumps({"topic": topic, "payload": payload.decode(), "qos": qos})
        async with self._in_order.setdefault(topic, asyncio.Lock()):
            await self._until_stored(body, headers)

    async def _until_stored(self, body: str, headers: dict[str, str]) -> None:
        while True:
            host = self._hosts[self._turn % len(self._hosts)]
            try:
                status, text = await asyncio.to_thread(self._ask, host, body, headers)
            except (OSError, http.client.HTTPException):
                status, text = 503, ""
            if status < 300:
                return
            if status < 500 and status != 429:
                raise ClientError(f"{host} answered {status}: {text[:200]}")
            # Under the same number: where it was stored although the answer is lost, it is not stored again.
            self._turn += 1
            await asyncio.sleep(_AGAIN_S)

    @staticmethod
    def _ask(host: str, body: str, headers: dict[str, str]) -> tuple[int, str]:
        """*blocking*"""
        connection = http.client.HTTPConnection(host, timeout=_HTTP_S)
        try:
            connection.request("POST", "/v1/publish", body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def make_foreign(http_urls: dict[str, str]) -> MakeClient:
    """Makers of such clients; where each node answers HTTP, by its MQTT address."""

    def make(kind: str, urls: list[str], name: str) -> PahoClient | HttpClient:
        if kind == "keyed":
            return HttpClient([http_urls[url] for url in urls])
        return PahoClient(urls[0], name, SESSION_S if kind in ("qos2", SUBSCRIBER) else 0)

    return make
