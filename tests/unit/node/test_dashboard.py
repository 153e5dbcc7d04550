"""The dashboard's files: what is served, with which headers, and that nothing else can be asked for."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from millrace.node.config import Config
from millrace.node.doors.hosts import Hosts
from millrace.node.doors.http import dashboard, problems
from millrace.node.doors.http.guard import PAGE_POLICY, Guard

SCRIPT = b"export {};\n"
PAGE = b"<!doctype html><title>Millrace</title>"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build of its own, with something beside it that nobody may see."""
    folder = tmp_path / "dashboard"
    (folder / "assets" / "deep").mkdir(parents=True)
    (folder / "index.html").write_bytes(PAGE)
    (folder / "licenses.md").write_text("MIT")
    (folder / "assets" / "index-abc123.js").write_bytes(SCRIPT)
    (folder / "assets" / "index-abc123.css").write_text("a{}")
    (folder / "assets" / "icon-abc123.svg").write_text("<svg/>")
    (folder / "assets" / "notes.txt").write_text("not of the build")
    (folder / "assets" / "deep" / "inner.js").write_text("no")
    (tmp_path / "secret.js").write_text("secret")
    monkeypatch.setattr(dashboard, "BUILT", folder)
    return folder


def asked(path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """What the application answers, behind the guard that stands before every route."""
    app = FastAPI()
    problems.install(app)
    app.include_router(dashboard.router)
    readiness = SimpleNamespace(is_serving=True, is_removed=False)
    app.state.server = SimpleNamespace(admin=SimpleNamespace(readiness=readiness))
    guarded = Guard(app, origins=frozenset(), hosts=Hosts(Config()))
    sent: list[Any] = []

    waiting = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        """The request, and then nothing more for as long as anybody listens."""
        if not waiting:
            await asyncio.Event().wait()
        return waiting.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
        "http_version": "1.1",
        "app": app,
    }
    asyncio.run(guarded(scope, receive, send))
    start = next(message for message in sent if message["type"] == "http.response.start")
    body = b"".join(message.get("body", b"") for message in sent)
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return start["status"], headers, body


def test_the_page_is_asked_for_each_time_and_runs_only_what_the_node_sends(built: Path) -> None:
    status, headers, body = asked("/")
    assert (status, body) == (200, PAGE)
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["content-security-policy"] == PAGE_POLICY
    assert headers["cache-control"] == "no-cache"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("index-abc123.js", "text/javascript; charset=utf-8"),
        ("index-abc123.css", "text/css; charset=utf-8"),
        ("icon-abc123.svg", "image/svg+xml"),
    ],
)
def test_assets_have_their_type_and_may_be_kept(built: Path, name: str, type: str) -> None:
    status, headers, _ = asked(f"/assets/{name}")
    assert status == 200
    assert headers["content-type"] == type
    assert headers["cache-control"] == "public, max-age=31536000, immutable"
    assert headers["content-security-policy"] == PAGE_POLICY


@pytest.mark.parametrize(
    "path",
    [
        "/assets/",
        "/assets/missing.js",
        "/assets/notes.txt",
        "/assets/deep/inner.js",
        "/assets/../index.html",
        "/assets/../../secret.js",
        "/assets/..\\..\\secret.js",
        "/assets//secret.js",
        "/assets/index-abc123.js/",
        "/assets/index-abc123.js\x00.css",
        "/index.html",
        "/licenses.md",
    ],
)
def test_nothing_else_is_served(built: Path, path: str) -> None:
    status, headers, body = asked(path)
    assert status == 404, body
    assert headers["content-type"] == problems.MEDIA_TYPE


def test_an_absolute_path_in_the_name_leads_nowhere(built: Path) -> None:
    status, _, body = asked(f"/assets/{built.parent / 'secret.js'}")
    assert status == 404 and b"secret\n" not in body


def test_a_link_out_of_the_folder_of_an_unknown_type_is_not_followed(built: Path, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1")
    (built / "assets" / "hosts").symlink_to(tmp_path / "hosts")
    assert asked("/assets/hosts")[0] == 404


def test_without_a_build_the_page_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "BUILT", tmp_path / "nowhere")
    assert asked("/assets/index-abc123.js")[0] == 404
    status, headers, body = asked("/")
    assert status == 200 and b"make setup" in body and b"/docs" in body
    assert headers["content-security-policy"] == PAGE_POLICY


def test_the_root_is_only_read(built: Path) -> None:
    """The address is free for those who post there."""
    assert asked("/", "HEAD")[::2] == (200, b"")
    assert asked("/", "POST")[0] == 405
