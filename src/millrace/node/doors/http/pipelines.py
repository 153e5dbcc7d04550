"""Pipelines: those that the cluster holds and runs, and those that somebody runs in a terminal.

What the cluster holds is made, changed and removed by administrators, because it is code that runs with the
rights of the nodes' users; operators stop and restart it. Its reports go from node to node.

A pipeline of a terminal tells the nodes of itself (`PUT`), on `$SYS/pipelines/NAME`, retained, for
dashboards. No client may publish below `$SYS`, so its supervisor tells the node, and the node publishes. As
with all of `$SYS` a report stays at the node that got it: a supervisor tells every node it knows. Nobody but
itself can reach such a supervisor. So a restart waits in the answer to its next report: it has a number, and
the supervisor says which numbers it has carried out. One that is gone carries out nothing.
"""

import json
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field

from millrace.broker.access import Role
from millrace.broker.meta.pipelines import PipelineSpec, Steer
from millrace.limits import (
    PIPELINE_FILE_BYTES_MAX,
    PIPELINE_LOG_LINE_CHARACTERS_MAX,
    PIPELINE_LOG_LINES_MAX,
    PIPELINE_QUERIES_MAX,
    PIPELINES_MAX,
)
from millrace.node.access.caller import Caller
from millrace.node.admin.events import Severity
from millrace.node.doors.http.answers import pipelines as answers
from millrace.node.doors.http.answers.base import AnswerRoute, example
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.guard import CallerIs, identify, observe
from millrace.node.doors.http.problems import Problem
from millrace.node.doors.http.settings_forms import Given, asked, changed, made
from millrace.node.json_form import Form
from millrace.node.pipelines.keeper import PipelineKeeper
from millrace.node.streams.definitions import Refused

router = APIRouter(
    prefix="/v1/pipelines", tags=["pipelines"], dependencies=[Depends(identify)], route_class=AnswerRoute
)


Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Text = Annotated[str, Field(max_length=1_000)]
LogLine = Annotated[str, Field(max_length=PIPELINE_LOG_LINE_CHARACTERS_MAX)]
_RESTARTED_MAX = 20


class PipelineForm(Form):
    definition: Annotated[Given, asked(PipelineSpec)]
    text: Annotated[str, Field(max_length=PIPELINE_FILE_BYTES_MAX)]
    """What stands in its file."""


class UpgradeForm(Form):
    definition: Annotated[Given, asked(PipelineSpec, is_change=True)] = {}
    """What is to change; the rest stays."""
    text: Annotated[str, Field(max_length=PIPELINE_FILE_BYTES_MAX)] | None = None
    """What stands in its file from now on."""


class QueryReport(Form):
    name: Text
    batch: int = -1
    rows: int = 0
    """Read since the pipeline was started."""
    rows_per_s: float = 0.0
    lag: int | None = None
    """Offsets that wait; null where the source does not say."""
    batch_ms: int | None = None
    """How long the last batch took."""
    offset: int | None = None
    """The next offsets to be read, added up over all shards."""
    retries: int = 0
    """How often its driver started it again in place."""


class PipelineReport(Form):
    state: Literal["starting", "running", "waiting", "stopped", "failed"]
    restarts: int = 0
    error: Text = ""
    queries: Annotated[list[QueryReport], Field(max_length=PIPELINE_QUERIES_MAX)] = []
    place: Text = ""
    """Machine and file of the driver's log."""
    ui: Text = ""
    """Where Spark serves its pages."""
    log: Annotated[list[LogLine], Field(max_length=PIPELINE_LOG_LINES_MAX)] = []
    """The end of that log, oldest line first."""
    restarted: Annotated[list[Text], Field(max_length=_RESTARTED_MAX)] = []
    """Numbers of the restarts that were asked for and carried out, the last ones."""


@router.get(
    "",
    dependencies=[Depends(observe)],
    summary="All pipelines",
    response_model=answers.PipelineList,
    responses=example({"pipelines": [answers.PIPELINE]}),
)
async def list_pipelines(request: Request) -> dict[str, Any]:
    """Those that the cluster holds, and the last report of every other one that told this node."""
    return {"pipelines": [_row(request, row["name"]) for row in _keeper(request).rows()]}


