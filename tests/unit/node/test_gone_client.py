"""A client of the HTTP door that goes away in the middle of its request is nobody's fault."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request

from millrace.node.config import Config
from millrace.node.doors.hosts import Hosts
from millrace.node.doors.http import problems
from millrace.node.doors.http.guard import Guard


def test_it_is_a_line_of_the_log_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    app = FastAPI()
    problems.install(app)

    @app.put("/bytes")
    async def take(request: Request) -> int:
        return len(await request.body())

    readiness = SimpleNamespace(is_serving=True, is_removed=False)
    app.state.server = SimpleNamespace(admin=SimpleNamespace(readiness=readiness))
    coming = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> dict[str, Any]:
        return coming.pop(0)

    async def send(message: Any) -> None:
        """There is nobody to take it."""

    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/bytes",
        "raw_path": b"/bytes",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/octet-stream")],
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
        "http_version": "1.1",
        "app": app,
    }
    asyncio.run(Guard(app, origins=frozenset(), hosts=Hosts(Config()))(scope, receive, send))
    told = [
        (record.levelname, record.getMessage()) for record in caplog.records if "bytes" in record.getMessage()
    ]
    assert told == [("INFO", "PUT /bytes: the client went away")]
    assert not [record for record in caplog.records if record.exc_info]
