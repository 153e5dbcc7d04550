"""What supervised pipelines say of themselves: `$SYS/pipelines/NAME`, retained, for dashboards.

No client may publish below `$SYS`, so a supervisor tells the node, and the node publishes. As with all of
`$SYS` a report stays at the node that got it: a supervisor tells every node it knows.
"""

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field

from millrace.broker.access import Role
from millrace.limits import PIPELINE_QUERIES_MAX, PIPELINES_MAX
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


@router.get(
    "",
    dependencies=[Depends(observe)],
    summary="Pipelines that told this node",
    response_model=answers.PipelineList,
    responses=example({"pipelines": [answers.PIPELINE]}),
)
async def list_pipelines(request: Request) -> dict[str, Any]:
    """The last report of every pipeline that told this node."""
    return {"pipelines": [report for _, report in sorted(_reports(request).items())]}


@router.put(
    "/{name}",
    summary="Report the state of a pipeline",
    response_model=answers.PipelineShown,
    responses=example(answers.PIPELINE),
)
async def report_pipeline(
    request: Request, name: Name, form: PipelineReport, caller: CallerIs
) -> dict[str, Any]:
    """Publish a report on `$SYS/pipelines/NAME`."""
    caller.must_be(Role.OPERATOR)
    server, reports = server_of(request), _reports(request)
    if name not in reports and len(reports) >= PIPELINES_MAX:
        raise Problem(429, f"this node knows {PIPELINES_MAX} pipelines already; delete some")
    before = reports.get(name, {}).get("state")
    if before != form.state:
        text = f"pipeline {name!r} is {form.state}" + (f": {form.error}" if form.error else "")
        severity: Severity = "error" if form.state == "failed" else "info"
        server.events.record("pipeline", severity, text, pipeline=name, state=form.state)
    reports[name] = {"name": name, "time_us": server.wall_us(), **form.model_dump()}
    server.publish_sys({f"$SYS/pipelines/{name}": json.dumps(reports[name])})
    return reports[name]


@router.delete("/{name}", status_code=204, summary="Forget a pipeline")
async def forget_pipeline(request: Request, name: Name, caller: CallerIs) -> None:
    """Forget a pipeline: its retained report goes."""
    caller.must_be(Role.OPERATOR)
    if _reports(request).pop(name, None) is None:
        raise Problem(404, f"no pipeline {name!r} has told this node of itself")
    server_of(request).publish_sys({f"$SYS/pipelines/{name}": ""})


def _reports(request: Request) -> dict[str, dict[str, Any]]:
    state = request.app.state
    if not hasattr(state, "pipelines"):
        state.pipelines = {}
    found: dict[str, dict[str, Any]] = state.pipelines
    return found
