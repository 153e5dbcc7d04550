"""Before every route: how much may be sent, from which web page, and who is calling.

A browser sends requests for any page a person looks at, and the node may trust this machine without a
password. So a request that changes something is refused when it comes from a page of another origin: by
`Origin`, which browsers set themselves, and by `Sec-Fetch-Site`. Programs send neither. The one GET that
changes something needs a body or a header that no link in a page can have. And whatever is asked, it is asked
by a name that others cannot point here (`hosts.py`).

People and programs name themselves by HTTP basic authentication with a user of the cluster and a password or
a token, or by a token alone (`Authorization: Bearer`); without a name the rule for anonymous clients is the
one of MQTT. Whoever sends a body is asked before it is read. A page of this node may log in instead
(`admin/login.py`): its cookie counts only where the request is from such a page, and only as long as the
login behind it would succeed. `Caller.must_be` guards what needs a role. Where there are no users, anybody on
this machine has every role.
"""

import asyncio
import base64
import binascii
import ipaddress
import logging
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.broker.access import Role
from millrace.limits import HTTP_BODY_BYTES_MAX
from millrace.node.access.authentication import TooManyLogins, UnknownName
from millrace.node.access.caller import Caller
from millrace.node.access.identity import Identity
from millrace.node.doors.hosts import Hosts, refusal
from millrace.node.doors.http import json_bodies
from millrace.node.doors.http.context import CERTIFICATE, ServedNode
from millrace.node.doors.http.problems import Problem, response
from millrace.node.doors.http_front import documents
from millrace.node.seldom import Seldom

log = logging.getLogger("millrace.http")
log.addFilter(Seldom())

