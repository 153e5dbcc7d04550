"""Clients and sessions: who is there, who is away, and ending either."""

from fastapi import APIRouter, Depends, Request, Response
from starlette.convertors import PathConvertor, register_url_convertor

from millrace.broker.access import Role
from millrace.errors import LocalError
from millrace.node.access.caller import Caller
from millrace.node.admin.shapes import Client, ClientDetail, Session, SessionDetail
from millrace.node.doors.http.admin import examples, paging
from millrace.node.doors.http.admin.paging import Cursor, Limit, NodeName, Search, admin_of
from millrace.node.doors.http.answers.base import Page, example, model_of
from millrace.node.doors.http.guard import CallerIs, observe
from millrace.node.json_form import Form


class _ClientId(PathConvertor):
    """Client ids are any text, line breaks and slashes among it."""

    regex = "(?s:.*)"


register_url_convertor("client", _ClientId())

router = APIRouter(prefix="/v1", tags=["administration"], dependencies=[Depends(observe)])


class NothingForm(Form):
    """An empty object."""


def _name(caller: Caller) -> str:
    return "an administrator" if caller.username is None else repr(caller.username)


@router.get(
    "/clients",
    summary="Clients that are connected, at every node",
    response_model=Page[model_of(Client)],  # type: ignore[misc]
    responses=example(examples.page(examples.CLIENT)),
)
async def list_clients(
    request: Request, limit: Limit = 100, cursor: Cursor = None, search: Search = "", node: NodeName = None
) -> Response:
    """In the order of their ids. `search` looks in client id, user and address."""
    after = paging.place(cursor, str)
    page = await admin_of(request).clients(limit=limit, after=after, search=search, node=node)
    return paging.page(page.items, page.next, page.missing)


@router.get(
    "/clients/{client_id:client}",
    summary="One client, with its subscriptions",
    response_model=model_of(ClientDetail),
    responses=example(examples.CLIENT_DETAIL),
)
async def show_client(request: Request, client_id: str) -> Response:
    """404 where no client of this id is connected."""
    try:
        return paging.answer(await admin_of(request).client(client_id))
    except LocalError as error:
        raise paging.problem_of(error) from None


@router.post("/clients/{client_id:client}/disconnect", status_code=204, summary="Disconnect a client")
async def disconnect_client(
    request: Request, client_id: str, caller: CallerIs, form: NothingForm | None = None
) -> None:
    """Closes its connection (MQTT 5: reason 0x98, administrative action). Its session stays if it is durable,
    and nothing keeps the client from coming back."""
    caller.must_be(Role.OPERATOR)
    try:
        await admin_of(request).disconnect(client_id, _name(caller))
    except LocalError as error:
        raise paging.problem_of(error) from None


@router.get(
    "/sessions",
    summary="Durable sessions, present or away",
    response_model=Page[model_of(Session)],  # type: ignore[misc]
    responses=example(examples.page(examples.SESSION)),
)
async def list_sessions(
    request: Request, limit: Limit = 100, cursor: Cursor = None, search: Search = "", node: NodeName = None
) -> Response:
    """In the order of their client ids. `search` looks in client id and user, `node` names the owner."""
    after = paging.place(cursor, str)
    page = admin_of(request).sessions(limit=limit, after=after, search=search, node=node)
    return paging.page(page.items, page.next, page.missing)


@router.get(
    "/sessions/{client_id:client}",
    summary="One durable session, with its subscriptions and cursors",
    response_model=model_of(SessionDetail),
    responses=example(examples.SESSION_DETAIL),
)
async def show_session(request: Request, client_id: str) -> Response:
    """404 where there is none of this client id."""
    try:
        return paging.answer(admin_of(request).session(client_id))
    except LocalError as error:
        raise paging.problem_of(error) from None


@router.delete("/sessions/{client_id:client}", status_code=204, summary="End a durable session")
async def delete_session(request: Request, client_id: str, caller: CallerIs) -> None:
    """Ends it at every node, with its subscriptions and everything that waits for it; a client that is there
    is disconnected, and its will is published."""
    caller.must_be(Role.OPERATOR)
    try:
        await admin_of(request).delete_session(client_id, _name(caller))
    except LocalError as error:
        raise paging.problem_of(error) from None
