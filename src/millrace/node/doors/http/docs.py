"""The page that shows the API, without the network and without a line of script in it.

The assets are those of swagger-ui-dist, which `make setup` puts into the package and the wheel brings along;
where they are missing the page says so, and the document itself is at /openapi.json all the same.
"""

from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, HTMLResponse

from millrace.node.doors.http.guard import PAGE_POLICY
from millrace.node.doors.http.problems import Problem

router = APIRouter(include_in_schema=False)

ASSETS = Path(__file__).resolve().parent / "assets" / "swagger-ui"
_FILES = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
}
_HEADERS = {"Content-Security-Policy": PAGE_POLICY}
_START = """window.addEventListener("load", () => {
  SwaggerUIBundle({
    url: "/openapi.json",
    dom_id: "#api",
    deepLinking: true,
    validatorUrl: null,
    queryConfigEnabled: false,
  });
});
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Millrace: HTTP API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/docs/swagger-ui.css">
<script src="/docs/swagger-ui-bundle.js" defer></script>
<script src="/docs/start.js" defer></script>
</head>
<body><div id="api"></div></body>
</html>
"""
_MISSING = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Millrace: HTTP API</title></head>
<body>
<h1>HTTP API</h1>
<p>The viewer is not installed. Install npm, run <code>make setup</code>, and load this page again.</p>
<p>The document is here: <a href="/openapi.json">/openapi.json</a></p>
</body>
</html>
"""


@router.get("/docs")
def page() -> HTMLResponse:
    is_there = all((ASSETS / name).is_file() for name in _FILES)
    return HTMLResponse(_PAGE if is_there else _MISSING, headers=_HEADERS)


@router.get("/docs/start.js")
def start() -> Response:
    return Response(_START, media_type="text/javascript; charset=utf-8", headers=_HEADERS)


@router.get("/docs/{name}")
def asset(name: str) -> FileResponse:
    path = ASSETS / name
    if name not in _FILES or not path.is_file():
        raise Problem(404, f"there is no /docs/{name}")
    return FileResponse(path, media_type=_FILES[name], headers=_HEADERS)
