"""The cluster: its nodes as this one sees them, and taking one out."""

from typing import Any

from fastapi import APIRouter, Depends, Request

from millrace.broker.access import Role
from millrace.errors import LocalError
from millrace.node.doors.http.answers import node as answers
from millrace.node.doors.http.answers.base import AnswerRoute, example
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.guard import CallerIs, observe
from millrace.node.doors.http.problems import Problem
from millrace.node.json_form import Form

router = APIRouter(
    prefix="/v1/cluster", tags=["cluster"], dependencies=[Depends(observe)], route_class=AnswerRoute
)


class DrainForm(Form):
    draining: bool = True


@router.get(
    "",
    summary="The cluster and the groups of this node",
    response_model=answers.ClusterShown,
    responses=example({**answers.CLUSTER, "groups": [answers.GROUP]}),
)
async def show(request: Request) -> dict[str, Any]:
    """Members, their state, and every replication group of this node."""
    streams = server_of(request).engine
    return {**streams.cluster.status(), "groups": streams.cluster.groups()}


@router.post(
    "/nodes/{name}/drain",
    summary="Drain a node, or let it take part again",
    response_model=answers.ClusterStatus,
    responses=example(answers.CLUSTER),
)
async def drain(name: str, form: DrainForm, request: Request, caller: CallerIs) -> dict[str, Any]:
    """Move everything off a node, or let it take part again."""
    caller.must_be(Role.OPERATOR)
    cluster = server_of(request).engine.cluster
    try:
        await cluster.drain(name, form.draining)
    except LocalError as error:
        raise Problem(409, str(error)) from None
    return cluster.status()


@router.delete(
    "/nodes/{name}",
    summary="Remove a node",
    response_model=answers.ClusterStatus,
    responses=example(answers.CLUSTER),
)
async def remove(name: str, request: Request, caller: CallerIs) -> dict[str, Any]:
    """Take a node out of the cluster, whether it is up or gone."""
    caller.must_be(Role.ADMIN)
    cluster = server_of(request).engine.cluster
    try:
        await cluster.remove(name)
    except LocalError as error:
        raise Problem(409, str(error)) from None
    return cluster.status()
