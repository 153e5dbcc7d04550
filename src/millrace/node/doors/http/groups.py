"""Durable groups: made, changed, reset and deleted; taken from and acknowledged."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from millrace.broker.access import Role
from millrace.broker.groups.definitions import DurableGroupSpec, NewDurableGroup, Start
from millrace.node.doors.http.answers import groups as answers
from millrace.node.doors.http.answers.base import AnswerRoute, example, long_answer
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.forms import (
    AckForm,
    ExtendForm,
    NackForm,
    RequestId,
    TakeForm,
    from_taken,
)
from millrace.node.doors.http.guard import CallerIs, identify
from millrace.node.doors.http.settings_forms import Given, asked, changed, made
from millrace.node.json_form import Form

router = APIRouter(
    prefix="/v1/groups", tags=["groups"], dependencies=[Depends(identify)], route_class=AnswerRoute
)


class ResetForm(Form):
    to: Literal["earliest", "latest"] | Annotated[int, Field(ge=0)]
    """Where to begin again, in every shard."""


class AdvanceForm(Form):
    positions: Annotated[dict[int, Annotated[int, Field(ge=0)]], Field(max_length=10_000)]
    """Shard -> the next offset to read."""


@router.get(
    "", summary="All groups", response_model=answers.GroupList, responses=example({"groups": [answers.GROUP]})
)
async def list_groups(request: Request, caller: CallerIs) -> dict[str, Any]:
    """The groups made by command, the queues among them: all of them for an observer, those whose topics they
    may receive for others. `lag` counts other topics of the same shards in
    until somebody has read that far; `GET /v1/groups/NAME` counts exactly."""
    groups = server_of(request).engine.groups
    seen = [group for _, group in sorted(groups.by_name.items()) if caller.may_see(*group.spec.filters)]
    return {"groups": [groups.summary(group) for group in seen]}


@router.post(
    "",
    status_code=201,
    summary="Make a group",
    response_model=answers.GroupShown,
    responses=example(answers.GROUP_SHOWN, 201),
)
async def create_group(
    request: Request, form: Annotated[Given, asked(NewDurableGroup)], caller: CallerIs
) -> dict[str, Any]:
    """Make a group; it collects from now on, or from the beginning of the logs. 409 if it exists."""
    caller.must_be(Role.OPERATOR)
    groups = server_of(request).engine.groups
    group = made(NewDurableGroup, form)
    await groups.create(group.spec, earliest=group.start is Start.EARLIEST)
    return await groups.show(group.name)


@router.get(
    "/{name:path}",
    summary="One group, its lag counted",
    response_model=answers.GroupShown,
    responses=example(answers.GROUP_SHOWN),
)
async def show_group(request: Request, name: str, caller: CallerIs) -> dict[str, Any]:
    groups = server_of(request).engine.groups
    caller.must_see(*groups.named(name).spec.filters)
    return await groups.show(name)


@router.patch(
    "/{name:path}",
    summary="Change a group",
    response_model=answers.GroupShown,
    responses=example(answers.GROUP_SHOWN),
)
async def alter_group(
    request: Request,
    name: str,
    form: Annotated[Given, asked(DurableGroupSpec, is_change=True)],
    caller: CallerIs,
) -> dict[str, Any]:
    """Change filters or settings; the cursors stay."""
    caller.must_be(Role.OPERATOR)
    groups = server_of(request).engine.groups
    await groups.alter(changed(groups.named(name).spec, form))
    return await groups.show(name)


@router.delete("/{name:path}", status_code=204, summary="Delete a group")
async def delete_group(request: Request, name: str, caller: CallerIs) -> None:
    caller.must_be(Role.OPERATOR)
    await server_of(request).engine.groups.delete(name)


@router.post(
    "/{name:path}/reset",
    summary="Begin again somewhere",
    response_model=answers.GroupShown,
    responses=example(answers.GROUP_SHOWN),
)
async def reset_group(request: Request, name: str, form: ResetForm, caller: CallerIs) -> dict[str, Any]:
    """Begin again somewhere; what is out is forgotten, and its receipts are void."""
    caller.must_be(Role.OPERATOR)
    groups = server_of(request).engine.groups
    await groups.reset(name, form.to)
    return await groups.show(name)


@router.post("/{name:path}/advance", status_code=204, summary="Say how far a reader by offset has come")
async def advance_group(request: Request, name: str, form: AdvanceForm, caller: CallerIs) -> None:
    """Say how far a reader by offset has come: what is below is done, the lag is what is above. It never goes
    back, and what members of the group had out in these shards is forgotten."""
    groups = server_of(request).engine.groups
    caller.must_subscribe(*groups.named(name).spec.filters)
    await groups.advance(name, form.positions)


@router.post(
    "/{name:path}/take",
    summary="Take messages",
    response_model=answers.TakenList,
    responses=example(answers.TAKEN),
)
async def take(
    request: Request, name: str, form: TakeForm, caller: CallerIs, request_id: RequestId = ""
) -> Response:
    """The next messages for one member; each goes to one. With `ack` = manual they are leased."""
    server = server_of(request)
    taken = await server.engine.groups.take(
        name,
        count=form.count,
        lease_us=form.lease_us,
        wait_ms=form.wait_ms,
        request=caller.key(request_id),
        check=lambda group: caller.now(server).must_subscribe(*group.spec.filters),
    )
    server.broker.stats.read += len(taken)
    return await long_answer("messages", (from_taken(one, is_leased=form.ack == "manual") for one in taken))


@router.post(
    "/{name:path}/ack",
    summary="Acknowledge",
    response_model=answers.Settled,
    responses=example(answers.SETTLED),
)
async def ack(request: Request, name: str, form: AckForm, caller: CallerIs) -> dict[str, Any]:
    """Done with these; `results` tells which receipts were still good."""
    return await _settle(request, caller, name, "ack", form.receipts)


@router.post(
    "/{name:path}/nack",
    summary="Give back",
    response_model=answers.Settled,
    responses=example(answers.SETTLED),
)
async def nack(request: Request, name: str, form: NackForm, caller: CallerIs) -> dict[str, Any]:
    """Give these back: they come again, after `delay_ms`, or go to the dead letters."""
    return await _settle(request, caller, name, "nack", form.receipts, form.delay_ms * 1000)


@router.post(
    "/{name:path}/extend",
    summary="Extend leases",
    response_model=answers.Settled,
    responses=example(answers.SETTLED),
)
async def extend(request: Request, name: str, form: ExtendForm, caller: CallerIs) -> dict[str, Any]:
    """Go on with these: the lease ends `lease_ms` from now."""
    return await _settle(request, caller, name, "extend", form.receipts, form.lease_ms * 1000)


async def _settle(
    request: Request, caller: CallerIs, name: str, how: str, receipts: list[str], *extra: int
) -> dict[str, Any]:
    groups = server_of(request).engine.groups
    caller.must_subscribe(*groups.named(name).spec.filters)
    return {"results": await groups.settle(name, how, receipts, *extra)}