@router.post(
    "",
    status_code=201,
    summary="Let the cluster run a pipeline",
    response_model=answers.PipelineShown,
    responses=example(answers.PIPELINE, status=201),
)
async def create_pipeline(request: Request, form: PipelineForm, caller: CallerIs) -> dict[str, Any]:
    """Give the cluster a pipeline; one of its nodes runs it from now on. The code has the rights of that
    node's user, so only an administrator may, and only nodes run it whose configuration says so. 409 where
    there is one of this name, or no node that runs pipelines."""
    caller.must_be(Role.ADMIN)
    spec = made(PipelineSpec, form.definition)
    await _put(request, caller, spec, form.text, create_only=True)
    return _keeper(request).shown(spec.name)


@router.get(
    "/{name}",
    dependencies=[Depends(observe)],
    summary="One pipeline",
    response_model=answers.PipelineDetail,
    responses=example(answers.PIPELINE_DETAIL),
)
async def show_pipeline(request: Request, name: Name, caller: CallerIs) -> dict[str, Any]:
    """How it goes. Administrators see its definition too, which may hold secrets."""
    _known(request, name)
    row, keeper = _row(request, name), _keeper(request)
    if not caller.is_admin or name not in keeper.names():
        return row
    pipeline = keeper.named(name)
    return {**row, "definition": pipeline.spec.plain(), "text": pipeline.text, "user": pipeline.user}


@router.post(
    "/{name}/upgrade",
    summary="Give a pipeline another file",
    response_model=answers.PipelineShown,
    responses=example(answers.PIPELINE),
)
async def upgrade_pipeline(
    request: Request, name: Name, form: UpgradeForm, caller: CallerIs
) -> dict[str, Any]:
    """Its driver is stopped, and another one goes on with this file at the checkpoints of the old."""
    caller.must_be(Role.ADMIN)
    known = _declared(request, name).named(name)
    spec = changed(known.spec, form.definition) if form.definition else known.spec
    text = known.text if form.text is None else form.text
    await _put(request, caller, spec, text, create_only=False)
    return _keeper(request).shown(name)


@router.put(
    "/{name}",
    summary="Report the state of a pipeline",
    response_model=answers.PipelineShown,
    responses=example(answers.PIPELINE),
)
async def report_pipeline(
    request: Request, name: Name, form: PipelineReport, caller: CallerIs
) -> dict[str, Any]:
    """Publish a report on `$SYS/pipelines/NAME`. The answer has the number of a restart that is asked for."""
    caller.must_be(Role.OPERATOR)
    server, reports = server_of(request), _reports(request)
    if name in server.engine.pipelines.names():
        raise Problem(409, f"the cluster holds a pipeline {name!r}; give this one another name")
    if name not in reports and len(reports) >= PIPELINES_MAX:
        raise Problem(429, f"this node knows {PIPELINES_MAX} pipelines already; delete some")
    before = reports.get(name, {}).get("state")
    if before != form.state:
        text = f"pipeline {name!r} is {form.state}" + (f": {form.error}" if form.error else "")
        severity: Severity = "error" if form.state == "failed" else "info"
        server.events.record("pipeline", severity, text, pipeline=name, state=form.state)
    asked = reports.get(name, {}).get("restart", "")
    reports[name] = {"name": name, "time_us": server.wall_us(), **form.model_dump()}
    reports[name]["restart"] = "" if asked in form.restarted else asked
    server.publish_sys({f"$SYS/pipelines/{name}": json.dumps(_shown(reports[name]))})
    return _shown(reports[name])


@router.get(
    "/{name}/log",
    dependencies=[Depends(observe)],
    summary="The end of a driver's log",
    response_model=answers.PipelineLog,
    responses=example(answers.PIPELINE_LOG),
)
async def pipeline_log(request: Request, name: Name) -> dict[str, Any]:
    """The last lines that its supervisor told; the whole log is a file beside the supervisor."""
    _known(request, name)
    return _keeper(request).last_lines(name)


@router.post(
    "/{name}/restart",
    status_code=202,
    summary="Ask for another driver",
    response_model=answers.PipelineShown,
    responses=example({**answers.PIPELINE, "restart": "9f2c51a07b3de846"}, status=202),
)
async def restart_pipeline(request: Request, name: Name, caller: CallerIs) -> dict[str, Any]:
    """Another driver goes on at the checkpoint; a pipeline of the cluster that was stopped or given up is
    started. The supervisor of a terminal hears of it with its next report, within some seconds; 409 where it
    has ended: nobody would do it."""
    caller.must_be(Role.OPERATOR)
    _known(request, name)
    if name in _keeper(request).names():
        return await _steer(request, caller, name, Steer.START)
    report = _reports(request)[name]
    if report["state"] in ("stopped", "failed"):
        raise Problem(
            409, f"the supervisor of {name!r} has ended; start it again with: millrace pipeline run"
        )
    report["restart"] = report["restart"] or secrets.token_hex(8)
    text = f"{caller.username or 'somebody'} asked for a restart of pipeline {name!r}"
    server_of(request).events.record("pipeline", "info", text, pipeline=name)
    return _shown(report)


