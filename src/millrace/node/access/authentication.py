"""Who a client is: anonymous, a verified certificate, a name with a password, or a token.

Users, rules and tokens are state of the meta group; `reload` brings what this node has applied of it into
force, and before the first `reload` nobody is let in [rule 31]. Password hashing runs in worker threads
behind the queue of `logins`; everything that can be decided without it is decided at once. Successes are
remembered for a short time, so a reconnecting fleet is quick.
"""

import asyncio
import ipaddress
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from millrace.broker.access import AccessRules, Role
from millrace.broker.meta.access import AccessState
from millrace.errors import LocalError
from millrace.limits import STRING_BYTES_TOP
from millrace.node.access import passwords
from millrace.node.access.identity import NOBODY, Identity, Proof
from millrace.node.access.logins import Login, Logins, Outcome
from millrace.node.access.tokens import digest_of, is_token
from millrace.node.admin.events import EventLog, NoEvents
from millrace.node.admin.people import address_of
from millrace.node.doors.mqtt_door import Connection, Decide
from millrace.wire.mqtt.packets import Connect

_WORKERS = 2
ANY_USER = "token"
"""A user name that goes with every token: for clients that must send one."""


class TooManyLogins(LocalError):
    """So many passwords wait to be checked that this one was not."""


class PasswordThreads:
    """The workers of a node: threads, and the time of its event loop."""

    count = _WORKERS

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="password")

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def start(self, check: Callable[[], bool], then: Callable[[bool], None]) -> None:
        def checked(work: "asyncio.Future[bool]") -> None:
            if not work.cancelled():
                then(work.exception() is None and work.result())

        asyncio.get_running_loop().run_in_executor(self._pool, check).add_done_callback(checked)

    def call_at(self, when_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(when_s, call)

    async def run(self, work: Callable[[], str]) -> str:
        """Other slow work of the same kind: a fresh hash."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class Refusals:
    """Refusals that cost whoever causes them nothing: told once a second at most, with their number."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._next_s = 0.0
        self._untold = 0

    def told(self) -> str | None:
        """What to add to the sentence about this one; None where it is only counted."""
        if self._now_s() < self._next_s:
            self._untold += 1
            return None
        more = f" (and {self._untold} refusals before it)" if self._untold else ""
        self._next_s, self._untold = self._now_s() + 1.0, 0
        return more


class Authentication:
    def __init__(
        self, anonymous: Literal["loopback", "always", "never"], *, wall_us: Callable[[], int]
    ) -> None:
        self._anonymous = anonymous
        self._wall_us = wall_us
        self._state: AccessState | None = None
        self._allows_anonymous = False
        self._right = passwords.RightPasswords()
        self._threads = PasswordThreads()
        self._logins = Logins(self._threads)
        self._refusals = Refusals(self._threads.now_s)
        self.events: EventLog = NoEvents()
        """Tells people who was refused. Set by the node."""

    def reload(self, state: AccessState, rules: AccessRules) -> None:
        """Users, rules or tokens changed."""
        self._state = state
        self._allows_anonymous = rules.allows_anonymous
        self._right.keep_only(state.users)

    def close(self) -> None:
        self._logins.close()
        self._threads.close()

    @property
    def has_users(self) -> bool:
        return self._state is None or bool(self._state.users)

    async def hash(self, password: bytes) -> str:
        """A fresh hash, made in a worker thread."""
        return await self._threads.run(lambda: passwords.hash_password(password))

    # ------------------------------------------------------------------------------------- logins

    def __call__(self, connection: Connection, packet: Connect, done: Decide) -> None:
        """Decide about a CONNECT and call `done`, at once where nothing has to be hashed."""
        name = packet.username
        if name is None and is_token(packet.password or b""):
            # MQTT 5 allows a password without a user name (3.1.2.9).
            name = ANY_USER
        if name is None:
            certified = _certified_name(connection.transport)
            if certified is not None and self._state is not None:
                _let_in(connection, Identity(username=certified, proof=Proof.CERTIFICATE), done)
            elif self.allows_anonymous(connection.peer):
                _let_in(connection, NOBODY, done)
            else:
                done(False)
            return
        password = packet.password or b""
        decided, identity = self._decide_at_once(connection.peer, name, password)
        if decided:
            if identity is None:
                done(False)
            else:
                _let_in(connection, identity, done)
            return

        def checked(outcome: Outcome, identity: Identity | None) -> None:
            connection.login = None
            if identity is not None:
                _let_in(connection, identity, done)
            else:
                done(False, is_busy=outcome is Outcome.BUSY)

        connection.login = self._check(connection.peer, name, password, checked)

    async def verify(self, peer: Any, name: str | None, password: bytes) -> Identity | None:
        """The same decision about a caller from `peer`: who it is, None for one that may not come in.
        TooManyLogins where nothing could be checked."""
        if name is None:
            return NOBODY if self.allows_anonymous(peer) else None
        decided, identity = self._decide_at_once(peer, name, password)
        if decided:
            return identity
        answer: asyncio.Future[Identity | None] = asyncio.get_running_loop().create_future()

        def checked(outcome: Outcome, identity: Identity | None) -> None:
            if answer.done():
                return
            if outcome is Outcome.BUSY:
                answer.set_exception(TooManyLogins("too many logins wait to be checked; try again"))
            else:
                answer.set_result(identity)

        login = self._check(peer, name, password, checked)
        try:
            return await answer
        finally:
            login.cancel()

    def verify_token(self, secret: bytes) -> Identity | None:
        """Whose token this is."""
        state = self._state
        token = None if state is None else state.tokens.get(digest_of(secret))
        if token is None or token.is_expired(self._wall_us()):
            return None
        return Identity(username=token.user, proof=Proof.TOKEN, token=token)

    def _decide_at_once(self, peer: Any, name: str, password: bytes) -> tuple[bool, Identity | None]:
        """(whether it could be decided without hashing, who it is)."""
        state = self._state
        if state is None:
            return True, None
        if not state.users:
            # No user is defined, so a name proves nothing: such a client is as good as an anonymous one.
            return True, NOBODY if self.allows_anonymous(peer) else None
        if is_token(password):
            identity = self.verify_token(password)
            if identity is None or name not in (identity.username, ANY_USER):
                self._tell_seldom("a token that is not valid for", name, peer)
                return True, None
            return True, identity
        if not password or len(password) > STRING_BYTES_TOP:
            # No password is empty, whoever it is: this tells nothing about the name.
            return True, None
        user = state.users.get(name)
        stored = "" if user is None else user.password_hash
        if self._right.remembers(name, stored, password, self._threads.now_s()):
            return True, Identity(username=name, proof=Proof.PASSWORD, password_hash=stored)
        return False, None

    def _check(
        self,
        peer: Any,
        name: str,
        password: bytes,
        checked: Callable[[Outcome, Identity | None], None],
    ) -> Login:
        assert self._state is not None
        user = self._state.users.get(name)
        stored = "" if user is None else user.password_hash

        def done(outcome: Outcome) -> None:
            identity = None
            if outcome is Outcome.RIGHT:
                identity = Identity(username=name, proof=Proof.PASSWORD, password_hash=stored)
                # The user may have been removed, or the password changed, while the hash was computed.
                if self.is_current(identity, peer):
                    self._right.remember(name, stored, password, self._threads.now_s())
                else:
                    identity = None
            if outcome is Outcome.BUSY:
                self._tell_seldom("too many logins wait: not checked,", name, peer)
            elif identity is None:
                self._tell("wrong password for", name, peer)
            checked(outcome, identity)

        return self._logins.ask(
            peer,
            name,
            is_known=bool(stored),
            check=lambda: passwords.matches(stored, password),
            done=done,
        )

    def _tell(self, what: str, name: str, peer: Any, more: str = "") -> None:
        address = address_of(peer)
        text = f"{what} user {name!r} from {address}{more}"
        self.events.record("access", "warning", text, user=name, address=address)

    def _tell_seldom(self, what: str, name: str, peer: Any) -> None:
        more = self._refusals.told()
        if more is not None:
            self._tell(what, name, peer, more)

    # ------------------------------------------------------------------------------ what still holds

    def is_current(self, identity: Identity, peer: Any) -> bool:
        """Whether this login would succeed now: the user is there with the same password, the token is."""
        state = self._state
        if state is None:
            return False
        match identity.proof:
            case Proof.NONE:
                return self.allows_anonymous(peer)
            case Proof.CERTIFICATE:
                return True
            case Proof.PASSWORD:
                user = state.users.get(identity.username or "")
                return user is not None and user.password_hash == identity.password_hash
            case Proof.TOKEN:
                token = identity.token
                return (
                    token is not None
                    and state.tokens.get(token.digest) == token
                    and not token.is_expired(self._wall_us())
                )

    def roles(self, identity: Identity, peer: Any) -> frozenset[Role]:
        """What the caller may administer. Without users that is everything for callers on this machine, and
        to look for all others who may come in."""
        state = self._state
        if state is None:
            return frozenset()
        if not state.users:
            return frozenset((Role.ADMIN if is_loopback(peer) else Role.OBSERVER,))
        user = None if identity.username is None else state.users.get(identity.username)
        if user is None:
            return frozenset()
        roles = frozenset(user.roles)
        limited = None if identity.token is None else identity.token.roles
        if limited is None:
            return roles
        return frozenset(role for role in limited if any(own.includes(role) for own in roles))

    def allows_anonymous(self, peer: Any) -> bool:
        """Where there are users, only a rule for anonymous clients lets one in from this machine."""
        if self._state is None:
            return False
        if self._anonymous == "loopback":
            return is_loopback(peer) and (not self._state.users or self._allows_anonymous)
        return self._anonymous == "always"


def _let_in(connection: Connection, identity: Identity, done: Decide) -> None:
    connection.username = identity.username
    connection.identity = identity
    done(True)


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
