"""MQTT over WebSocket (MQTT 5, section 6): frames around the same bytes.

`WebSocketAdapter` is a protocol toward the socket and a transport toward the connection inside. Packets may
lie across frames in any way, so the payload of every binary frame is simply the next piece of the stream.

A frame may be six bytes long, and one read brings tens of thousands of such. So frames count for the turn of
the loop, and what is left of them waits for a later one, whoever sent them.
"""

from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import RemoteProtocolError

from millrace.node.doors.hosts import Hosts, refusal
from millrace.node.doors.mqtt_connection import MqttConnection
from millrace.node.doors.mqtt_door import PACKET_COST, MqttDoor
from millrace.reasons import Reason

# [MQTT-6.0.0-3]: "mqtt"; the older name is that of MQTT 3.1 clients.
_SUBPROTOCOLS = ("mqtt", "mqttv3.1")
_UNSUPPORTED_DATA = 1003
_NORMAL = 1000


class WebSocketAdapter:
    def __init__(
        self,
        door: MqttDoor,
        inner: MqttConnection,
        origins: frozenset[str],
        hosts: Hosts | None,
        *,
        is_secure: bool = False,
    ) -> None:
        self._door = door
        self._inner = inner
        self._origins = origins
        self._hosts = None if is_secure else hosts
        self._frames = WSConnection(ConnectionType.SERVER)
        self._transport: Any = None
        self._open = False
        # Closed, or closed from here: what else the chunk holds is nobody's any more.
        self._is_over = False
        # Frames that were read wait for a later turn.
        self._is_parked = False
        self._is_paused_inside = False

    # ----------------------------------------------------------------- called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._inner.connection_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._inner.connection_lost(error)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if not self._door.awake:
            self._door.begin_turn()
        try:
            self._frames.receive_data(data)
            if not self._is_parked:
                self._take_frames()
        except RemoteProtocolError as error:
            self._on_fault(error)

    def unpark(self) -> None:
        if self._is_over:
            return
        if self._door.is_used_up:
            self._door.parked.append(self)
            return
        self._is_parked = False
        try:
            self._take_frames()
        except RemoteProtocolError as error:
            self._on_fault(error)
        if not (self._is_parked or self._is_over or self._is_paused_inside):
            self._transport.resume_reading()

    def _take_frames(self) -> None:
        """Those that are whole, or as many as this turn of the loop has room for."""
        door = self._door
        for event in self._frames.events():
            self._on_event(event)
            if self._is_over:
                return
            door.taken += PACKET_COST
            if door.is_used_up:
                self._is_parked = True
                self._transport.pause_reading()
                door.parked.append(self)
                door.wake()
                return

    def _on_fault(self, error: RemoteProtocolError) -> None:
        if error.event_hint is not None:
            self._transport.write(self._frames.send(error.event_hint))
        self._drop(f"not a WebSocket: {error}")

    def _on_event(self, event: Event) -> None:
        match event:
            case Request():
                self._on_request(event)
            case BytesMessage():
                if event.data:
                    self._inner.data_received(bytes(event.data))
            case TextMessage():
                # [MQTT-6.0.0-1]: binary frames only.
                self._end(_UNSUPPORTED_DATA, "MQTT needs binary frames")
                self._drop("a text frame")
            case Ping():
                self._transport.write(self._frames.send(event.response()))
            case CloseConnection():
                self._transport.write(self._frames.send(event.response()))
                self._drop(f"WebSocket closed, code {event.code}")
            case _:
                pass

    def _on_request(self, request: Request) -> None:
        if self._hosts is not None and not self._hosts.allow(request.host):
            self._transport.write(self._frames.send(RejectConnection(status_code=403)))
            self._drop(refusal(request.host))
            return
        headers = {name.lower(): value for name, value in request.extra_headers}
        if not self._origin_allowed(headers.get(b"origin"), request.host):
            self._transport.write(self._frames.send(RejectConnection(status_code=403)))
            self._drop("the page's origin is not allowed")
            return
        chosen = next((name for name in _SUBPROTOCOLS if name in request.subprotocols), None)
        if chosen is None:
            self._transport.write(self._frames.send(RejectConnection(status_code=400)))
            self._drop("the WebSocket asks for no MQTT subprotocol")
            return
        self._open = True
        self._transport.write(self._frames.send(AcceptConnection(subprotocol=chosen)))

    def _origin_allowed(self, origin: bytes | None, host: str) -> bool:
        """A page of another site must not speak for a browser that happens to reach us."""
        if origin is None or "*" in self._origins:
            return True
        text = origin.decode("latin-1")
        try:
            return text in self._origins or urlsplit(text).netloc.lower() == host.lower()
        except ValueError:
            return False

    def _end(self, code: int, reason: str) -> None:
        if self._open:
            self._open = False
            self._transport.write(self._frames.send(CloseConnection(code=code, reason=reason)))
        self._is_over = True
        self._transport.close()

    def _drop(self, detail: str) -> None:
        """The WebSocket is over; the connection inside ends with it, however long the socket lingers."""
        self._open = False
        self._is_over = True
        self._transport.close()
        self._inner.fail(Reason.UNSPECIFIED, detail)

    # ------------------------------------------------------------ called by the connection inside

    def write(self, data: bytes) -> None:
        if self._open:
            self._transport.write(self._frames.send(BytesMessage(data=data)))

    def get_write_buffer_size(self) -> int:
        size: int = self._transport.get_write_buffer_size()
        return size

    def close(self) -> None:
        self._end(_NORMAL, "")

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        self._is_paused_inside = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused_inside = False
        if not self._is_parked:
            self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
