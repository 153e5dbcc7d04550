"""Who a client is: anonymous, a verified certificate, a name with a password, or a token.

Users, rules and tokens are state of the meta group; `reload` brings what this node has applied of it into
force, and before the first `reload` nobody is let in [rule 31]. Password hashing runs in worker threads
behind the queue of `logins`; everything that can be decided without it is decided at once. Successes are
remembered for a short time, so a reconnecting fleet is quick.
"""

import asyncio
import ipaddress
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, TypeVar

from millrace.broker.access import AccessRules, Role
from millrace.broker.meta.access import AccessState, ScramKeys
from millrace.errors import LocalError
from millrace.limits import STRING_BYTES_TOP
from millrace.node.access import passwords, scram
from millrace.node.access.hook import Hook, HookBusy
from millrace.node.access.identity import NOBODY, Identity, Proof
from millrace.node.access.jwt import BadToken, Tokens, is_jwt
from millrace.node.access.logins import Login, Logins, Outcome
from millrace.node.access.scram import ScramExchange
from millrace.node.access.tokens import digest_of, is_token
from millrace.node.admin.events import EventLog, NoEvents
from millrace.node.admin.people import address_of
from millrace.node.doors.mqtt_door import Connection, Decide
from millrace.node.tls import ClientName, end_us, names_in
from millrace.wire.mqtt.packets import Connect

_WORKERS = 2
_NICE = 15
_INVENTED_ITERATIONS = 16_384
# A fleet comes from few addresses, again and again.
_ADDRESSES_KEPT = 1024
Done = TypeVar("Done")
ANY_USER = "token"
"""A user name that goes with every token: for clients that must send one."""


class TooManyLogins(LocalError):
    """So many passwords wait to be checked that this one was not."""


class UnknownName(LocalError):
    """A client certificate names nobody who is a user."""