_LOGIN_BYTES_MAX = 256 * 1024
CHANGING_GETS = frozenset(("/message",))
# Before the node serves, and to whoever asks.
EARLY = frozenset(("/livez", "/readyz"))
# What a node that was removed from the cluster still tells: about itself.
_ABOUT_ITSELF = EARLY | {"/status", "/metrics", "/v1/cluster", "/v1/login", "/v1/logout"}
# Asked before anybody is known.
_OPEN = frozenset(("/v1/login", "/v1/logout"))
COOKIE = "millrace_login"
NO_LOGIN_NEEDED: dict[str, Any] = {"security": [{}]}
_PAGE = "millrace-dashboard"
"""The header X-Requested-With of the dashboard, which asks for a login by itself."""
_READING = frozenset(("GET", "HEAD", "OPTIONS"))
_NOT_SAID = ("", "application/x-www-form-urlencoded")
CLIENT_ID = "http"
"""Of whoever calls by HTTP, in the rules of access."""
_CALLER = "millrace.caller"

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Guard:
    """ASGI middleware: bounds, origins and the headers that every answer has."""

    def __init__(self, app: ASGIApp, *, origins: frozenset[str], hosts: Hosts) -> None:
        self._app = app
        self._origins = origins
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        content_type = headers.get("content-type", "").split(";")[0].strip().lower()
        if content_type in _NOT_SAID:
            # Every body here is JSON, also where a simple tool says nothing or what it says of any body.
            others = [pair for pair in scope["headers"] if pair[0] != b"content-type"]
            scope = {**scope, "headers": [*others, (b"content-type", b"application/json")]}

        is_answered = False

        async def send_guarded(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                present = {name.lower() for name, _ in message["headers"]}
                extra = list(documents.SAFE_HEADERS)
                if b"content-security-policy" not in present:
                    extra.append((b"content-security-policy", documents.API_POLICY.encode()))
                if b"cache-control" not in present:
                    extra.append((b"cache-control", documents.NO_STORE.encode()))
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        refusal = _not_yet(scope) or self._refusal(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        try:
            has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
            bytes_max = HTTP_BODY_BYTES_MAX
            if scope["path"] in _OPEN:
                bytes_max = _LOGIN_BYTES_MAX
            elif has_body:
                # A route reads and parses the body before it asks for anything else.
                scope[_CALLER] = await identify(Request(scope))
            bounded = _bounded(receive, bytes_max)
            if has_body and content_type in (*_NOT_SAID, "application/json"):
                bounded = await json_bodies.checked(bounded, scope["path"])
            await self._app(scope, bounded, send_guarded)
        except Problem as problem:
            if not is_answered:
                said = None if problem.headers is None else dict(problem.headers)
                await response(problem.status_code, problem.detail, said)(scope, receive, send_guarded)
        except RecursionError:
            # Whoever reads JSON here goes one call deeper for each bracket.
            if not is_answered:
                await response(400, "the body is nested too deeply")(scope, receive, send_guarded)
        except ClientDisconnect:
            # In the middle of what it sent, or of what it asked for: nobody is there to be told.
            log.info("%s %s: the client went away", scope["method"], scope["path"])
        except Exception:
            # Our fault: the caller gets a problem like any other, and the log tells us.
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not is_answered:
                await response(500, "the node failed at this; its log says more")(
                    scope, receive, send_guarded
                )

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> ASGIApp | None:
        if (twice := _said_twice(scope)) is not None:
            # Nothing behind it is a request: of two lengths a proxy may have believed the other one.
            return response(400, f"{twice}: the headers contradict each other", {"Connection": "close"})
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > HTTP_BODY_BYTES_MAX:
            return response(413, f"a body of more than {HTTP_BODY_BYTES_MAX} bytes")
        method, path = scope["method"], scope["path"]
        host = headers.get("host")
        if host is not None and scope["scheme"] != "https" and path not in EARLY:
            if not self._hosts.allow(host):
                return response(421, refusal(host))
        if method in _READING and path not in CHANGING_GETS:
            return None
        if method == "GET" and not _is_program(headers):
            allowed = {"Allow": "POST, PUT"}
            return response(405, f"a GET that takes is for programs: send POST {path}, or {_TAKES}", allowed)
        origin = headers.get("origin")
        if origin is not None and not _is_own(origin, headers.get("host", ""), self._origins):
            return response(403, f"a page of {origin} may not change anything here")
        if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            return response(403, "a page of another site may not change anything here")
        return None


def _not_yet(scope: Scope) -> ASGIApp | None:
    """Until the node serves, and after it was removed, every answer says why it does not."""
    readiness = scope["app"].state.server.admin.readiness
    path = scope["path"]
    if path in (_ABOUT_ITSELF if readiness.is_removed else EARLY) or readiness.is_serving:
        return None
    return response(503, readiness.waits_for, documents.RETRY_AFTER)


_LENGTHS = (b"content-length", b"transfer-encoding")
_ONCE = frozenset((*_LENGTHS, b"authorization", b"content-type", b"host", b"origin", b"sec-fetch-site"))


def _said_twice(scope: Scope) -> str | None:
    """A header of which there are two, where two could mean two things."""
    names = [name for name, _ in scope["headers"] if name in _ONCE]
    if len(names) == len(set(names)) and not all(length in names for length in _LENGTHS):
        return None
    return next((name.decode() for name in names if names.count(name) > 1), "content-length")


_OWN_SITE = ("none", "same-origin")
_TAKES = "a body, or a header Millrace-Request-Id or X-Requested-With"


def _is_program(headers: Mapping[str, str]) -> bool:
    """Whether a GET has what no link, image or form in a page can give it."""
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    return has_body or "x-requested-with" in headers or any(name.startswith("millrace-") for name in headers)


def _parts(origin: str) -> SplitResult | None:
    """None for what is no address at all."""
    try:
        return urlsplit(origin)
    except ValueError:
        return None


def _is_own(origin: str, host: str, origins: frozenset[str]) -> bool:
    """The page came from this very address. A name that merely points here today does not count: whoever
    owns the name could point it here (DNS rebinding)."""
    if origin in origins or "*" in origins:
        return True
    parts = _parts(origin)
    if parts is None or parts.netloc.lower() != host.lower() or parts.hostname is None:
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
    parts = None if origin is None else _parts(origin)
    is_own = origin is None or (parts is not None and parts.netloc.lower() == headers.get("host", "").lower())
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


async def identify(request: Request) -> Caller:
    known: Caller | None = request.scope.get(_CALLER)
    if known is not None:
        return known
    server: ServedNode = request.app.state.server
    peer: Any = None if request.client is None else (request.client.host, request.client.port)
    header = request.headers.get("authorization")
    identity = _logged_in(request, server, peer) or _certified(request, server) if header is None else None
    if identity is None:
        identity = await _identity(request, server, peer, header)
    return Caller.of(server, identity, peer, CLIENT_ID)


def _logged_in(request: Request, server: ServedNode, peer: Any) -> Identity | None:
    """Who a login cookie that counts stands for."""
    secret = request.cookies.get(COOKIE)
    if secret is None or not _is_own_page(request.headers):
        return None
    identity = server.admin.logins.find(secret, asyncio.get_running_loop().time())
    if identity is None or not server.authentication.is_current(identity, peer):
        return None
    return identity


def _certified(request: Request, server: ServedNode) -> Identity | None:
    """Whom the certificate of the caller names, where there is one."""
    try:
        return server.authentication.certified(getattr(request.state, CERTIFICATE, None))
    except UnknownName as error:
        raise Problem(401, str(error)) from None


async def verify(server: ServedNode, peer: Any, name: str | None, password: bytes) -> Identity | None:
    """Who this is, None for one that may not come in. 503 where too many wait for the same check."""
    try:
        return await server.authentication.verify(peer, name, password)
    except TooManyLogins as error:
        raise Problem(503, str(error), headers={"Retry-After": "1"}) from None


async def _identity(request: Request, server: ServedNode, peer: Any, header: str | None) -> Identity:
    scheme, _, text = (header or "").partition(" ")
    if scheme.lower() == "bearer":
        found = server.authentication.verify_bearer(peer, text.strip().encode())
        detail = "the token is not valid, or not any more"
    else:
        name, password = _credentials(header)
        found = await verify(server, peer, name, password)
        detail = "the user name or password is wrong" if name is not None else "a user name is needed"
    if found is None:
        # A browser opens its own dialog on a challenge; the dashboard has a page for that.
        is_page = request.headers.get("x-requested-with") == _PAGE
        challenge = {"WWW-Authenticate": 'Basic realm="millrace", charset="UTF-8"'}
        raise Problem(401, detail, headers=None if is_page else challenge)
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
