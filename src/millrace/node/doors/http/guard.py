"""Before every route: how much may be sent, from which web page, and who is calling.

A browser sends requests for any page a person looks at, and the node may trust this machine without a
password. So a request that changes something is refused when it comes from a page of another origin: by
`Origin`, which browsers set themselves, and for the one GET that changes something by `Sec-Fetch-Site`.
Programs send neither.

People and programs name themselves by HTTP basic authentication with a user of the cluster and a password or
a token, or by a token alone (`Authorization: Bearer`); without a name the rule for anonymous clients is the
one of MQTT. Whoever sends a body is asked before it is read. `Caller.must_be` guards what needs a role. Where
there are no users, anybody on this machine has every role.
"""

import base64
import binascii
import ipaddress
import logging
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.broker.access import Principal, Role
from millrace.limits import MIB
from millrace.node.access.authentication import TooManyLogins
from millrace.node.access.identity import Identity, Proof
from millrace.node.doors.http.context import ServedNode
from millrace.node.doors.http.problems import Problem, response

log = logging.getLogger("millrace.http")

BODY_BYTES_MAX = 16 * MIB
CHANGING_GETS = frozenset(("/message",))
_READING = frozenset(("GET", "HEAD", "OPTIONS"))
_NOT_SAID = ("", "application/x-www-form-urlencoded")
_CLIENT_ID = "http"
_CALLER = "millrace.caller"

API_POLICY = "default-src 'none'; frame-ancestors 'none'"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Guard:
    """ASGI middleware: bounds, origins and the headers that every answer has."""

    def __init__(self, app: ASGIApp, *, origins: frozenset[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("content-type", "").split(";")[0] in _NOT_SAID:
            # Every body here is JSON, also where a simple tool says nothing or what it says of any body.
            others = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
            scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}

        is_answered = False

        async def send_guarded(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                present = {name.lower() for name, _ in message["headers"]}
                extra = list(_HEADERS)
                if b"content-security-policy" not in present:
                    extra.append((b"content-security-policy", API_POLICY.encode()))
                if b"cache-control" not in present:
                    extra.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        try:
            if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
                # A route reads and parses the body before it asks for anything else.
                scope[_CALLER] = await identify(Request(scope))
            await self._app(scope, _bounded(receive), send_guarded)
        except Problem as problem:
            if not is_answered:
                said = None if problem.headers is None else dict(problem.headers)
                await response(problem.status_code, problem.detail, said)(scope, receive, send_guarded)
        except Exception:
            # Our fault: the caller gets a problem like any other, and the log tells us.
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not is_answered:
                await response(500, "the node failed at this; its log says more")(
                    scope, receive, send_guarded
                )

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> ASGIApp | None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > BODY_BYTES_MAX:
            return response(413, f"a body of more than {BODY_BYTES_MAX} bytes")
        method, path = scope["method"], scope["path"]
        if method in _READING and path not in CHANGING_GETS:
            return None
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin, headers.get("host", "")):
            return response(403, f"a page of {origin} may not change anything here")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return response(403, "a page of another site may not change anything here")
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """The page came from this very address. A name that merely points here today does not count: whoever
        owns the name could point it here (DNS rebinding)."""
        if origin in self._origins or "*" in self._origins:
            return True
        parts = urlsplit(origin)
        if parts.netloc.lower() != host.lower() or parts.hostname is None:
            return False
        if parts.hostname == "localhost" or parts.hostname.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(parts.hostname)
        except ValueError:
            return False
        return True


def _bounded(receive: Receive) -> Receive:
    """A body without a length, or with a false one, is cut off."""
    taken = 0

    async def receive_bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > BODY_BYTES_MAX:
            raise Problem(413, f"a body of more than {BODY_BYTES_MAX} bytes")
        return message

    return receive_bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request, and what the access rules say about it."""

    username: str | None
    principal: Principal
    roles: frozenset[Role]
    proof: Proof = Proof.NONE

    def must_publish(self, topic: str) -> None:
        if not self.principal.may_publish(topic):
            raise Problem(403, f"you may not publish to {topic!r}")

    def must_subscribe(self, *filters: str) -> None:
        for filter in filters:
            if not self.principal.may_subscribe(filter):
                raise Problem(403, f"you may not subscribe to {filter!r}")

    def is_a(self, role: Role) -> bool:
        return any(own.includes(role) for own in self.roles)

    @property
    def is_admin(self) -> bool:
        return self.is_a(Role.ADMIN)

    def must_be(self, role: Role) -> None:
        if not self.is_a(role):
            who = self.username or "NAME"
            raise Problem(
                403,
                f"this is for users with the role {role.value}"
                f" (an administrator gives it with: millrace user role {who} {role.value})",
            )

    def must_be_admin(self) -> None:
        self.must_be(Role.ADMIN)

    def may_see(self, *filters: str) -> bool:
        """Whether something that concerns these topics may be shown."""
        return self.is_a(Role.OBSERVER) or all(self.principal.may_subscribe(filter) for filter in filters)

    def must_see(self, *filters: str) -> None:
        if not self.may_see(*filters):
            self.must_be(Role.OBSERVER)


async def identify(request: Request) -> Caller:
    known: Caller | None = request.scope.get(_CALLER)
    if known is not None:
        return known
    server: ServedNode = request.app.state.server
    peer: Any = None if request.client is None else (request.client.host, request.client.port)
    identity = await _identity(server, peer, request.headers.get("authorization"))
    return Caller(
        username=identity.username,
        principal=server.broker.rules.principal(identity.username, _CLIENT_ID, identity.scope),
        roles=server.authentication.roles(identity, peer),
        proof=identity.proof,
    )


async def _identity(server: ServedNode, peer: Any, header: str | None) -> Identity:
    scheme, _, text = (header or "").partition(" ")
    if scheme.lower() == "bearer":
        found = server.authentication.verify_token(text.strip().encode())
        detail = "the token is not valid, or not any more"
    else:
        name, password = _credentials(header)
        try:
            found = await server.authentication.verify(peer, name, password)
        except TooManyLogins as error:
            raise Problem(503, str(error), headers={"Retry-After": "1"}) from None
        detail = "the user name or password is wrong" if name is not None else "a user name is needed"
    if found is None:
        raise Problem(401, detail, headers={"WWW-Authenticate": 'Basic realm="millrace", charset="UTF-8"'})
    return found


def _credentials(header: str | None) -> tuple[str | None, bytes]:
    if header is None:
        return None, b""
    scheme, _, text = header.partition(" ")
    try:
        if scheme.lower() != "basic":
            raise ValueError(scheme)
        name, colon, password = base64.b64decode(text.strip(), validate=True).partition(b":")
        if not colon or not name:
            raise ValueError("no colon")
        return name.decode(), password
    except (ValueError, binascii.Error):
        raise Problem(400, "the Authorization header is not of the scheme Basic or Bearer") from None


async def observe(request: Request) -> Caller:
    """As `identify`, for routes that show what the node and the cluster do."""
    caller = await identify(request)
    caller.must_be(Role.OBSERVER)
    return caller


async def take_part(request: Request) -> Caller:
    """As `identify`, for routes that whoever reads or writes needs: which streams there are."""
    caller = await identify(request)
    if not caller.principal.has_rights:
        caller.must_be(Role.OBSERVER)
    return caller


CallerIs = Annotated[Caller, Depends(identify)]
