"""Who a client is: anonymous, a verified certificate, or a name with a password.

Password hashing takes tens of milliseconds and runs in worker threads; the answer comes back through a
callback on the event loop. Successes are remembered for a short time, so a reconnecting fleet is quick.
"""

import asyncio
import ipaddress
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from millrace.node.access.users import Passwords, Users
from millrace.node.admin.events import EventLog, NoEvents
from millrace.node.admin.people import address_of
from millrace.node.doors.mqtt_door import Connection
from millrace.wire.mqtt.packets import Connect

_WORKERS = 2


class Authentication:
    def __init__(self, anonymous: Literal["loopback", "always", "never"], users: Users) -> None:
        self._anonymous = anonymous
        self.has_users = bool(users.hashes)
        self._passwords = Passwords(users)
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="password")
        self.events: EventLog = NoEvents()
        """Tells people whose password was wrong. Set by the node."""

    def proof_of(self, name: str) -> str | None:
        """What the user's password is checked against: another one once the password is changed."""
        return self._passwords.stored(name)

    def reload(self, users: Users) -> None:
        self.has_users = bool(users.hashes)
        self._passwords.reload(users)

    def close(self) -> None:
        self._workers.shutdown(wait=False, cancel_futures=True)

    def __call__(self, connection: Connection, packet: Connect, done: Callable[[bool], None]) -> None:
        """Decide about a CONNECT and call `done`, at once where nothing has to be hashed."""
        name = packet.username
        if name is None:
            certified = _certified_name(connection.transport)
            if certified is not None:
                connection.username = certified
                done(True)
            else:
                done(self._anonymous_allowed(connection.peer))
            return
        if not self.has_users:
            # No user is defined, so a name proves nothing: such a client is as good as an anonymous one.
            done(self._anonymous_allowed(connection.peer))
            return
        loop = asyncio.get_running_loop()
        password = packet.password or b""
        if self._passwords.remembers(name, password, loop.time()):
            connection.username = name
            done(True)
            return

        def answered(future: "asyncio.Future[bool]") -> None:
            if future.cancelled():
                return
            allowed = future.exception() is None and future.result()
            if not allowed:
                self._tell_wrong(name, connection.peer)
            else:
                connection.username = name
            done(allowed)

        work = loop.run_in_executor(self._workers, self._passwords.verify, name, password, loop.time())
        work.add_done_callback(answered)

    async def verify(self, peer: Any, name: str | None, password: bytes) -> tuple[bool, str | None]:
        """The same decision about a caller from `peer`: whether it may come in, and as whom."""
        if name is None or not self.has_users:
            return self._anonymous_allowed(peer), None
        loop = asyncio.get_running_loop()
        if self._passwords.remembers(name, password, loop.time()):
            return True, name
        work = loop.run_in_executor(self._workers, self._passwords.verify, name, password, loop.time())
        allowed = await work
        if not allowed:
            self._tell_wrong(name, peer)
        return allowed, name if allowed else None

    def _tell_wrong(self, name: str, peer: Any) -> None:
        address = address_of(peer)
        text = f"wrong password for user {name!r} from {address}"
        self.events.record("access", "warning", text, user=name, address=address)

    def _anonymous_allowed(self, peer: Any) -> bool:
        if self._anonymous == "loopback":
            return is_loopback(peer)
        return self._anonymous == "always"


def is_loopback(peer: Any) -> bool:
    """Whether the address is this machine's own; a Unix socket has none and is."""
    if not isinstance(peer, tuple) or not peer:
        return True
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _certified_name(transport: Any) -> str | None:
    """The common name of a client certificate that TLS has verified."""
    certificate = transport.get_extra_info("peercert")
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName" and value:
                return str(value)
    return None
