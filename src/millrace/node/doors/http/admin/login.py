"""Logging in from a page: a cookie that stands for a user, for requests of pages of this very node."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from millrace.node.access.caller import Caller
from millrace.node.admin.logins import LIFE_S
from millrace.node.admin.shapes import LoggedIn, Me
from millrace.node.doors.http.admin import examples, paging
from millrace.node.doors.http.admin.paging import admin_of
from millrace.node.doors.http.answers.base import example, model_of
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.guard import CLIENT_ID, COOKIE, NO_LOGIN_NEEDED, identify, verify
from millrace.node.doors.http.problems import Problem
from millrace.node.json_form import Form

router = APIRouter(prefix="/v1", tags=["administration"])


class LoginForm(Form):
    user: Annotated[str, Field(min_length=1, max_length=1_024, description="Name of a user.")]
    password: Annotated[str, Field(max_length=65_535, description="The user's password.")]


@router.post(
    "/login",
    summary="Log in from a page",
    response_model=model_of(LoggedIn),
    responses=example(examples.LOGGED_IN),
    openapi_extra=NO_LOGIN_NEEDED,
)
async def login(request: Request, form: LoginForm) -> Response:
    """Sets a cookie for twelve hours, which counts for requests of pages of this node only. It is known to
    this node alone, and void once the user is removed or has another password, or the token that was given
    in place of a password is revoked."""
    server = server_of(request)
    peer = None if request.client is None else (request.client.host, request.client.port)
    if not server.authentication.has_users:
        raise Problem(409, "there are no users; add one with: millrace user add NAME --role admin")
    identity = await verify(server, peer, form.user, form.password.encode())
    if identity is None or identity.username is None:
        raise Problem(401, "the user name or password is wrong")
    token = admin_of(request).logins.begin(identity, asyncio.get_running_loop().time())
    caller = Caller.of(server, identity, peer, CLIENT_ID)
    answer = paging.answer(LoggedIn(user=identity.username, roles=caller.role_names))
    answer.set_cookie(
        COOKIE,
        token,
        max_age=LIFE_S,
        path="/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return answer


@router.post("/logout", status_code=204, summary="Log out", openapi_extra=NO_LOGIN_NEEDED)
async def logout(request: Request) -> Response:
    """Ends the login of this cookie. Harmless without one."""
    admin_of(request).logins.end(request.cookies.get(COOKIE, ""))
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


@router.get(
    "/me",
    summary="Who is calling",
    response_model=model_of(Me),
    responses=example(examples.ME),
    openapi_extra=NO_LOGIN_NEEDED,
)
async def me(request: Request) -> Response:
    """Answers also without a login, and says whether one is needed."""
    try:
        caller = await identify(request)
    except Problem as problem:
        if problem.status_code != 401:
            raise
        return paging.answer(Me(user=None, is_admin=False, roles=(), login_needed=True))
    return paging.answer(
        Me(user=caller.username, is_admin=caller.is_admin, roles=caller.role_names, login_needed=False)
    )
