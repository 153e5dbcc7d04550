"""Enhanced authentication of one connection (MQTT 5, 4.12): which AUTH packet may come when."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from millrace.errors import ProtocolError
from millrace.node.access.identity import Identity
from millrace.reasons import Reason
from millrace.wire.mqtt.packets import Auth, Connect


class EnhancedAuthentication(Protocol):
    """One run of an authentication method; a fresh object for each login."""

    def step(self, client_id: str, data: bytes | None) -> tuple[bool | None, bytes | None, Identity | None]:
        """(True accept / False refuse / None go on, data for the client, who it is once accepted)."""


Methods = Mapping[str, Callable[[Any], EnhancedAuthentication]]
"""What begins a run for the client at an address."""


class Exchange:
    """Holds the method that CONNECT named; `connect` is that packet."""

    def __init__(self, connect: Connect, method: str, make: Callable[[], EnhancedAuthentication]) -> None:
        self.connect = connect
        self.method = method
        self._make = make
        self._run: EnhancedAuthentication | None = make()

    def step(self, data: bytes | None) -> tuple[bool | None, bytes | None, Identity | None]:
        assert self._run is not None
        said = self._run.step(self.connect.client_id, data)
        if said[0] is not None:
            self._run = None
        return said

    def on_auth(
        self, packet: Auth, *, is_connected: bool
    ) -> tuple[bool | None, bytes | None, Identity | None]:
        """The next step, or the first one of another run. ProtocolError for an AUTH that may not come now."""
        if packet.authentication_method != self.method:
            # [MQTT-4.12.0-5], [MQTT-4.12.1-1]
            raise ProtocolError("AUTH of another method", Reason.PROTOCOL_ERROR)
        if packet.reason is Reason.REAUTHENTICATE:
            if not is_connected:
                raise ProtocolError("re-authentication before the connection is accepted")
            self._run = self._make()
        elif packet.reason is not Reason.CONTINUE_AUTHENTICATION:
            raise ProtocolError("AUTH with a reason that clients do not send")
        elif self._run is None:
            raise ProtocolError("AUTH goes on with an exchange that is over")
        return self.step(packet.authentication_data)


def begin(methods: Methods, connect: Connect, peer: Any) -> Exchange | None:
    """The exchange that a CONNECT asks for; None where its method is not known."""
    method = connect.authentication_method or ""
    make = methods.get(method)
    return None if make is None else Exchange(connect, method, partial(make, peer))
