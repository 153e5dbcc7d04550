"""Answers about pipelines."""

from typing import Annotated, Any

from pydantic import Field

from millrace.broker.meta.pipelines import PipelineSpec
from millrace.node.doors.http.answers.base import Answer, model_of

_Definition: Any = model_of(PipelineSpec, "PipelineDefinition")


class QueryShown(Answer):
    name: Annotated[str, Field(description="Name of the query.")]
    batch: Annotated[int, Field(description="Number of its last batch; -1 before the first.")]
    rows: Annotated[int, Field(description="Read since the pipeline was started.")]
    rows_per_s: Annotated[float, Field(description="Rows per second.")]
    lag: Annotated[int | None, Field(description="Offsets that wait; null where the source does not say.")]
    batch_ms: Annotated[int | None, Field(description="How long the last batch took.")]
    offset: Annotated[
        int | None,
        Field(description="The next offsets to be read, added up; null where the source does not say."),
    ]
    retries: Annotated[int, Field(description="How often its driver started it again in place.")]


class PipelineShown(Answer):
    name: Annotated[str, Field(description="Name of the pipeline.")]
    time_us: Annotated[int, Field(description="When it last told this node.")]
    state: Annotated[str, Field(description="starting, running, waiting, stopped or failed.")]
    restarts: Annotated[int, Field(description="How often it was started again.")]
    error: Annotated[str, Field(description="The last error; empty without.")]
    queries: Annotated[list[QueryShown], Field(description="Its queries.")]
    place: Annotated[
        str, Field(description="Machine and file of its driver's log; empty where it did not say.")
    ]
    restart: Annotated[
        str, Field(description="Number of a restart that was asked for and not confirmed; empty without.")
    ]
    ui: Annotated[str, Field(description="Where Spark serves its pages; empty where it does not.")]
    is_declared: Annotated[bool, Field(description="Whether the cluster holds it, and runs it.")]
    node: Annotated[str, Field(description="The node that runs it, of those of the cluster; else empty.")]
    epoch: Annotated[int, Field(description="Raised by each start of its supervisor, wherever.")]
    version: Annotated[int, Field(description="Raised by each restart and upgrade that somebody asked for.")]
    resets: Annotated[int, Field(description="How often it began anew.")]


class PipelineDetail(PipelineShown):
    definition: Annotated[_Definition | None, Field(description="For administrators: how it is run.")] = None
    text: Annotated[str | None, Field(description="For administrators: what stands in its file.")] = None
    user: Annotated[str | None, Field(description="For administrators: who gave the file.")] = None


class PipelineLog(Answer):
    name: Annotated[str, Field(description="Name of the pipeline.")]
    time_us: Annotated[int, Field(description="When its supervisor told these lines.")]
    place: Annotated[str, Field(description="Machine and file of the whole log; empty where it did not say.")]
    lines: Annotated[list[str], Field(description="The end of the driver's log, oldest first.")]


class PipelineList(Answer):
    pipelines: Annotated[
        list[PipelineShown], Field(description="Those of the cluster, and all that told this node.")
    ]


PIPELINE: dict[str, Any] = {
    "name": "averages",
    "time_us": 1_795_000_000_000_000,
    "state": "running",
    "restarts": 0,
    "error": "",
    "queries": [
        {
            "name": "averages",
            "batch": 41,
            "rows": 120_000,
            "rows_per_s": 950.5,
            "lag": 12,
            "batch_ms": 210,
            "offset": 120_000,
            "retries": 0,
        }
    ],
    "place": "mill-1:/var/lib/millrace/pipelines/averages/driver.log",
    "restart": "",
    "ui": "http://mill-1:4040",
    "is_declared": True,
    "node": "n1",
    "epoch": 3,
    "version": 1,
    "resets": 0,
}
PIPELINE_DETAIL: dict[str, Any] = {
    **PIPELINE,
    "definition": {
        "name": "averages",
        "file": "averages.sql",
        "node": "",
        "master": "local[*]",
        "checkpoints": "s3a://bucket/checkpoints",
        "settings": [],
        "conf": [],
        "trigger": "2s",
        "ui_port": 4040,
        "starts": 5,
    },
    "text": "CREATE STREAM readings USING millrace OPTIONS (stream 'plant'); ...",
    "user": "ann",
}
PIPELINE_LOG: dict[str, Any] = {
    "name": "averages",
    "time_us": 1_795_000_000_000_000,
    "place": "mill-1:/var/lib/millrace/pipelines/averages/driver.log",
    "lines": ["26/11/18 05:46:57 WARN ProcessingTimeExecutor: Current batch is falling behind."],
}