@router.post(
    "/{name}/stop",
    status_code=202,
    summary="Stop a pipeline of the cluster",
    response_model=answers.PipelineShown,
    responses=example({**answers.PIPELINE, "state": "stopped"}, status=202),
)
async def stop_pipeline(request: Request, name: Name, caller: CallerIs) -> dict[str, Any]:
    """Its driver ends its batch, if that takes no more than some seconds. It stays stopped until it is
    restarted. 409 for one that runs in a terminal."""
    return await _steer(request, caller, name, Steer.STOP)


@router.post(
    "/{name}/reset",
    summary="Let a pipeline of the cluster begin anew",
    response_model=answers.PipelineShown,
    responses=example({**answers.PIPELINE, "state": "stopped"}),
)
async def reset_pipeline(request: Request, name: Name, caller: CallerIs) -> dict[str, Any]:
    """Its next driver begins without checkpoints: it reads what it read before once more, and what it writes
    stands there twice. 409 while it runs."""
    return await _steer(request, caller, name, Steer.RESET)


@router.delete("/{name}", status_code=204, summary="Delete or forget a pipeline")
async def delete_pipeline(request: Request, name: Name, caller: CallerIs) -> None:
    """Stop a pipeline of the cluster and delete it; its checkpoints stay where they are. Of one that runs in
    a terminal, forget the report."""
    _known(request, name)
    if name in _keeper(request).names():
        caller.must_be(Role.ADMIN)
        await _keeper(request).delete(name)
        _say(request, caller, name, "deleted")
        return
    caller.must_be(Role.OPERATOR)
    del _reports(request)[name]
    server_of(request).publish_sys({f"$SYS/pipelines/{name}": ""})


async def _put(request: Request, caller: Caller, spec: PipelineSpec, text: str, *, create_only: bool) -> None:
    if create_only and spec.name in _reports(request) and spec.name not in _keeper(request).names():
        raise Problem(
            409, f"a pipeline {spec.name!r} runs, or ran, in a terminal: forget it, or take another name"
        )
    try:
        await _keeper(request).put(spec, text, caller.username or "", create_only=create_only)
    except Refused as error:
        raise Problem(409, str(error)) from None
    _say(request, caller, spec.name, "created" if create_only else "upgraded")


async def _steer(request: Request, caller: Caller, name: str, order: Steer) -> dict[str, Any]:
    caller.must_be(Role.OPERATOR)
    keeper = _declared(request, name)
    try:
        await keeper.steer(name, order)
    except Refused as error:
        raise Problem(409, str(error)) from None
    words = {Steer.STOP: "stopped", Steer.START: "restarted", Steer.RESET: "reset"}
    _say(request, caller, name, words[order])
    return keeper.shown(name)


def _say(request: Request, caller: Caller, name: str, what: str) -> None:
    text = f"{caller.username or 'somebody'} {what} pipeline {name!r}"
    server_of(request).events.record("pipeline", "info", text, pipeline=name)


def _keeper(request: Request) -> PipelineKeeper:
    return server_of(request).engine.pipelines


def _declared(request: Request, name: str) -> PipelineKeeper:
    _known(request, name)
    keeper = _keeper(request)
    if name not in keeper.names():
        raise Problem(409, f"pipeline {name!r} runs in a terminal: the cluster does not hold it")
    return keeper


def _known(request: Request, name: str) -> None:
    if name not in _reports(request) and name not in _keeper(request).names():
        raise Problem(
            404, f"there is no pipeline {name!r}, and no pipeline of that name has reported to this node"
        )


def _row(request: Request, name: str) -> dict[str, Any]:
    keeper = _keeper(request)
    return keeper.shown(name) if name in keeper.names() else _shown(_reports(request)[name])


def _shown(report: dict[str, Any]) -> dict[str, Any]:
    """Without the log, which is long."""
    shown = {key: value for key, value in report.items() if key not in ("log", "restarted")}
    return {**shown, "is_declared": False, "node": "", "epoch": 0, "version": 0, "resets": 0}


def _reports(request: Request) -> dict[str, dict[str, Any]]:
    return server_of(request).engine.pipelines.reports