class PasswordThreads:
    """The workers of a node: threads, and the time of its event loop."""

    count = _WORKERS

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_WORKERS, thread_name_prefix="password", initializer=_give_way)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def start(self, check: Callable[[], bool], then: Callable[[bool], None]) -> None:
        def checked(work: "asyncio.Future[bool]") -> None:
            if not work.cancelled():
                then(work.exception() is None and work.result())

        asyncio.get_running_loop().run_in_executor(self._pool, check).add_done_callback(checked)

    def call_at(self, when_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(when_s, call)

    async def run(self, work: Callable[[], Done]) -> Done:
        """Other slow work of the same kind: a fresh hash."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _give_way() -> None:
    """This thread works when the event loop does not want to: whoever guesses passwords must not slow down
    those who are in. Where threads have no priority of their own nothing changes."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


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
        self,
        anonymous: Literal["loopback", "always", "never"],
        *,
        wall_us: Callable[[], int],
        client_name: ClientName = "cn",
        jwt: Callable[[], Tokens] | None = None,
        hook: Hook | None = None,
        scram_iterations: int = 0,
    ) -> None:
        """`client_name`: the field of a client certificate that names its user. `jwt`: what checks JSON web
        tokens. `scram_iterations`: the cost of keys for SCRAM, 0 for none."""
        self._client_name = client_name
        self._jwt = jwt
        self._hook = hook
        self._scram_iterations = scram_iterations
        self._invented = os.urandom(32)
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
    def methods(self) -> dict[str, Callable[[Any], ScramExchange]]:
        """The authentication methods of MQTT 5 that there are."""
        return {scram.METHOD: lambda peer: ScramExchange(self._scram_keys, partial(self._scram_proved, peer))}

    @property
    def has_users(self) -> bool:
        return self._state is None or bool(self._state.users)

    async def hash(self, password: bytes) -> tuple[str, ScramKeys | None]:
        """A fresh hash, and keys for SCRAM, made in a worker thread."""

        def make() -> tuple[str, ScramKeys | None]:
            found = passwords.hash_password(password)
            count = self._scram_iterations
            return found, scram.make_keys(password, count) if count else None

        return await self._threads.run(make)

    # ------------------------------------------------------------------------------------- logins

    def __call__(self, connection: Connection, packet: Connect, done: Decide) -> None:
        """Decide about a CONNECT and call `done`, at once where nothing has to be hashed or asked."""
        if self._hook is None:
            self._decide(connection, packet, done)
        else:
            asking = self._ask_hook(self._hook, connection, packet, done)
            connection.login = asyncio.get_running_loop().create_task(asking)

    async def _ask_hook(self, hook: Hook, connection: Connection, packet: Connect, done: Decide) -> None:
        try:
            said = await hook.ask(
                user=packet.username,
                password=packet.password or b"",
                client_id=packet.client_id,
                address=address_of(connection.peer),
                door=connection.listener,
            )
        except HookBusy:
            connection.login = None
            done(False, is_busy=True)
            return
        connection.login = None
        if said is None:
            self._decide(connection, packet, done)
            return
        identity = self._hooked(said, packet.username, connection.peer)
        if identity is None:
            done(False)
        else:
            _let_in(connection, identity, done)

    def _hooked(self, said: Identity | bool, name: str | None, peer: Any) -> Identity | None:
        """What follows from the word of the hook."""
        state = self._state
        if state is None or not isinstance(said, Identity):
            self._tell_seldom(f"the authentication hook refused user {name!r}", peer, user=name)
            return None
        return replace(said, needs_user=said.username in state.users)

    def _decide(self, connection: Connection, packet: Connect, done: Decide) -> None:
        name = packet.username
        if name is None and packet.password is not None and self._is_bearer(packet.password):
            # MQTT 5 allows a password without a user name (3.1.2.9).
            name = ANY_USER
        if name is None:
            try:
                certified = self.certified(connection.transport.get_extra_info("peercert"))
            except UnknownName as error:
                self._tell_seldom(str(error), connection.peer)
                done(False, why=str(error))
                return
            if certified is not None:
                _let_in(connection, certified, done)
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
        if self._hook is not None and name is not None:
            address = address_of(peer)
            try:
                said = await self._hook.ask(
                    user=name, password=password, client_id="", address=address, door="http"
                )
            except HookBusy as error:
                raise TooManyLogins(str(error)) from None
            if said is not None:
                return self._hooked(said, name, peer)
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

    def certified(self, certificate: dict[str, Any] | None) -> Identity | None:
        """Whom a client certificate that TLS has verified names; None where there is none. UnknownName for
        a certificate that names nobody whom the cluster knows. Without users, a name is taken as it is."""
        state = self._state
        if not certificate or state is None:
            return None
        names = names_in(certificate, self._client_name)
        if state.users:
            found = next((name for name in names if name in state.users), None)
            if found is None:
                shown = ", ".join(map(repr, names)) or f"it has no name in its field {self._client_name}"
                raise UnknownName(f"the certificate names no user: {shown}")
        elif not names:
            return None
        else:
            found = names[0]
        return Identity(username=found, proof=Proof.CERTIFICATE, expires_us=end_us(certificate))

    def verify_bearer(self, peer: Any, secret: bytes) -> Identity | None:
        """Whose token this is, one of the cluster or a JSON web token."""
        if self._jwt is None or not is_jwt(secret):
            return self.verify_token(secret)
        if self._state is None:
            return None
        try:
            identity = self._jwt().identity(secret, self._wall_us())
            if identity.needs_user and identity.username not in self._state.users:
                raise BadToken(f"there is no user {identity.username!r}")
        except BadToken as error:
            self._tell_seldom(f"a JSON web token proves nothing: {error}", peer)
            return None
        return identity

    def _is_bearer(self, secret: bytes) -> bool:
        """Whether this is a token of some kind, and never tried as a password."""
        return is_token(secret) or (self._jwt is not None and is_jwt(secret))

    def _scram_keys(self, user: str) -> ScramKeys:
        found = None if self._state is None else self._state.users.get(user)
        if found is not None and found.scram is not None:
            return found.scram
        return scram.invented_keys(self._invented, user, self._scram_iterations or _INVENTED_ITERATIONS)

    def _scram_proved(self, peer: Any, user: str, is_right: bool) -> Identity | None:
        """The outcome of an exchange: who the client is, None where it is nobody, or has to wait a while."""
        if not self._logins.may_try(peer, user):
            self._tell_seldom(f"too many failures: not checked, user {user!r}", peer, user=user)
            return None
        self._logins.note(peer, user, is_right)
        found = None if self._state is None else self._state.users.get(user)
        if not is_right or found is None:
            self._tell_seldom(f"wrong proof of the password of user {user!r}", peer, user=user)
            return None
        return Identity(username=user, proof=Proof.PASSWORD, password_hash=found.password_hash)

    def verify_token(self, secret: bytes) -> Identity | None:
        """Whose token of the cluster this is."""
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
        if self._jwt is not None and is_jwt(password):
            identity = self.verify_bearer(peer, password)
            if identity is not None and name not in (identity.username, ANY_USER):
                self._tell_seldom(f"a JSON web token of another user than {name!r}", peer, user=name)
                return True, None
            return True, identity
        if not state.users:
            # No user is defined, so a name proves nothing: such a client is as good as an anonymous one.
            return True, NOBODY if self.allows_anonymous(peer) else None
        if is_token(password):
            identity = self.verify_token(password)
            if identity is None or name not in (identity.username, ANY_USER):
                self._tell_seldom(f"a token that is not valid for user {name!r}", peer, user=name)
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
                self._tell_seldom(f"too many logins wait: not checked, user {name!r}", peer, user=name)
            elif identity is None:
                self._tell(f"wrong password for user {name!r}", peer, user=name)
            checked(outcome, identity)

        return self._logins.ask(
            peer,
            name,
            is_known=bool(stored),
            check=lambda: passwords.matches(stored, password),
            done=done,
            recalls=lambda: self._right.remembers(name, stored, password, self._threads.now_s()),
        )

    def _tell(self, what: str, peer: Any, more: str = "", user: str | None = None) -> None:
        address = address_of(peer)
        self.events.record("access", "warning", f"{what} from {address}{more}", user=user, address=address)

    def _tell_seldom(self, what: str, peer: Any, user: str | None = None) -> None:
        more = self._refusals.told()
        if more is not None:
            self._tell(what, peer, more, user)

    # ------------------------------------------------------------------------------ what still holds

    def is_current(self, identity: Identity, peer: Any) -> bool:
        """Whether this login would succeed now: the user is there with the same password, the token is."""
        state = self._state
        if state is None or (identity.expires_us and self._wall_us() >= identity.expires_us):
            return False
        match identity.proof:
            case Proof.NONE:
                return self.allows_anonymous(peer)
            case Proof.CERTIFICATE:
                return not state.users or identity.username in state.users
            case Proof.JWT | Proof.HOOK:
                return not identity.needs_user or identity.username in state.users
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
        roles = frozenset((*(() if user is None else user.roles), *identity.granted_roles))
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
    return _is_own(str(peer[0])) if isinstance(peer, tuple) and peer else True


@lru_cache(maxsize=_ADDRESSES_KEPT)
def _is_own(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
