"""What a supervisor says of its pipeline, as its node and the other nodes read it."""

from typing import Annotated, Literal

import msgspec

from millrace.limits import (
    PIPELINE_LOG_LINE_CHARACTERS_MAX,
    PIPELINE_LOG_LINES_MAX,
    PIPELINE_QUERIES_MAX,
)

_Text = Annotated[str, msgspec.Meta(max_length=1_000)]
_LogLine = Annotated[str, msgspec.Meta(max_length=PIPELINE_LOG_LINE_CHARACTERS_MAX)]


class QueryReport(msgspec.Struct):
    name: _Text
    batch: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    lag: int | None = None
    batch_ms: int | None = None
    offset: int | None = None
    retries: int = 0


class Report(msgspec.Struct):
    """More members than these are a newer supervisor's, and are left out."""

    state: Literal["starting", "running", "waiting", "stopped", "failed"]
    restarts: int = 0
    error: _Text = ""
    ui: _Text = ""
    place: _Text = ""
    queries: Annotated[list[QueryReport], msgspec.Meta(max_length=PIPELINE_QUERIES_MAX)] = []
    log: Annotated[list[_LogLine], msgspec.Meta(max_length=PIPELINE_LOG_LINES_MAX)] = []


REPORTS: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)
