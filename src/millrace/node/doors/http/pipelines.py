"""What supervised pipelines say of themselves: `$SYS/pipelines/NAME`, retained, for dashboards.

No client may publish below `$SYS`, so a supervisor tells the node, and the node publishes. As with all of
`$SYS` a report stays at the node that got it: a supervisor tells every node it knows.

A supervisor is a process somewhere that nobody but itself can reach. So what people ask of it waits in the
answer to its next report: a restart has a number, and the supervisor says which numbers it has carried out.
One that is gone carries out nothing, and the request stays where everybody sees it. To start a pipeline that
does not run, the cluster would have to know its file and where to run it; it knows neither.
"""

import json
import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field

from millrace.broker.access import Role
from millrace.limits import (
    PIPELINE_LOG_LINE_CHARACTERS_MAX,
    PIPELINE_LOG_LINES_MAX,
    PIPELINE_QUERIES_MAX,
    PIPELINES_MAX,
)
from millrace.node.admin.events import Severity
from millrace.node.doors.http.answers import groups as answers
from millrace.node.doors.http.answers.base import AnswerRoute, example
from millrace.node.doors.http.context import server_of
from millrace.node.doors.http.forms import Form
from millrace.node.doors.http.guard import CallerIs, identify, observe
from millrace.node.doors.http.problems import Problem

router = APIRouter(
    prefix="/v1/pipelines", tags=["pipelines"], dependencies=[Depends(identify)], route_class=AnswerRoute
)


Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
Text = Annotated[str, Field(max_length=1_000)]
LogLine = Annotated[str, Field(max_length=PIPELINE_LOG_LINE_CHARACTERS_MAX)]
_RESTARTED_MAX = 20


class QueryReport(Form):
    name: Text
    batch: int = -1
    rows: int = 0
    """Read since the pipeline was started."""
    rows_per_s: float = 0.0
    lag: int | None = None
    """Offsets that wait; null where the source does not say."""


class PipelineReport(Form):
    state: Literal["starting", "running", "waiting", "stopped", "failed"]
    restarts: int = 0
    error: Text = ""
    queries: Annotated[list[QueryReport], Field(max_length=PIPELINE_QUERIES_MAX)] = []
    place: Text = ""
    """Machine and file of the driver's log."""
    log: Annotated[list[LogLine], Field(max_length=PIPELINE_LOG_LINES_MAX)] = []
    """The end of that log, oldest line first."""
    restarted: Annotated[list[Text], Field(max_length=_RESTARTED_MAX)] = []
    """Numbers of the restarts that were asked for and carried out, the last ones."""


@router.get(
    "",
    dependencies=[Depends(observe)],
    summary="Pipelines that told this node",
    response_model=answers.PipelineList,
    responses=example({"pipelines": [answers.PIPELINE]}),
)
async def list_pipelines(request: Request) -> dict[str, Any]:
    """The last report of every pipeline that told this node."""
    return {"pipelines": [_shown(report) for _, report in sorted(_reports(request).items())]}


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
    report = _known(request, name)
    return {"name": name, "time_us": report["time_us"], "place": report["place"], "lines": report["log"]}


@router.post(
    "/{name}/restart",
    status_code=202,
    summary="Ask for another driver",
    response_model=answers.PipelineShown,
    responses=example({**answers.PIPELINE, "restart": "9f2c51a07b3de846"}, status=202),
)
async def restart_pipeline(request: Request, name: Name, caller: CallerIs) -> dict[str, Any]:
    """The supervisor hears of it with its next report, within some seconds, stops its driver and starts
    another one, which goes on at the checkpoint. 409 where the supervisor has ended: nobody would do it."""
    caller.must_be(Role.OPERATOR)
    report = _known(request, name)
    if report["state"] in ("stopped", "failed"):
        raise Problem(
            409, f"the supervisor of {name!r} has ended; start it again with: millrace pipeline run"
        )
    report["restart"] = report["restart"] or secrets.token_hex(8)
    text = f"{caller.username or 'somebody'} asked for a restart of pipeline {name!r}"
    server_of(request).events.record("pipeline", "info", text, pipeline=name)
    return _shown(report)


@router.delete("/{name}", status_code=204, summary="Forget a pipeline")
async def forget_pipeline(request: Request, name: Name, caller: CallerIs) -> None:
    """Forget a pipeline: its retained report goes."""
    caller.must_be(Role.OPERATOR)
    _known(request, name)
    del _reports(request)[name]
    server_of(request).publish_sys({f"$SYS/pipelines/{name}": ""})


def _known(request: Request, name: str) -> dict[str, Any]:
    report = _reports(request).get(name)
    if report is None:
        raise Problem(404, f"no pipeline {name!r} has told this node of itself")
    return report


def _shown(report: dict[str, Any]) -> dict[str, Any]:
    """Without the log, which is long."""
    return {key: value for key, value in report.items() if key not in ("log", "restarted")}


def _reports(request: Request) -> dict[str, dict[str, Any]]:
    return server_of(request).admin.pipelines
