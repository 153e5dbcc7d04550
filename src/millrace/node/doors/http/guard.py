"""Before every route: how much may be sent, from which web page, and who is calling.

A browser sends requests for any page a person looks at, and the node may trust this machine without a
password. So a request that changes something is refused when it comes from a page of another origin: by
`Origin`, which browsers set themselves, and for the one GET that changes something by `Sec-Fetch-Site`.
Programs send neither.

People and programs name themselves by HTTP basic authentication with a user of the users file; without a name
the rule for anonymous clients is the one of MQTT. Whoever sends a body is asked before it is read. A page of
this node may log in instead (`admin/login.py`): its cookie counts only where the request is from such a page.
`Caller.must_be_admin` guards streams and groups: a user with the rule "allow all #", or, where there are no
users, anybody on this machine.
"""

import asyncio
import base64
import binascii
import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import Depends, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.broker.access import EVERYBODY, Action, Effect, Principal
from millrace.limits import HTTP_BODY_BYTES_MAX
from millrace.node.access.authentication import is_loopback
from millrace.node.doors.http.context import ServedNode
from millrace.node.doors.http.problems import Problem, response

log = logging.getLogger("millrace.http")

_LOGIN_BYTES_MAX = 256 * 1024
CHANGING_GETS = frozenset(("/message",))
# Before the node serves, and to whoever asks.
EARLY = frozenset(("/livez", "/readyz"))
# Asked before anybody is known.
_OPEN = frozenset(("/v1/login", "/v1/logout"))
COOKIE = "millrace_login"
NO_LOGIN_NEEDED: dict[str, Any] = {"security": [{}]}
_PAGE = "millrace-dashboard"
"""The header X-Requested-With of the dashboard, which asks for a login by itself."""
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

        refusal = _not_yet(scope) or self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        try:
            bytes_max = HTTP_BODY_BYTES_MAX
            if scope["path"] in _OPEN:
                bytes_max = _LOGIN_BYTES_MAX
            elif "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
                # A route reads and parses the body before it asks for anything else.
                scope[_CALLER] = await identify(Request(scope))
            await self._app(scope, _bounded(receive, bytes_max), send_guarded)
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
        if length.isdigit() and int(length) > HTTP_BODY_BYTES_MAX:
            return response(413, f"a body of more than {HTTP_BODY_BYTES_MAX} bytes")
        method, path = scope["method"], scope["path"]
        if method in _READING and path not in CHANGING_GETS:
            return None
        origin = headers.get("origin")
        if origin is not None and not _is_own(origin, headers.get("host", ""), self._origins):
            return response(403, f"a page of {origin} may not change anything here")
        if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            return response(403, "a page of another site may not change anything here")
        return None


def _not_yet(scope: Scope) -> ASGIApp | None:
    """Until the node serves, every answer says what it waits for."""
    readiness = scope["app"].state.server.admin.readiness
    if readiness.is_started or scope["path"] in EARLY:
        return None
    return response(503, readiness.waits_for, {"Retry-After": "1"})


_OWN_SITE = ("none", "same-origin")


def _is_own(origin: str, host: str, origins: frozenset[str]) -> bool:
    """The page came from this very address. A name that merely points here today does not count: whoever
    owns the name could point it here (DNS rebinding)."""
    if origin in origins or "*" in origins:
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


def _is_own_page(headers: Mapping[str, str]) -> bool:
    """Whether a cookie may count: the request is of a page of this node, or of no page at all. By whatever
    name the node is called: a cookie belongs to the name it was set under."""
    origin = headers.get("origin")
    is_own = origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    return is_own and headers.get("sec-fetch-site", "none") in _OWN_SITE


def _bounded(receive: Receive, bytes_max: int) -> Receive:
    """A body without a length, or with a false one, is cut off."""
    taken = 0

    async def receive_bounded() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > bytes_max:
            raise Problem(413, f"a body of more than {bytes_max} bytes")
        return message

    return receive_bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request, and what the access rules say about it."""

    username: str | None
    principal: Principal
    is_admin: bool

    @staticmethod
    def of(server: ServedNode, username: str | None, peer: Any) -> "Caller":
        """What a user may do whose name is proved, or anybody without one."""
        rules = server.broker.rules
        if server.authentication.has_users:
            is_admin = username is not None and any(
                rule.user in (username, EVERYBODY)
                and rule.effect is Effect.ALLOW
                and rule.action is Action.ALL
                and rule.filter == "#"
                for rule in rules.rules
            )
        else:
            is_admin = is_loopback(peer)
        return Caller(username=username, principal=rules.principal(username, _CLIENT_ID), is_admin=is_admin)

    def must_publish(self, topic: str) -> None:
        if not self.principal.may_publish(topic):
            raise Problem(403, f"you may not publish to {topic!r}")

    def must_subscribe(self, *filters: str) -> None:
        for filter in filters:
            if not self.principal.may_subscribe(filter):
                raise Problem(403, f"you may not subscribe to {filter!r}")

    def must_be_admin(self) -> None:
        if not self.is_admin:
            raise Problem(
                403,
                "streams and groups are changed by a user with the rule: allow all '#'"
                " (give it with: millrace acl add USER allow all '#')",
            )


async def identify(request: Request) -> Caller:
    known: Caller | None = request.scope.get(_CALLER)
    if known is not None:
        return known
    server: ServedNode = request.app.state.server
    peer: Any = None if request.client is None else (request.client.host, request.client.port)
    header = request.headers.get("authorization")
    user = _logged_in(request, server) if header is None else None
    if user is not None:
        return Caller.of(server, user, peer)
    name, password = _credentials(header)
    allowed, username = await server.authentication.verify(peer, name, password)
    if not allowed:
        detail = "the user name or password is wrong" if name is not None else "a user name is needed"
        # A browser opens its own dialog on a challenge; the dashboard has a page for that.
        is_page = request.headers.get("x-requested-with") == _PAGE
        challenge = {"WWW-Authenticate": 'Basic realm="millrace", charset="UTF-8"'}
        raise Problem(401, detail, headers=None if is_page else challenge)
    return Caller.of(server, username, peer)


def _logged_in(request: Request, server: ServedNode) -> str | None:
    """The user of a login cookie that counts."""
    token = request.cookies.get(COOKIE)
    if token is None or not _is_own_page(request.headers):
        return None
    login = server.admin.logins.find(token, asyncio.get_running_loop().time())
    if login is None or server.authentication.proof_of(login.user) != login.proof:
        return None
    return login.user


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
        raise Problem(400, "the Authorization header is not of the scheme Basic") from None


CallerIs = Annotated[Caller, Depends(identify)]
